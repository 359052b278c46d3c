"""Makes all checks of a step, a dataset, a root or a training run, one step after another.

    for finding in validate("data").findings:
        print(finding)

Files that differ from their checksums are not read by later checks, of any step, so one damaged file is reported once.
Memory does not grow with the dataset: only one step's manifest and those of its inputs are held. Arrow's unused memory
is returned after every check.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from datakit.errors import CorruptError, UsageError
from datakit.storage import urls
from datakit.storage.manifest import Manifest, Quarantine, Totals, find_manifest, manifest_url
from datakit.storage.stale_files import scratch_directory
from datakit.validate.checks import ARROW, CHECKS, checks_of
from datakit.validate.finding import Finding, Result
from datakit.validate.intact import CONTRADICTION
from datakit.validate.memory import return_unused
from datakit.validate.subject import TRAIN, Settings, Subject, is_installed, open_subject
from datakit.validate.targets import Targets, is_run, targets_of

if TYPE_CHECKING:
    from datakit.validate.between.text_store import TextStore

DEDUP, CACHE = "dedup", "tokenize"
Progress = Callable[[int, int, str], None]  # called with the number of steps done, that of all steps, and what is next


@dataclass
class StepReport:
    """The results of all checks of a step. stage, name: the step's stage, and its source or dataset."""

    directory: str
    stage: str
    name: str
    results: list[Result] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """All differences of the step."""
        return [one for result in self.results for one in result.findings]


@dataclass
class Report:
    """The reports of all steps of a directory, and the targets, which also have findings."""

    targets: Targets
    steps: list[StepReport] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """All differences, each once."""
        return list(dict.fromkeys([*self.targets.findings, *(one for step in self.steps for one in step.findings)]))


def validate(
    place: str, *, deep: bool = False, training_step: int | None = None, progress: Progress = lambda *_: None
) -> Report:
    """Check a step, a dataset, a root or a training run. deep: compare the similarity of every removed document
    instead of a sample, and the last logged batch of each training run. training_step: the logged step of a training
    run for which to make the batch again. Raises the errors of `targets_of`.
    """
    targets = targets_of(place)
    if training_step is not None and not any(urls.name(step).startswith(f"{TRAIN}-") for step in targets.steps):
        raise UsageError(f"--training-step {training_step}: {place} is not a training run; give the directory of one")
    report = Report(targets)
    settings = Settings(deep=deep, whole=bool(targets.root), training_step=training_step)
    with scratch_directory() as folder:
        texts = _texts_for_later(targets, folder, settings)
        _check_all(report, replace(settings, texts=texts), progress)
    return report


def _check_all(report: Report, settings: Settings, progress: Progress) -> None:
    targets = report.targets
    for number, directory in enumerate(targets.steps):
        subject, problem = _subject(directory, settings)
        manifest = subject.manifest
        one = StepReport(directory, manifest.stage, manifest.dataset)
        for check in checks_of(manifest.stage):
            progress(number, len(targets.steps), f"{manifest.stage} {manifest.dataset}: {check.name}")
            if subject.finished or check.function.startswith("training."):
                one.results.append(check.run(subject))
                return_unused()
        if problem:
            one.results[0].find(subject.manifest_url, f"{CONTRADICTION}{problem}")
        report.steps.append(one)


def _texts_for_later(targets: Targets, folder: Path, settings: Settings) -> TextStore | None:
    """Return the store of the texts that checks of dedup and of the cache need, if the documents are checked, too."""
    steps = [directory for directory in targets.steps if urls.name(directory).startswith((f"{DEDUP}-", f"{CACHE}-"))]
    if len(steps) in (0, len(targets.steps)) or not all(is_installed(name) for name in (*ARROW, "tokenizers")):
        return None
    from datakit.validate.between.text_store import TextStore

    store = TextStore(folder)
    for directory in steps:
        step = _subject(directory, settings)[0]
        if step.manifest.stage == DEDUP:
            store.want(step, targets.steps)
        else:
            store.want_sample(step)
    return store


def _subject(directory: str, settings: Settings) -> tuple[Subject, str]:
    manifest = find_manifest(directory)
    if manifest is None:
        manifest = _unfinished_run(directory)
    return open_subject(directory, manifest, settings)


def _unfinished_run(directory: str) -> Manifest:
    """Return an empty manifest for a training run that has none yet."""
    if not is_run(directory):
        raise CorruptError(
            f"{manifest_url(directory)} was removed while the steps were checked; run this command again"
        )
    name = urls.name(urls.parent(directory))
    return Manifest(TRAIN, name, "", "", {}, [], [], [], Totals(0, 0), {}, Quarantine(0))


def plain(report: Report) -> dict[str, object]:
    """Return a report as JSON values."""
    known = {check.name: check for check in CHECKS}
    steps = [
        {
            "directory": step.directory,
            "stage": step.stage,
            "name": step.name,
            "checks": [
                {"check": one.check, "proves": known[one.check].proves, "cost": known[one.check].cost,
                 "compared": dict(sorted(one.amounts.items())), "findings": len(one.findings), "skipped": one.skipped}
                for one in step.results
            ],
        }
        for step in report.steps
    ]  # fmt: skip
    found = msgspec.to_builtins(report.findings)
    return {"directory": report.targets.place, "intact": not found, "steps": steps, "findings": found,
            "unfinished": report.targets.unfinished, "refused": None}  # fmt: skip
