"""Runs a case and lists everything that went otherwise than its expectation says.

with launched() as launcher:                       # one for all cases
    assert failures(case, place, launcher, canaries) == []
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.canary import Canaries, leaks_in_files, leaks_in_text
from tests.support.hostile.case import Case, Place
from tests.support.hostile.launcher import TIMED_OUT
from tests.support.hostile.sentinel import Sentinel, sentinel
from tests.support.paths import REPOSITORY

BUGS = ("unexpected: a bug", "Traceback (most recent call last)")
LOGS = (".jsonl", ".json", ".md", ".log")  # files of a root that people and programs read; none may quote a document
COPIES = "raw"  # the folder of copies of remote files
STORE = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_DEFAULT_REGION")
UNCOUNTED = ("records_in", "text_bytes", "documents")


@dataclass(frozen=True)
class Ended:
    """A command that has ended."""

    code: int
    output: str
    memory: int
    written: int
    cpu_seconds: float
    left: int


class Launcher:
    """Starts commands; see launcher.py."""

    def __init__(self) -> None:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-P", "-m", "tests.support.hostile.launcher"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def run(self, case: Case, place: Place) -> Ended:
        """Run the command of a case."""
        names = {"root": str(place.root), "work": str(place.work), "bucket": place.bucket}
        words = [word.format_map(names) for word in case.words]
        out, err = place.folder / "stdout", place.folder / "stderr"
        request = {
            "words": words, "cwd": str(place.work), "stdout": str(out), "stderr": str(err),
            "environment": environment_of(case, place), "seconds": case.limits.seconds, "written": case.limits.written,
        }  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        output = out.read_bytes().decode(errors="replace") + err.read_bytes().decode(errors="replace")
        return Ended(output=output, **answer)


@contextmanager
def launched() -> Iterator[Launcher]:
    """Start a launcher, and end it with the block."""
    launcher = Launcher()
    try:
        yield launcher
    finally:
        assert launcher.process.stdin is not None
        launcher.process.stdin.close()
        launcher.process.wait(30)


def environment_of(case: Case, place: Place) -> dict[str, str]:
    """Return the variables that a case's command gets in addition to the launcher's."""
    paths = f"{REPOSITORY}{os.pathsep}{place.folder / 'planted'}"
    folders = {"TMPDIR": str(place.temporary), "HOME": str(place.home), "PYTHONPATH": paths}
    store = {name: value for name, value in os.environ.items() if name in STORE}
    return {"COLUMNS": "200", **folders, **store, **case.environment}


def failures(case: Case, place: Place, launcher: Launcher, canaries: Canaries) -> list[str]:
    """Run a case; return what was not as it must be, one line each."""
    before = snapshot(place.work)
    with sentinel(place.outside) as watch:
        ended = launcher.run(case, place)
        found = [*wrong_end(case, ended), *excesses(case, ended), *damage(case, place, before, watch)]
    found += leaks_in_text(canaries, "output", ended.output)
    found += leaks_in_files(canaries, *(folder for folder in (place.root, place.home) if folder.exists()))
    found += quoted(case, place, ended.output)
    found += wrong_counts(case, place)
    return [*found, f"output:\n{ended.output[-3000:]}"] if found else []


def wrong_end(case: Case, ended: Ended) -> Iterator[str]:
    """Yield what differs from the expected end."""
    if ended.code == TIMED_OUT:
        yield f"it did not end within {case.limits.seconds:.0f} s"
    if ended.code not in (case.ends.code if isinstance(case.ends.code, tuple) else (case.ends.code,)):
        yield f"exit code {ended.code} instead of {case.ends.code}"
    said = " ".join(ended.output.split())
    yield from (f"did not say {words!r}" for words in case.ends.says if words not in said)
    yield from (f"said {words!r}" for words in case.ends.silent_on if words in said)
    yield from (f"said {words!r}" for words in BUGS if words in said)
    yield from (f"printed U+{ord(sign):04X} unescaped" for sign in unsafe_signs(ended.output))


def unsafe_signs(text: str) -> list[str]:
    """Return the control and format characters of a text that could mislead a terminal."""
    unsafe = (sign for sign in set(text) if unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp"))
    return sorted(sign for sign in unsafe if sign not in "\t\n\r")


def excesses(case: Case, ended: Ended) -> Iterator[str]:
    """Yield the limits that were exceeded."""
    if ended.left:
        yield f"{ended.left} processes did not end with the command"
    if ended.memory > case.limits.memory:
        yield f"a process used {ended.memory >> 20} MiB of memory; the limit is {case.limits.memory >> 20}"
    if ended.written > case.limits.written:
        yield f"{ended.written >> 20} MiB were written; the limit is {case.limits.written >> 20}"


def damage(case: Case, place: Place, before: dict[str, object], watch: Sentinel) -> Iterator[str]:
    """Yield what was opened or changed that must not be, planted code that ran, and temporary files that stayed."""
    reads = (" was opened", " was read") if case.follows_links else ()
    yield from (touch for touch in watch.touched() if not touch.endswith(reads))
    yield from (f"planted code ran: {path.name}" for path in place.ran.iterdir())
    yield from (f"{path} stayed in the temporary folder" for path in place.temporary.rglob("*"))
    if not case.alters:
        after = snapshot(place.work)
        yield from (
            f"{path} was changed" for path in before.keys() | after.keys() if before.get(path) != after.get(path)
        )


def snapshot(folder: Path) -> dict[str, object]:
    """Map every entry below a folder to what changes when someone writes to it."""
    found: dict[str, object] = {}
    for parent, folders, files in os.walk(os.fsencode(folder)):
        for name in [*folders, *files]:
            try:
                status = os.lstat(os.path.join(parent, name))
            except OSError as error:
                if error.errno != errno.ENAMETOOLONG:
                    raise
                continue
            found[repr(os.path.join(parent, name))] = (
                status.st_mode,
                status.st_size,
                status.st_mtime_ns,
                status.st_ino,
            )
    return found


def quoted(case: Case, place: Place, output: str) -> list[str]:
    """Return where a document's text, or that of the file outside, occurs in messages or logs."""
    texts = {"output": "" if case.shows_text else output}
    for path in place.root.rglob("*") if place.root.is_dir() else ():
        copied = COPIES in path.parts or path.name == "tokenizer.json"
        if path.suffix in LOGS and path.is_file() and not copied:
            texts[str(path)] = path.read_text(errors="replace")
    words = {place.document: "a document", place.outside_text: "the file outside"}
    return [f"{where} quotes {what}" for where, text in texts.items() for word, what in words.items() if word in text]


def wrong_counts(case: Case, place: Place) -> Iterator[str]:
    """Yield how the counters of the normalize steps differ from the expected ones."""
    if case.ends.counts is None:
        return
    found = counters(place.root.rglob("normalize-*/manifest.json"))
    if found != {name: count for name, count in case.ends.counts.items() if count}:
        yield f"counted {found} instead of {case.ends.counts}"


def counters(manifests: Iterable[Path]) -> dict[str, int]:
    """Return the sums of the normalize counters above zero, without those that say nothing about hostile data."""
    total: Counter[str] = Counter()
    for path in manifests:
        counts: dict[str, int] = json.loads(path.read_text())["counters"]
        total.update({name.removeprefix("normalize/"): count for name, count in counts.items()
                      if name.startswith("normalize/")})  # fmt: skip
    return {name: count for name, count in sorted(total.items()) if count and name not in UNCOUNTED}
