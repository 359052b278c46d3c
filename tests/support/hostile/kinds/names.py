"""Files and folders whose names could mislead a terminal, a shell, a pattern, a path or a page."""

from __future__ import annotations

import os
from collections.abc import Callable

from tests.support.hostile.case import TOLERANT, Case, Expectation, Place, done, refused

NAMES: dict[str, str] = {
    "line-feed": "a\nerror: all is lost\n.jsonl",
    "carriage-return": "a\rerror: all is lost.jsonl",
    "terminal-title": "\x1b]0;owned\x07.jsonl",
    "clears-the-screen": "\x1b[2J\x1b[H.jsonl",
    "bidirectional": "a\u202etxt.live\u2066.jsonl",
    "c1-controls": "a\x9b31m\x90.jsonl",
    "line-separators": "a\u2028b\u2029c.jsonl",
    "zero-width": "a\u200b\ufeff\u00ad.jsonl",
    "tags": "a\U000e0041\U000e007f.jsonl",
    "leading-dash": "-rf.jsonl",
    "option": "--root=x.jsonl",
    "shell": "$(touch ..\\ran\\x);`touch x`|&>.jsonl",
    "quotes": "a'b\"c\"\"\"'''.jsonl",
    "toml": '"]\n[tokenize]\ntokenizer="planted_module:x"\n#.jsonl',
    "glob": "*[a-z]?{b,c}!.jsonl",
    "percent": "%2e%2e%2f%00%s%n.jsonl",
    "format": "{root}{0.__class__}{{.jsonl",
    "url": "s3:__bucket_x?versionId=1#x.jsonl",
    "tilde": "~root.jsonl",
    "backslashes": "a\\..\\..\\outside\\secret.jsonl",
    "html": "<script src=x>&amp;<img onerror=x>.jsonl",
    "markdown": "](javascript:x) `x` | x |.jsonl",
    "spaces": " a  .jsonl",
    "dots": "a..b...jsonl",
    "own-names": "manifest.json",
    "longest": "n" * 249 + ".jsonl",
    "longest-in-bytes": "\u00e9" * 124 + ".jsonl",
    "not-utf-8": "\udcff\udc80.jsonl",
    "surrogate-in-utf-8": "a\udced\udca0\udc80.jsonl",
}
IN_EVERY_RUN = ("line-feed", "bidirectional", "toml", "not-utf-8", "longest")


def file(name: str) -> Callable[[Place], None]:
    """Return a function that writes a file with this name, and another with a usual one."""

    def build(place: Place) -> None:
        (place.work / "texts").mkdir()
        with open(os.fsencode(place.work / "texts") + b"/" + os.fsencode(name), "wb") as opened:
            opened.write(place.lines(3))
        place.write("texts/usual.jsonl", place.lines(4)[-len(place.lines(1)) :])
        place.recipe(more=TOLERANT)

    return build


def end(key: str, otherwise: Expectation) -> Expectation:
    """Return how a command ends on a name: names that are not UTF-8 are refused."""
    return refused("is not valid UTF-8") if key in ("not-utf-8", "surrogate-in-utf-8") else otherwise


def folder(*names: str) -> Callable[[Place], None]:
    """Return a function that writes a file into a folder below folders with these names."""

    def build(place: Place) -> None:
        path = os.fsencode(place.work / "texts")
        os.mkdir(path)
        back = os.open(".", os.O_RDONLY)
        os.chdir(path)  # the whole path may be longer than the kernel allows
        try:
            for name in names:
                os.mkdir(os.fsencode(name))
                os.chdir(os.fsencode(name))
            with open("a.jsonl", "wb") as opened:
                opened.write(place.lines(3))
        finally:
            os.fchdir(back)
            os.close(back)
        place.recipe(more=TOLERANT)

    return build


def twins(place: Place) -> None:
    """Write files whose names differ only in case or in the form of a letter."""
    for number, name in enumerate(("a.jsonl", "A.jsonl", "\u00e9.jsonl", "e\u0301.jsonl", "a.JSONL")):
        place.write(f"texts/{name}", place.lines(number + 1)[number * len(place.lines(1)) :])
    place.recipe(more=TOLERANT)


def many_unusable(place: Place) -> None:
    """Write many files of an unknown format, with unsafe names."""
    for number in range(300):
        place.write(f"texts/\x1b[31m{number}\u202e.unknown", b"x")
    place.recipe()


def partial_file(place: Place) -> None:
    """Write a bad record into a file with an unsafe name; the position of the record is listed."""
    place.write("texts/a\x1b[2J\nerror: \u202e.jsonl", place.lines(3) + b"{bad\n")
    place.recipe()


CASES = (
    *(Case(f"name-{key}", file(name), end(key, done(4))) for key, name in NAMES.items()),
    *(
        Case(f"name-{key}-inspected", file(name), refused(code=0), words=("inspect", "texts"), shows_text=True)
        for key, name in NAMES.items()
        if key in ("terminal-title", "toml", "not-utf-8", "html")
    ),
    *(
        Case(
            f"name-{key}-drafted",
            file(name),
            end(key, refused(code=0)),
            words=("inspect", "texts", "--draft"),
            shows_text=True,
        )
        for key, name in NAMES.items()
        if key in ("toml", "quotes", "format")
    ),
    *(
        Case(f"name-{key}-planned", file(name), end(key, refused(code=0)), words=("plan", "r.toml", "--json"))
        for key, name in NAMES.items()
        if key in ("bidirectional", "c1-controls", "not-utf-8")
    ),
    Case("name-of-a-folder-with-escapes", folder("a\x1b[2J\u202e"), done(3)),
    Case("name-of-folders-that-look-like-a-path-out", folder("..a", "...", "~"), refused("hidden")),
    Case("name-of-a-folder-like-a-file", folder("a.jsonl"), done(3)),
    Case("name-of-a-folder-like-a-step", folder("data", "normalize-000000000000"), done(3)),
    Case("name-below-200-folders", folder(*["f"] * 200), done(3)),
    Case("name-longer-than-a-path", folder(*["f" * 250] * 20), refused("texts", code=(1, 2))),
    Case("name-hidden", folder(".git"), refused("hidden")),
    Case("name-twins", twins, done(5)),
    Case("name-of-300-unusable-files", many_unusable, refused("unknown format")),
    Case("name-in-the-list-of-bad-records", partial_file, refused(r"\x1b[2J\n", code=3)),
)
