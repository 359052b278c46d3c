"""Writes README.md for an exported model: what it is, on which data it was trained, and its evaluation metrics.

The front matter is the YAML that the model hub reads. All values are those of the run's manifest and its lineage; what
is not known is left out, and nothing is guessed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from datakit.printable import one_line
from datakit.trainer.models import load_model
from datakit.trainer.models.weights import parameter_count
from datakit.trainer.trained.find import TrainedRun


@dataclass(frozen=True)
class Source:
    """A source of the training data. license, url, revision: None if they are not recorded."""

    name: str
    license: str | None = None
    url: str | None = None
    revision: str | None = None


@dataclass(frozen=True)
class Facts:
    """The facts of a card besides the run itself. license_lines: the front matter's lines about the license. tokens:
    the number of tokens trained on. figures: the metrics of the validation sets.
    """

    family: str
    step: int
    tokens: int
    averaged: bool
    dtype: str
    sources: Sequence[Source]
    license_lines: Sequence[str]
    figures: Mapping[str, float]


def model_card(run: TrainedRun, facts: Facts) -> str:
    """Return the text of README.md."""
    lines = [*_front_matter(run, facts), f"# {_plain(run.name)}", "", *_about(run, facts), *_usage(run)]
    lines += [*_data(run, facts), *_metrics(facts), *_provenance(run)]
    return "\n".join(lines) + "\n"


def _front_matter(run: TrainedRun, facts: Facts) -> Iterator[str]:
    yield "---"
    yield "library_name: transformers"
    yield "pipeline_tag: text-generation"
    yield from facts.license_lines
    yield from ("tags:", "- datakit", f"- {facts.family}")
    yield from ("---", "")


def _about(run: TrainedRun, facts: Facts) -> Iterator[str]:
    table = load_model(run.kind).weights(run.config)
    total, active = parameter_count(table), parameter_count(table, getattr(run.config, "experts_per_token", None))
    used = f", of which a token uses {active:,}" if active != total else ""
    weights = "The weights are averages over the last steps. " if facts.averaged else ""
    yield (
        f"A language model of type `{facts.family}` with {total:,} parameters{used}. It was "
        f"trained with datakit for {facts.step:,} steps on {facts.tokens:,} tokens. {weights}The tensors are "
        f"{facts.dtype}."
    )
    yield ""


def _usage(run: TrainedRun) -> Iterator[str]:
    contract = run.contract
    ends = [("begins with", contract.bos), ("ends with", contract.eos)]
    tokens = " and ".join(f"{how} `{special.token}` (id {special.id})" for how, special in ends if special)
    yield from ("## Use", "", "```python")
    yield "from transformers import AutoModelForCausalLM, AutoTokenizer"
    yield ""
    yield 'model = AutoModelForCausalLM.from_pretrained("<this folder>", dtype="auto")'
    yield 'tokenizer = AutoTokenizer.from_pretrained("<this folder>")'
    yield 'inputs = tokenizer("Once upon a time", return_tensors="pt")'
    yield "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=50)[0]))"
    yield from ("```", "")
    yield f"In training, each document {tokens}." if tokens else "In training, no token marked the ends of documents."
    if contract.bos is None:
        yield "No token began a document, so the tokenizer adds none to a prompt."
    yield ""


def _data(run: TrainedRun, facts: Facts) -> Iterator[str]:
    yield from ("## Data", "", "| cache | identity | documents | tokens |", "|---|---|---|---|")
    for cache in run.caches:
        name = _cell(cache.manifest.dataset)
        yield f"| {name} | `{cache.manifest.identity}` | {len(cache):,} | {cache.tokens:,} |"
    yield from ("", f"All caches have the tokenizer with SHA-256 `{run.contract.tokenizer_sha256}`.", "")
    if facts.sources:
        yield from ("| source | license | from | revision |", "|---|---|---|---|")
        for one in facts.sources:
            values = (one.name, one.license, one.url, one.revision)
            yield f"| {' | '.join(_cell(value or 'not recorded') for value in values)} |"
        yield ""


def _metrics(facts: Facts) -> Iterator[str]:
    if facts.figures:
        yield from ("## Evaluation", "", "| metric | value |", "|---|---|")
        yield from (f"| {_cell(name)} | {value:.4f} |" for name, value in sorted(facts.figures.items()))
        yield ""


def _provenance(run: TrainedRun) -> Iterator[str]:
    if run.manifest is None:
        return
    details = run.manifest.details
    yield from ("## Provenance", "", f"- run: `{run.manifest.fingerprint}`")
    yield f"- code: `{json.dumps(details.get('code'), sort_keys=True)}`"
    if details.get("origin"):
        yield f"- started from: `{one_line(json.dumps(details['origin'], sort_keys=True))}`"


def _plain(name: str) -> str:
    return one_line(name)


def _cell(value: str) -> str:
    return one_line(value).replace("|", "\\|")
