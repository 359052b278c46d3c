"""Defines a run's result, and computes the table that a complete run prints. For each stage, this table has the number
of documents that were read, the number that were kept, and, for each reason, the number that were dropped; all are sums
over the sources.

The numbers add up: the input of each stage is the output of the previous stage, and the output of a stage is its input
minus the documents listed as dropped. Stages that write no documents report how many documents they processed
(signatures) or marked (dedup). All counts come from manifests.
"""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from datakit.annotate.contamination.item_counts import ITEMS, TOO_SHORT
from datakit.errors import counted, counted_plural
from datakit.pipeline.root_layout import stage_order
from datakit.printable import printable
from datakit.storage.manifest import Manifest
from datakit.storage.selection.leaving_rows import FINAL

PASSES_ON = ("normalize", "select", "consolidate", "tokenize")
CAME_IN: dict[str, tuple[str, ...]] = {
    "normalize": ("normalize/records_in", "normalize/transform_added"),
    "annotate": ("annotate/documents", "annotate/quarantined"),
    "signatures": ("signatures/documents",),
    "passages": ("passages/documents",),
    "select": ("select/records_in",),
    "consolidate": ("consolidate/records_in",),
    "train-tokenizer": ("train-tokenizer/documents",),
    "tokenize": ("tokenize/documents", "tokenize/quarantined"),
}
DROPPED = {  # stage -> counter -> the reason shown to users
    "normalize": {
        "normalize/other_record_type": "records of other types",
        "normalize/other_status": "with another HTTP status",
        "normalize/other_media_type": "of other media types",
        "normalize/missing": "without a text",
        "normalize/blank": "blank",
        "normalize/duplicates": "exact duplicates",
        "normalize/where_dropped": "by where",
        "normalize/sample_dropped": "by sample",
        "normalize/limit_dropped": "by limit",
        "normalize/transform_dropped": "by transform",
        "normalize/quarantined": "quarantined",
    },
    "annotate": {"annotate/quarantined": "quarantined"},
    "select": {
        "select/dropped_exact": "exact duplicates across sources",
        "select/dropped_fuzzy": "fuzzy duplicates",
        "select/dropped_empty": "empty after editing",
        "select/dropped_unannotated": "not annotated",
        "select/dropped_equal_after_editing": "equal after editing",
    },
    "consolidate": {"consolidate/dropped_quarantined": "quarantined"},
    "tokenize": {"tokenize/quarantined": "quarantined"},
}
BY_RULE = "select/dropped_rule:"  # the beginning of the counters of documents that a rule removes
BY_FINAL_RULE = "select/dropped_final:"  # likewise for rules of [select]
BUCKET = "select/bucket_"  # the beginning of the counters of the documents in a bucket
FOUND = {
    "download": {"download/files": "files"},
    "normalize": {
        "normalize/invalid_utf8": "with invalid UTF-8 repaired",
        "normalize/nul": "with NUL removed",
        "normalize/whitespace_runs": "with white space shortened",
        "normalize/values_dropped": "values of columns left out by conflicts",
        "normalize/values_nulled": "values made null by conflicts",
        "normalize/files_not_read": "files not read because of the limit",
    },
    "select": {"select/edited": "edited", "select/equal_after_editing": "with texts that became equal"},
    "tokenize": {"tokenize/messages_without_content": "messages without content (not targets)"},
    "signatures": {"signatures/too_short": "too short for fuzzy dedup", "signatures/saturated": "saturated"},
}


@dataclass(frozen=True)
class StepResult:
    """A finished step. `reused` is True if it was already done; `seconds` is the time that this run spent on it,
    and `began` the time from the beginning of the run until then, also in seconds.

    `peak_memory` and `budget` are the peak memory and the memory budget, in bytes, of the attempt that came closest to
    its budget; both are 0 if nothing ran.
    """

    stage: str
    source: str | None
    directory: str
    manifest: Manifest = field(repr=False)  # too long to show: it may list thousands of partitions
    reused: bool
    seconds: float
    peak_memory: int = 0
    budget: int = 0
    began: float = 0.0

    @property
    def label(self) -> str:
        """The name shown to users, for example `normalize novels` or `dedup`."""
        return f"{self.stage} {self.source}" if self.source else self.stage


@dataclass(frozen=True)
class RunResult:
    """A finished run. `cache` is the token cache's directory, or None if the run has no tokenize step. `run` is the
    run's id, and `log` is the URL of its event log; both are None for a short run that found everything done. The
    result is printed as a summary of a few lines; a notebook also shows a table of the stages.
    """

    dataset: str
    root: str
    steps: tuple[StepResult, ...]
    cache: str | None
    log: str | None
    seconds: float
    run: str | None = None
    notes: tuple[str, ...] = ()

    def steps_of(self, stage: str) -> list[StepResult]:
        """Return the finished steps of one stage, in the order of the recipe's sources."""
        return [step for step in self.steps if step.stage == stage]

    @property
    def reused(self) -> bool:
        """True if every step was already done."""
        return all(step.reused for step in self.steps)

    def __repr__(self) -> str:
        return printable(summary_text(self))

    def _repr_html_(self) -> str:
        return summary_html(self)


@dataclass(frozen=True)
class StageLine:
    """Sums over the steps of one stage. Sizes are in bytes; None stands for a value that the stage does not record.

    `rows_in` counts the records or documents read, and `rows_out` the documents passed on. `dropped` counts the
    documents that were not passed on, by reason. `found` holds other counts by name, e.g. of repaired texts.
    `peak_memory` and `budget` are those of the attempt that came closest to its memory budget. `seconds` is the time
    during which at least one of the steps was open. Steps of several stages are open at the same time, so these times
    add up to more than that of the run.
    """

    stage: str
    steps: int
    reused: int
    rows_in: int | None
    rows_out: int | None
    dropped: dict[str, int]
    found: dict[str, int]
    text_bytes: int | None
    tokens: int | None
    disk_bytes: int
    seconds: float
    peak_memory: int = 0
    budget: int = 0


def stage_lines(result: RunResult) -> list[StageLine]:
    """Return a summary of a run, one StageLine per stage, in the order in which data flows through the stages."""
    ordered = sorted(result.steps, key=lambda step: stage_order(step.stage))
    return [_line(stage, list(steps)) for stage, steps in groupby(ordered, key=lambda step: step.stage)]


def _line(stage: str, steps: Sequence[StepResult]) -> StageLine:
    manifests = [step.manifest for step in steps]
    nearest = max(steps, key=lambda step: step.peak_memory / max(1, step.budget))
    counters = sum((Counter(manifest.counters) for manifest in manifests), Counter[str]())
    return StageLine(
        stage=stage,
        steps=len(steps),
        reused=sum(step.reused for step in steps),
        rows_in=sum(counters[name] for name in CAME_IN[stage]) if stage in CAME_IN else None,
        rows_out=sum(map(_rows_out, manifests)) if stage in PASSES_ON else None,
        dropped={name: counters[key] for key, name in _dropped(stage, counters).items() if counters[key]},
        found={name: counters[key] for key, name in FOUND.get(stage, {}).items() if counters[key]}
        | _buckets(counters)
        | _marked(manifests)
        | _attributes(manifests)
        | _copies(manifests),
        text_bytes=_sum([manifest.totals.text_bytes for manifest in manifests]),
        tokens=_sum([manifest.totals.tokens for manifest in manifests]),
        disk_bytes=sum(manifest.totals.bytes for manifest in manifests),
        seconds=_covered([(step.began, step.began + step.seconds) for step in steps]),
        peak_memory=nearest.peak_memory,
        budget=nearest.budget,
    )


def _dropped(stage: str, counters: Mapping[str, int]) -> dict[str, str]:
    """Return the counters of a stage that count dropped documents, each with the reason shown to users."""
    found = dict[str, str]()
    for name in sorted(counters) if stage == "select" else ():
        if name.startswith(BY_RULE):
            found[name] = f"by rule {name.removeprefix(BY_RULE)}"
        elif name.startswith(BY_FINAL_RULE):
            found[name] = f"by final rule {name.removeprefix(BY_FINAL_RULE).replace(FINAL, '')}"
    return found | DROPPED.get(stage, {})


def _buckets(counters: Mapping[str, int]) -> dict[str, int]:
    """Return the number of documents in each bucket, by the text shown to users."""
    names = [name for name in counters if name.startswith(BUCKET)]
    return {f"in bucket {name.removeprefix(BUCKET)}": counters[name] for name in names if counters[name]}


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the total time that lies in at least one of these spans, each given by its start and its end."""
    total, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        total += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return total


def _rows_out(manifest: Manifest) -> int:
    """Return the number of documents that a stage keeps. The rows of a selection are the documents that leave."""
    return manifest.counters["select/records_out"] if manifest.stage == "select" else manifest.totals.rows


def summary_text(result: RunResult) -> str:
    """Return a description of a run in a few lines: documents, tokens, what was dropped and why, and where the output
    is.
    """
    lines = {line.stage: line for line in stage_lines(result)}
    dropped = Counter[str]()
    for line in lines.values():
        if line.stage != "consolidate" or "tokenize" not in lines:  # tokenize does not read the output of consolidate
            dropped.update(line.dropped)
    kept = next((line.rows_out for line in reversed(lines.values()) if line.rows_out is not None), None)
    came = lines["normalize"].rows_in if "normalize" in lines else None
    tokens = lines["tokenize"].tokens if "tokenize" in lines else None
    ending = "everything was already done" if result.reused else f"done in {result.seconds:,.1f} s"
    reasons = ", ".join(counted_plural(count, why) for why, count in dropped.items())
    facts = {
        "documents": f"{kept:,} of {came:,} kept" if kept is not None and came is not None else "",
        "dropped": reasons,
        "tokens": f"{tokens:,}" if tokens is not None else "",
        "cache": result.cache or "",
        "run": result.run or "",
        "output": "" if result.cache or not result.steps else result.steps[-1].directory,
    }
    title = f"{result.dataset}: {counted(len(result.steps), 'step')}, {ending}"
    return "\n".join([title, *(f"  {name + ':':<11}{fact}" for name, fact in facts.items() if fact)])


def summary_html(result: RunResult) -> str:
    """Return the summary as HTML, with a table of the stages."""
    title, *facts = summary_text(result).splitlines()
    rows: list[tuple[str, ...]] = [("stage", "in", "kept", "tokens", "seconds")]
    for line in stage_lines(result):
        counts = ("" if value is None else f"{value:,}" for value in (line.rows_in, line.rows_out, line.tokens))
        rows.append((line.stage, *counts, f"{line.seconds:,.1f}"))
    table = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    below = "<br>".join(_cell(fact.strip()) for fact in facts)
    return f"<b>{_cell(title)}</b><table>{table}</table>{below}"


def _cell(text: str) -> str:
    return html.escape(printable(text))


def _marked(manifests: Sequence[Manifest]) -> dict[str, int]:
    """Return the number of documents that dedup marked, by reason, and the number of tokens in a trained vocabulary."""
    found = Counter[str]()
    for manifest in manifests:
        if manifest.stage == "dedup":
            for counts in manifest.details["sources"].values():
                found.update({"marked exact": counts["exact"], "marked fuzzy": counts["fuzzy"]})
        if manifest.stage == "train-tokenizer":
            found["tokens in the vocabulary"] = manifest.totals.rows
    return dict(found)


def _attributes(manifests: Sequence[Manifest]) -> dict[str, int]:
    """Return what annotators counted in addition to the rows of their tables, such as the documents with items of each
    evaluation set. The items themselves do not depend on the source; only sets with some too short items are listed.
    """
    found: dict[str, int] = {}
    for manifest in manifests:
        for name, count in manifest.counters.items() if manifest.stage == "annotate" else ():
            shown = name.removeprefix("annotate/")
            if shown.startswith(ITEMS):
                if count and shown.endswith(TOO_SHORT):
                    short = f"items of {shown.removeprefix(ITEMS).removesuffix(TOO_SHORT)} too short to be found"
                    found[short] = max(count, found.get(short, 0))
            elif name.count("/") > 1:
                found[shown] = found.get(shown, 0) + count
    return dict(sorted(found.items()))


def _copies(manifests: Sequence[Manifest]) -> dict[str, int]:
    """Return how many copies of passages each search has marked."""
    found = Counter[str]()
    for manifest in manifests:
        if manifest.stage == "passages":
            prefix = "passages/marked/"
            for name, count in manifest.counters.items():
                if name.startswith(prefix):
                    found[f"copies of {name.removeprefix(prefix)}"] += count
    return dict(sorted(found.items()))


def _sum(values: Sequence[int | None]) -> int | None:
    return None if any(value is None for value in values) else sum(value for value in values if value is not None)
