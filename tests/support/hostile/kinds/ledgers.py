"""Ledgers, lists of failures and event logs of unfinished and finished steps, as a stranger could have left them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.hostile.case import Case, Place, refused
from tests.support.hostile.kinds.manifests import SHELF, UNSAFE, copy_finished, step

Line = dict[str, Any] | bytes
NEWER = "a newer version of datakit wrote them"
CORRUPT = "remove the file to redo its tasks"


def attempt(**changes: Any) -> dict[str, Any]:
    """Return the line of a failed attempt."""
    line = {"kind": "attempt", "phase": "sort", "key": "00000", "digest": "0" * 32, "attempt": 1, "cause": "error",
            "message": "wrong", "time": 1.5}  # fmt: skip
    return line | changes


def result(**output: Any) -> dict[str, Any]:
    """Return the line of a successful attempt with one output file."""
    file = {"url": "x", "bytes": 1, "xxh3": "0" * 32, "rows": 1} | output
    return attempt(cause="done", result={"outputs": [file], "counters": {}, "details": {}})


def appended(*lines: Line, unfinished: bool = True) -> Callable[[Place], None]:
    """Return a function that copies the finished root and adds lines to the ledger of the step `consolidate`.
    unfinished: the step's manifest is removed.
    """

    def build(place: Place) -> None:
        copy_finished(place)
        directory = step(place, "consolidate")
        (segment, *_) = sorted((directory / "ledger").iterdir())
        encoded = (line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
        segment.write_bytes(segment.read_bytes() + b"".join(line + b"\n" for line in encoded))
        if unfinished:
            (directory / "manifest.json").unlink()

    return build


def file(path: str, content: bytes) -> Callable[[Place], None]:
    """Return a function that copies the finished root, makes the step `consolidate` unfinished, and writes a file."""

    def build(place: Place) -> None:
        appended()(place)
        target = step(place, "consolidate") / path
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(content)

    return build


def rerun(place: Place) -> None:
    """Copy the sources and the recipe beside the altered root, so that a run continues it."""
    for name in ("novels", "letters"):
        (original,) = (place.finished() / "shelf" / name).iterdir()
        place.write(f"{name}/{original.name}", original.read_bytes())
    place.write("shelf.toml", (place.finished() / "shelf" / "shelf.toml").read_bytes())


def with_sources(build: Callable[[Place], None]) -> Callable[[Place], None]:
    return lambda place: (build(place), rerun(place))[0]


STATUS = ("status", SHELF, "--all")
RUN = ("run", "shelf.toml", "--root", "data", "--workers", "1", "--until", "consolidate")
LINES: dict[str, tuple[Line, str]] = {
    "of-an-unknown-kind": ({"kind": "lease", "holder": UNSAFE}, NEWER),
    "unsafe-kind": ({"kind": UNSAFE}, NEWER),
    "unsafe-message": (attempt(message=UNSAFE), ""),
    "unsafe-key": (attempt(key=UNSAFE), ""),
    "unsafe-phase": (attempt(phase=UNSAFE), ""),
    "unsafe-node": (attempt(node=UNSAFE), ""),
    "negative-numbers": (attempt(peak_memory=-(1 << 60), seconds=-1e300, budget=-1, attempt=-1), ""),
    "huge-numbers": (attempt(peak_memory=(1 << 63) - 1, seconds=1e308, time=1e308), ""),
    "message-of-a-megabyte": (attempt(message="x" * (1 << 20)), ""),
    "phase-of-100000-tasks": ({"kind": "phase", "phase": "sort", "keys": [str(n) for n in range(100_000)],
                               "input_bytes": [1] * 100_000, "time": 1.0}, ""),
    "phase-of-lists-that-differ": ({"kind": "phase", "phase": "sort", "keys": ["1"], "input_bytes": [],
                                    "time": 1.0}, ""),
    "result-with-a-path-up": (result(url="../../../outside/secret.jsonl"), ""),
}  # fmt: skip
REFUSED: dict[str, bytes] = {
    "not-json": b"{",
    "nested-deep": b'{"kind": ' + b"[" * 200_000,
    "nul-bytes": bytes(4096),
    "number-of-10000-digits": b'{"kind": "attempt", "time": ' + b"9" * 10_000 + b"}",
    "not-utf-8": b'{"kind": "\xff\xfe"}',
    "an-array": b"[1]",
}
CASES = (
    *(
        Case(f"ledger-{name}", appended(line), refused(*filter(None, (said,)), code=0), words=STATUS)
        for name, (line, said) in LINES.items()
    ),
    *(
        Case(f"ledger-{name}", appended(line), refused(code=(0, 1, 2, 4)), words=STATUS)
        for name, line in REFUSED.items()
    ),
    *(
        Case(
            f"ledger-{name}-continued", with_sources(appended(line)), refused(code=(0, 1, 2, 4)), words=RUN, alters=True
        )
        for name, line in REFUSED.items()
        if name in ("not-json", "nested-deep")
    ),
    *(
        Case(f"ledger-{name}-continued", with_sources(appended(line)), refused(code=0), words=RUN, alters=True)
        for name, (line, _) in LINES.items()
        if name in ("of-an-unknown-kind", "result-with-a-path-up", "huge-numbers")
    ),
    *(
        Case(
            f"ledger-{name}-collected",
            appended(line),
            refused(code=(0, 1, 2, 4)),
            alters=True,
            words=("gc", "data", "--delete", "--older-than", "0"),
        )
        for name, line in {"not-json": REFUSED["not-json"], "unsafe-kind": LINES["unsafe-kind"][0]}.items()
    ),
    Case(
        "ledger-of-a-finished-step",
        appended(REFUSED["not-json"], unfinished=False),
        refused(code=0),
        words=("validate", SHELF),
    ),
    Case(
        "ledger-with-an-unsafe-name", file(f"ledger/{UNSAFE}.jsonl", b"{}\n"), refused(code=(0, 1, 2, 4)), words=STATUS
    ),
    Case(
        "ledger-cut-in-the-last-line",
        file("ledger/99999999T000000000Z-1-aaaaaa-00000.jsonl", b'{"kind": "dri'),
        refused(code=0),
        words=STATUS,
    ),
    *(
        Case(f"partial-{name}", file("partial.json", content), refused(code=(0, 1, 2, 4)), words=STATUS)
        for name, content in {
            "empty": b"",
            "nested-deep": b"[" * 200_000,
            "of-another-form": b'{"failed": "x"}',
            "unsafe": json.dumps({"error": UNSAFE, "message": UNSAFE, "tasks": [UNSAFE]}).encode(),
        }.items()
    ),
    Case(
        "partial-unsafe-listed",
        file("partial.json", json.dumps({"error": UNSAFE}).encode()),
        refused(code=0),
        words=("ls", "data"),
    ),
)
