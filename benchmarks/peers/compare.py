"""Runs commands of datakit and of other programs in turn, on the same texts, and prints the CPU-seconds of their whole
process trees as medians, with the ratio of the other program's median to datakit's.

    python -m benchmarks.peers.compare cache TEXTS --python PEERS/bin/python [--rounds 3] [--workers 2]

    cache             from JSON Lines to a token cache: datatrove
    near-duplicates   from normalized Parquet to verdicts: rensa, datasketch, text-dedup
    exact-duplicates  from JSON Lines to normalized Parquet: a floor written by hand, Polars, DuckDB

TEXTS is a directory that `scaled_text.py` has written. --python: the interpreter of the environment with the other
programs. --only: run only these programs, for example `--only datakit floor`. A run before the first round, which does
not count, compiles datakit's kernels if necessary.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.process_tree import Usage, measured
from tests.support.data import data_dir

HERE = Path(__file__).parent
TOKENIZER = "tokenizers/gpt-neox-olmo-dolma-v1_5.json"
NORMALIZED = "sources/*/normalize-*/data/**/*.parquet"
OURS = "datakit"


@dataclass(frozen=True)
class Setting:
    """The input and the options of a comparison. scratch: a directory that is emptied before each command."""

    texts: Path
    scratch: Path
    python: str
    workers: int

    @property
    def recipe(self) -> Path:
        """A recipe with one source for each of the original files. It lies beside `scratch`."""
        path = self.scratch.parent / "texts.toml"
        names = sorted({file.name.split(".")[0] for file in self.texts.iterdir()})
        sources = [f'[[sources]]\nname = "{name}"\nurl = "{self.texts}"\ninclude = ["{name}.*"]\n' for name in names]
        tokenizer = (data_dir() / TOKENIZER).resolve()
        path.write_text('name = "texts"\n' + "".join(sources) + f'[dedup]\n[tokenize]\ntokenizer = "{tokenizer}"\n')
        return path

    @property
    def one_file(self) -> Path:
        """The ids and texts of all normalized documents in one Parquet file."""
        return self.scratch.parent / "texts.parquet"

    def datakit(self, *options: str) -> list[str]:
        """Return a command of datakit that runs the recipe in `scratch`."""
        root, workers = str(self.scratch), str(self.workers)
        return [sys.executable, "-m", "datakit", "run", str(self.recipe), "--root", root, "--workers", workers,
                *options]  # fmt: skip

    def peer(self, script: str, *arguments: str) -> list[str]:
        """Return a command of one of the scripts beside this file."""
        return [self.python, str(HERE / script), *arguments]


Commands = dict[str, list[str]]


def cache(setting: Setting) -> Commands:
    """Commands from texts to a token cache."""
    tokenizer = str((data_dir() / TOKENIZER).resolve())
    arguments = (str(setting.texts), str(setting.scratch), tokenizer, "--workers", str(setting.workers))
    return {OURS: setting.datakit(), "datatrove": setting.peer("datatrove_cache.py", *arguments)}


def near_duplicates(setting: Setting) -> Commands:
    """Commands from normalized Parquet to verdicts. `prepare_normalized` puts the texts into `scratch`."""
    arguments = (str(setting.scratch), NORMALIZED)
    peers = {name: setting.peer("near_duplicates.py", name, *arguments) for name in ("rensa", "datasketch")}
    text_dedup = [
        setting.python, "-m", "text_dedup.minhash", "--path", "parquet", "--split", "train", "--column", "text",
        "--data_files", str(setting.one_file), "--cache_dir", str(setting.scratch / "datasets"),
        "--output", str(setting.scratch / "retained"), "--num_proc", str(setting.workers),
        "--num_perm", "112", "--b", "14", "--r", "8", "--ngram", "5", "--hash_func", "xxh3",
    ]  # fmt: skip
    return {OURS: setting.datakit("--until", "dedup"), **peers, "text-dedup": text_dedup}


def exact_duplicates(setting: Setting) -> Commands:
    """Commands from texts to Parquet without exact duplicates."""
    output = str(setting.scratch / "output.parquet")
    peers = {
        name: setting.peer("exact_duplicates.py", name, str(setting.texts), output)
        for name in ("floor", "polars", "duckdb")
    }
    return {OURS: setting.datakit("--until", "normalize"), **peers}


def prepare_empty(setting: Setting) -> None:
    """Empty the scratch directory."""
    shutil.rmtree(setting.scratch, ignore_errors=True)
    setting.scratch.mkdir()


def prepare_normalized(setting: Setting) -> None:
    """Fill the scratch directory with links to the files of a root in which normalize is done. text-dedup needs one
    schema for all files, so it gets all texts as one file, which is written outside its command.
    """
    normalized = setting.scratch.parent / "normalized"
    if not normalized.exists():
        prepare_empty(setting)
        subprocess.run(setting.datakit("--until", "normalize"), check=True, capture_output=True)
        copy = setting.peer("near_duplicates.py", "copy", str(setting.scratch), NORMALIZED, str(setting.one_file))
        subprocess.run(copy, check=True, capture_output=True)
        setting.scratch.rename(normalized)
    shutil.rmtree(setting.scratch, ignore_errors=True)
    subprocess.run(["cp", "-al", str(normalized), str(setting.scratch)], check=True)


COMPARISONS: dict[str, tuple[Callable[[Setting], Commands], Callable[[Setting], None]]] = {
    "cache": (cache, prepare_empty),
    "near-duplicates": (near_duplicates, prepare_normalized),
    "exact-duplicates": (exact_duplicates, prepare_empty),
}


def rounds(setting: Setting, name: str, count: int, only: Sequence[str]) -> dict[str, list[Usage]]:
    """Run the commands of a comparison in turn, `count` times."""
    commands_of, prepare = COMPARISONS[name]
    commands, found = commands_of(setting), defaultdict[str, list[Usage]](list)
    prepare(setting)
    measured(commands[OURS], setting.scratch.parent / "first.log")
    for number in range(count):
        for program, command in commands.items():
            if not only or program in only:
                prepare(setting)
                usage = measured(command, setting.scratch.parent / f"{program}.{number}.log")
                print(f"{program}: {usage.cpu:,.1f} CPU s, {usage.wall:,.1f} s", file=sys.stderr)
                found[program].append(usage)
    return found


def table(found: dict[str, list[Usage]]) -> str:
    """Render the medians as Markdown."""
    ours = statistics.median(usage.cpu for usage in found[OURS]) if OURS in found else None
    lines = ["| program | CPU s | wall s | largest process, MB | ratio |", "|---|--:|--:|--:|--:|"]
    for program, usages in found.items():
        cpu = [usage.cpu for usage in usages]
        ratio = f"{statistics.median(cpu) / ours:.1f}" if ours else "-"
        spread = f"{statistics.median(cpu):,.1f} ({min(cpu):,.1f} to {max(cpu):,.1f})"
        wall, largest = (statistics.median(getattr(usage, key) for usage in usages) for key in ("wall", "largest"))
        lines.append(f"| {program} | {spread} | {wall:,.1f} | {largest / 1e6:,.0f} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    """Measure one comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("comparison", choices=COMPARISONS)
    parser.add_argument("texts", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--scratch", type=Path, help="where to write (a temporary directory by default)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="datakit-peers-", dir=arguments.scratch) as folder:
        texts = arguments.texts.resolve()
        setting = Setting(texts, Path(folder) / "scratch", arguments.python, arguments.workers)
        print(table(rounds(setting, arguments.comparison, arguments.rounds, arguments.only)))


if __name__ == "__main__":
    main()
