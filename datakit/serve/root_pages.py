"""Composes the page of a root and that of a dataset, which list datasets, steps, runs and training runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from datakit.pipeline.overview import CURRENT, ListedStep
from datakit.report.figures import Fact
from datakit.serve.followers import Follower, Followers
from datakit.serve.root import Entry, Listing, ServedRoot
from datakit.serve.run_lines import RunLine, RunLines
from datakit.serve.run_page import Filter, moment_text
from datakit.serve.step_lists import StepList, StepLists
from datakit.serve.training_state import LOSS

MOST_RUNS = 100
MOST_TRAININGS = 50
STATES = ("running", "done", "partial", "failed", "dead", "unreadable")


@dataclass(frozen=True)
class TrainingLine:
    """A training run in a list. state: "running", "silent", "dead" or "done"."""

    entry: Entry
    state: str
    step: int
    loss: float | None


@dataclass(frozen=True)
class DatasetLine:
    """A dataset in a list. runs: the number of runs that have a log."""

    name: str
    runs: int
    trainings: int
    newest: str


@dataclass(frozen=True)
class RootPage:
    """The content of the page about a root, or about one of its datasets. steps: those of the dataset; empty for a
    root. report: True if there can be a report about the dataset, because it has a current step.
    """

    title: str
    dataset: str
    facts: tuple[Fact, ...]
    datasets: tuple[DatasetLine, ...]
    runs: tuple[RunLine, ...]
    more_runs: int
    trainings: tuple[TrainingLine, ...]
    filters: tuple[Filter, ...]
    steps: tuple[ListedStep, ...] = ()
    problems: tuple[str, ...] = ()
    report: bool = False


@dataclass
class RootPages:
    """Makes the pages of a root."""

    root: ServedRoot
    lines: RunLines
    followers: Followers
    steps: StepLists = field(init=False)

    def __post_init__(self) -> None:
        self.steps = StepLists(self.root)

    def page(self, query: Mapping[str, str], dataset: str = "") -> RootPage:
        """Return the page about a dataset or, if none is given, about the root."""
        listing = self.root.listing()
        chosen = query.get("state", "")
        entries = sorted(listing.of("run", dataset or None), key=lambda one: one.name, reverse=True)
        lines = [self.lines.line(one) for one in entries[:MOST_RUNS]]
        shown = tuple(line for line in lines if chosen in ("", line.state))
        trainings = listing.of("training", dataset or None)[:MOST_TRAININGS]
        found = self.steps.of(dataset) if dataset else StepList()
        unseen = listing.hidden + found.hidden
        hidden = f"{unseen:,} of the directories are not shown: their names are not those of datasets or runs, "
        return RootPage(
            title=dataset or "Datasets and runs",
            dataset=dataset,
            facts=_facts(listing, lines, found.steps, dataset),
            datasets=() if dataset else tuple(_dataset_line(listing, name) for name in listing.datasets),
            runs=shown,
            more_runs=max(0, len(entries) - MOST_RUNS),
            trainings=tuple(self._training_line(one) for one in trainings),
            filters=(Filter("state", chosen, STATES),),
            steps=found.steps,
            problems=(*found.problems, *([hidden + "or links lead out of the root."] if unseen else [])),
            report=any(step.state == CURRENT for step in found.steps),
        )

    def _training_line(self, entry: Entry) -> TrainingLine:
        return self.followers.of(entry).composed(_training_line)


def _training_line(follower: Follower) -> TrainingLine:
    health = follower.health()
    state = "done" if health == "ended" else health
    return TrainingLine(follower.entry, state, follower.training.step, follower.training.row.get(LOSS))


def _dataset_line(listing: Listing, name: str) -> DatasetLine:
    runs = listing.of("run", name)
    return DatasetLine(name, len(runs), len(listing.of("training", name)), runs[0].name if runs else "")


def _facts(listing: Listing, lines: list[RunLine], steps: tuple[ListedStep, ...], dataset: str) -> tuple[Fact, ...]:
    active = sum(line.state == "running" for line in lines)
    facts = [Fact("active runs", active, "count", f"of {len(lines):,} shown")]
    if not dataset:
        return (Fact("datasets", len(listing.datasets), "count"), *facts,
                Fact("training runs", len(listing.of("training")), "count"))  # fmt: skip
    last = next((step for step in reversed(steps) if step.state == CURRENT and step.totals), None)
    if last is not None and last.totals is not None:
        facts.append(Fact("documents", last.totals.rows, "count", f"in {last.stage}"))
        if last.totals.tokens is not None:
            facts.append(Fact("tokens", last.totals.tokens, "count"))
        facts.append(Fact("written", moment_text(last.written), "text"))
    return tuple(facts)
