"""Runs a small recipe again and again, and counts what a run could leave behind: descriptors, threads, children,
temporary files and shared memory.

    python -m tests.support.engine.repeated_runs api 50          # in one process, through `datakit.run`
    python -m tests.support.engine.repeated_runs command 200     # a process `datakit run` for each

Every fifth run fails on a bad record. The table shows the counts before, during and after; the last line is the same as
JSON. Nothing may be more after the last run than after the fifth, the first that fails. Run it where no other program
uses the same `/dev/shm` and `TMPDIR`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.faults.cluster import MARK, processes_with
from tests.support.small_shelf import prose, write_lines

COUNTED = ("descriptors", "threads", "processes", "temporary files", "shared memory")
FAILS_EVERY = 5
SAMPLE_SECONDS = 0.2
Counts = dict[str, int]
RECIPE = 'name = "r"\n[[sources]]\nname = "s"\nurl = "{folder}"\n[dedup]\n[tokenize]\ntokenizer = "bytes"\n'


def counts(mark: str = "") -> Counts:
    """Count what this process and its children hold, what lies in the temporary folder and /dev/shm, and all processes
    that carry the mark, whatever their parents.
    """
    own, marked = Path("/proc/self"), processes_with(mark) if mark else []
    found = (
        sum(1 for _ in own.joinpath("fd").iterdir()),
        sum(1 for _ in own.joinpath("task").iterdir()),
        len({process.pid for process in [*psutil.Process().children(recursive=True), *marked]}),
        sum(len(folders) + len(files) for _, folders, files in os.walk(tempfile.gettempdir())),
        sum(1 for _ in Path("/dev/shm").iterdir()),
    )
    return dict(zip(COUNTED, found, strict=True))


def make_recipes(folder: Path) -> tuple[Path, Path]:
    """Write a recipe that runs to its end, and one that fails."""
    write_lines(folder / "good" / "a.jsonl", [prose(number) for number in range(50)])
    write_lines(folder / "bad" / "a.jsonl", [prose(number) for number in range(50)])
    with (folder / "bad" / "a.jsonl").open("a") as file:
        file.write("{\n")
    for name in ("good", "bad"):
        (folder / f"{name}.toml").write_text(RECIPE.format(folder=name))
    return folder / "good.toml", folder / "bad.toml"


def by_api(recipe: Path, root: Path) -> int:
    """Run in this process; return the exit code that the command line would have."""
    import datakit
    from datakit.errors import DatakitError

    try:
        datakit.run(recipe, root, workers=2)
    except DatakitError as error:
        return error.exit_code
    return 0


def by_command(recipe: Path, root: Path) -> int:
    """Run in a process of its own."""
    command = [sys.executable, "-P", "-m", "datakit", "run", str(recipe), "--root", str(root), "--workers", "2"]
    return subprocess.run(command, capture_output=True, check=False).returncode


@contextmanager
def peaks(seen: Counts) -> Iterator[None]:
    """Keep the highest counts of the block in `seen`, without what the counting itself takes."""
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            for name, count in counts().items():
                seen[name] = max(seen.get(name, 0), count - (name == "threads"))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def repeat(run: Callable[[Path, Path], int], times: int, folder: Path, mark: str) -> list[tuple[str, Counts]]:
    """Run the recipes `times` times; return the named counts. Raises RuntimeError for a run that ends otherwise."""
    good, bad = make_recipes(folder)
    rows, seen = [("before", counts(mark))], Counts()
    for number in range(1, times + 1):
        fails = number % FAILS_EVERY == 0
        root = folder / f"root-{number}"
        with peaks(seen):
            code = run(bad if fails else good, root)
        if code != (3 if fails else 0):
            raise RuntimeError(f"run {number} ended with exit code {code}")
        rows.append((f"after {number}", counts(mark)))
        print(f"run {number}: {rows[-1][1]}", file=sys.stderr, flush=True)
    return [*rows, ("highest during a run", seen)]


def table(rows: list[tuple[str, Counts]]) -> str:
    """Format the counts before, during and after: of the first and last runs, and of some between."""
    last = len(rows) - 2
    shown = {"before", "highest during a run", *(f"after {n}" for n in (1, FAILS_EVERY, last // 4, last // 2, last))}
    lines = [f"{name:<22}" + "".join(f"{found[one]:>17}" for one in COUNTED) for name, found in rows if name in shown]
    return "\n".join([f"{'':<22}" + "".join(f"{one:>17}" for one in COUNTED), *lines])


def grown(rows: list[tuple[str, Counts]]) -> list[str]:
    """Return which counts are higher after the last run than after the fifth."""
    settled, last = rows[FAILS_EVERY][1], rows[-2][1]
    return [f"{name}: {settled[name]}, then {last[name]}" for name in COUNTED if last[name] > settled[name]]


def main(kind: str, times: str) -> int:
    """Run, print the table and JSON; return 1 if anything has grown."""
    os.environ[MARK] = mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(dir=os.environ.get("RUNS_FOLDER")) as folder:
        rows = repeat({"api": by_api, "command": by_command}[kind], int(times), Path(folder), mark)
    print(table(rows))
    print(json.dumps({"rows": rows, "grown": grown(rows)}))
    return int(bool(grown(rows)))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
