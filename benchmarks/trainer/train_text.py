"""Train for twenty minutes on three real texts and compare with n-gram models fitted on the same tokens.

    python -m benchmarks.trainer.train_text [--root DIR] [--set steps=1000] [--docs docs]

Builds the token cache (train_text_corpus.toml), trains the run of train_text.toml (or resumes it), counts unigrams and
bigrams over exactly the batches of the run, and scores all three on the held-out documents of each tag in bits per
byte. Prints the table, tokens, seconds, tokens/s and the share of time spent waiting for data. Exits with 1 if the
model does not win on every tag. `--docs` saves table and curve there.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import datakit
from benchmarks.trainer.ngram import Counts, bits_per_byte, score
from datakit.plots.training import plot_run
from datakit.trainer.commands import train_file
from datakit.trainer.load_run import load_run
from datakit.trainer.metrics.json_lines import read_metrics

HERE = Path(__file__).parent
RUN = HERE / "train_text.toml"
HEAD = """# Twenty minutes of training

`python -m benchmarks.trainer.train_text --docs docs` trains the mixture-of-experts model of
`benchmarks/trainer/train_text.toml` on two CPU cores with text from three sources (novels, Python's PEPs and the PHP
manual, with weights 0.5, 0.3 and 0.2). It also fits n-gram models to the same batches. The table gives bits per byte on
held-out documents, which were not used for training; lower is better.

"""


def corpus() -> datakit.Recipe:
    """The recipe of the three texts, from beside the checkout or from $DATAKIT_DATA."""
    recipe = datakit.load_recipe(HERE / "train_text_corpus.toml")
    if "DATAKIT_DATA" not in os.environ:
        return recipe
    folder = Path(os.environ["DATAKIT_DATA"]).resolve() / "text"
    return recipe.with_overrides([f'sources.{source.name}.url="{folder}"' for source in recipe.sources])


def compare(root: str, overrides: list[str], figures: dict[str, Any]) -> list[dict[str, Any]]:
    """One row per tag: bits per byte of the model and of both baselines."""
    run, data = load_run(RUN, root, overrides)
    assert data.token_bytes is not None, data.notes
    with data.loader() as loader:
        counts = Counts.of(loader.iterate(0, run.steps), run.model.vocabulary)
    rows = []
    for tag, batches in data.evaluations(run.steps).items():
        baselines = score(counts, batches(), data.token_bytes)
        unigram, bigram = (bits_per_byte(baselines[name][0]) for name in ("unigram", "bigram"))
        rows.append(
            {
                "tag": tag,
                "model": figures[f"eval/{tag}/bpb"],
                "unigram": unigram,
                "bigram": bigram,
                "strength": baselines["bigram"][1],
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Render the table as Markdown."""
    lines = ["| tag | model | bigram, interpolated | unigram |", "|---|---|---|---|"]
    lines += [f"| {row['tag']} | **{row['model']:.4f}** | {row['bigram']:.4f} | {row['unigram']:.4f} |" for row in rows]
    return lines


def spent(directory: str) -> list[str]:
    """Tokens, seconds and waiting of the run, from its metrics."""
    rows = read_metrics(directory)
    total = {
        name: sum(row[f"throughput/{name}"] for row in rows[1:]) for name in ("duration", "loading_time", "hook_time")
    }
    tokens = rows[-1]["throughput/total_tokens"]
    return [
        f"{tokens:,} tokens in {len(rows):,} steps, {sum(total.values()) / 60:.1f} minutes without the first step.",
        f"{tokens / total['duration']:,.0f} tokens/s; waiting for data took "
        f"{total['loading_time'] / total['duration']:.2%} of the steps' time.",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", default="./data")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="a value of the run")
    parser.add_argument("--docs", type=Path, help="folder in which to save the table and the curve")
    options = parser.parse_args()
    datakit.run(corpus(), options.root)
    outcome = train_file(RUN, options.root, options.overrides)
    rows = compare(options.root, options.overrides, outcome.figures)
    report = [*table(rows), "", *spent(outcome.directory)]
    print("\n".join(report))
    picture = plot_run(outcome.directory)
    if options.docs:
        shutil.copy(picture, options.docs / "train-text.png")
        (options.docs / "train-text.md").write_text(HEAD + "\n".join([*report, "", "![curves](train-text.png)"]) + "\n")
    lost = [row["tag"] for row in rows if row["model"] >= min(row["bigram"], row["unigram"])]
    if lost:
        print(f"the model does not beat the baselines on {', '.join(lost)}", file=sys.stderr)
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
