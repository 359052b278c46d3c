"""Recipes, mixture files and run files: names that lead out of the root, unsafe names, and TOML that no one writes.
Such a file is trusted as code, but a name in it may come from data.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.support.hostile.case import Case, Place, refused

RUN = ("run", "r.toml", "--root", "{root}", "--workers", "1", "--until", "normalize")


def written(text: str | bytes, name: str = "r.toml") -> Callable[[Place], None]:
    """Return a function that writes a file beside a good source."""

    def build(place: Place) -> None:
        place.write("texts/a.jsonl", place.lines(3))
        place.write(name, text)

    return build


def named(dataset: str = "r", source: str = "s", more: str = "") -> str:
    """Return a recipe with these names, which are written as TOML strings already."""
    return f'name = "{dataset}"\n[[sources]]\nname = "{source}"\nurl = "texts"\n{more}\n'


ESCAPED = "\\u001b]0;owned\\u0007\\u202e"
FILES: dict[str, str | bytes] = {
    "dataset-up": named("../../outside"),
    "dataset-absolute": named("/tmp/x"),
    "dataset-empty": named(""),
    "dataset-unsafe": named(ESCAPED),
    "dataset-of-dots": named(".."),
    "source-up": named(source="../../outside"),
    "source-with-slash": named(source="a/b"),
    "source-of-a-dot": named(source="."),
    "source-hidden": named(source=".git"),
    "source-unsafe": named(source=ESCAPED),
    "source-with-nul": named(source="\\u0000"),
    "source-of-10000-characters": named(source="a" * 10_000),
    "key-unsafe": named(more=f'"{ESCAPED}" = 1'),
    "value-unsafe": named(more=f'[normalize]\nformat = "{ESCAPED}"'),
    "column-unsafe": named(more=f'[normalize]\ntext = "{ESCAPED}"'),
    "condition-reads-a-file": named(more="where = \"text in (select * from read_csv('../outside/secret.jsonl'))\""),
    "condition-sets-a-setting": named(more='where = "1=1); SET enable_external_access=true; --"'),
    "condition-asks-for-the-environment": named(more="where = \"getenv('HF_TOKEN') = text\""),
    "url-with-a-password": named().replace('"texts"', '"https://user:word@127.0.0.1:9/a.jsonl"'),
    "url-of-an-unknown-protocol": named().replace('"texts"', '"gopher://127.0.0.1/x"'),
    "url-of-a-file": named().replace('"texts"', '"file:///nowhere/../etc"'),
    "nested-deep": "a = " + "[" * 100_000,
    "dotted-keys": ".".join(["a"] * 5_000) + " = 1",
    "not-utf-8": b'name = "\xff\xfe"',
    "with-nul-bytes": b'name = "r"\0',
    "of-another-type": "name = 1\nsources = 2",
    "number-of-10000-digits": "name = " + "9" * 10_000,
    "date-that-does-not-exist": "name = 2026-99-99",
    "empty": "",
}
CASES = (
    *(Case(f"recipe-{name}", written(content), refused(), words=RUN) for name, content in FILES.items()),
    *(
        Case(f"run-file-{name}", written(content), refused(), words=("train", "r.toml", "--root", "{root}"))
        for name, content in FILES.items()
        if name in ("nested-deep", "not-utf-8", "dataset-up", "key-unsafe")
    ),
    *(
        Case(f"mixture-{name}", written(content), refused(), words=("mixture", "preview", "r.toml"))
        for name, content in FILES.items()
        if name in ("not-utf-8", "key-unsafe", "empty")
    ),
    Case(
        "recipe-set-on-the-command-line-with-escapes",
        written(named()),
        refused(),
        words=(*RUN, "--set", "sources.\x1b[2J.sample=1"),
    ),
    Case("recipe-that-is-too-long-a-name", written(named()), refused(), words=("run", "r" * 5000, "--root", "{root}")),
)
