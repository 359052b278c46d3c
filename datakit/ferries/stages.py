"""Implements the stages of a ferry. Most of them run a datakit command, as a user would, and check its result.

A stage raises StageError if something is wrong. A stage whose cost is measured adds a part to the record. `warm-up` is
not measured, because it compiles kernels; neither is `report`, which only draws a page, nor `compare`, which runs no
command.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datakit.engine import interpreter
from datakit.exit_codes import ExitCode
from datakit.ferries.calibration import Calibration, calibrate, mean
from datakit.ferries.child import Usage, run_datakit, run_program
from datakit.ferries.ferry import Ferry, Stage, Training
from datakit.ferries.inputs import RECIPES, copy_recipe, recipe_file, write_warm_up
from datakit.ferries.pipeline_parts import bytes_written, pipeline_parts, step_outputs
from datakit.ferries.record import Failure, Part, Record, StepOutput
from datakit.storage import urls
from datakit.trainer.metrics.json_lines import FILE_NAME as METRICS

GENERATOR = "from datakit.ferries.skewed_text import main; main()"
LOSS = "train/loss"
LOGS = "logs"


class StageError(Exception):
    """A stage that found something wrong. exit_code: that of `datakit ferry run`. log: the file with the messages of
    the command that failed, "" if there is none.
    """

    def __init__(self, failures: list[Failure], exit_code: ExitCode = ExitCode.FAILURE, log: str = "") -> None:
        super().__init__("; ".join(map(str, failures)))
        self.failures, self.exit_code, self.log = failures, exit_code, log


@dataclass
class FerryRun:
    """A ferry that is running, and what it has found so far. folder: a local folder for inputs and logs, which is the
    root if the root is on a disk. history: the earlier records of the ferry. dataset, training: the directories of the
    dataset and of the training run, "" until they exist. last: the newest calibration. written: the number of bytes
    that the pipeline has written.
    """

    ferry: Ferry
    root: str
    folder: Path
    scale: float
    ray: str | None
    history: list[Record]
    parts: list[Part] = field(default_factory=list)
    steps: dict[str, StepOutput] = field(default_factory=dict)
    figures: dict[str, float] = field(default_factory=dict)
    compared_steps: int = 0
    dataset: str = ""
    training: str = ""
    page: str = ""
    last: Calibration | None = None
    commands: int = 0
    written: int = 0

    def stem(self, stage: str) -> Path:
        """Return the path, without suffix, of the files with the output of the next command."""
        self.commands += 1
        place = self.folder / LOGS
        place.mkdir(exist_ok=True)
        return place / f"{self.commands:02d}-{stage}"

    def measured(self, stage: Stage, run: Callable[[Path], Usage], steady: bool = True) -> tuple[Usage, Path]:
        """Run a command between two calibrations, and add a part to the record."""
        before = self.last or calibrate()
        stem = self.stem(stage)
        usage = run(stem)
        self.last = calibrate()
        factors = mean(before, self.last)
        self.parts.append(
            Part(stage, usage.wall_seconds, usage.cpu_seconds, usage.peak_rss, factors, steady=steady)
        )  # fmt: skip
        if usage.left_behind:
            raise StageError([Failure(stage, "a process was left behind")], log=f"{stem}.log")
        return usage, stem

    def training_settings(self) -> Training:
        """Return the training run of the ferry."""
        if self.ferry.training is None:
            raise AssertionError(f"the ferry {self.ferry.name} has a training stage but no training run")
        return self.ferry.training


def require(stage: Stage, usage: Usage, stem: Path, expected: int = 0) -> None:
    """Raise StageError unless a command ended with the expected exit code. The exit code of the ferry is INVALID if
    that of the command is, and FAILURE otherwise.
    """
    if usage.code != expected:
        code = ExitCode.INVALID if usage.code == ExitCode.INVALID else ExitCode.FAILURE
        raise StageError([Failure(stage, f"the command ended with exit code {usage.code}")], code, f"{stem}.log")


def output(stem: Path) -> dict[str, Any]:
    """Return the JSON object that a command printed."""
    return json.loads(stem.with_suffix(".out").read_bytes())


def generate(ferry_run: FerryRun) -> None:
    """Generate the texts."""
    arguments = (str(ferry_run.folder / "texts"), str(ferry_run.scale))
    program = interpreter.command(GENERATOR, *arguments)
    usage, stem = ferry_run.measured("generate", lambda stem: run_program(program, stem))
    require("generate", usage, stem)
    copy_recipe(ferry_run.ferry.recipe, ferry_run.folder)


def warm_up(ferry_run: FerryRun) -> None:
    """Compile all kernels, by running the pipeline on a few documents."""
    folder = ferry_run.folder / "warm-up"
    recipe, stem = write_warm_up(folder), ferry_run.stem("warm-up")
    require("warm-up", run_datakit(["run", str(recipe), "--root", str(folder / "root")], stem), stem)


def run_words(ferry_run: FerryRun) -> list[str]:
    """Return the arguments of the datakit command that runs the ferry's recipe."""
    file = recipe_file(ferry_run.ferry.recipe)
    own = ferry_run.folder / ferry_run.ferry.recipe
    recipe = ferry_run.ferry.recipe if file is None else str(own if own.exists() else file)
    ray = ["--ray", ferry_run.ray] if ferry_run.ray else []
    return ["run", recipe, "--root", ferry_run.root, "--json", *ray]


def run(ferry_run: FerryRun) -> None:
    """Run the pipeline."""
    usage, stem = ferry_run.measured("run", lambda stem: run_datakit(run_words(ferry_run), stem))
    require("run", usage, stem)
    found = output(stem)
    ferry_run.dataset = urls.join(ferry_run.root, found["dataset"])
    ferry_run.parts += pipeline_parts(found, ferry_run.parts[-1].factors)
    ferry_run.steps |= step_outputs(found)
    ferry_run.written = bytes_written(found)


def validate(ferry_run: FerryRun) -> None:
    """Validate all steps of the dataset with `datakit validate`."""
    words = ["validate", ferry_run.dataset, "--json"]
    usage, stem = ferry_run.measured("validate", lambda stem: run_datakit(words, stem))
    require("validate", usage, stem)


def train_words(ferry_run: FerryRun) -> list[str]:
    """Return the arguments of the datakit command that trains."""
    training = ferry_run.training_settings()
    file = RECIPES / training.run_file
    return ["train", str(file), "--root", ferry_run.root, "--set", f"steps={training.steps}", "--json"]


def train(ferry_run: FerryRun) -> None:
    """Train without an interruption."""
    usage, stem = ferry_run.measured("train", lambda stem: run_datakit(train_words(ferry_run), stem))
    require("train", usage, stem)
    check_training(ferry_run, "train", output(stem), stem)


def interrupt(ferry_run: FerryRun) -> None:
    """Train, and send SIGTERM in the middle."""
    middle = ferry_run.training_settings().steps // 2

    def stop() -> bool:
        return logged_steps(Path(urls.local_path(ferry_run.root))) >= middle

    usage, stem = ferry_run.measured("interrupt", lambda stem: run_datakit(train_words(ferry_run), stem, stop), False)
    if usage.code == ExitCode.DONE:
        raise StageError([Failure("interrupt", "the run ended before it could be stopped")], log=f"{stem}.log")
    require("interrupt", usage, stem, ExitCode.TERMINATED)


def resume(ferry_run: FerryRun) -> None:
    """Continue the training run that was stopped."""
    usage, stem = ferry_run.measured("resume", lambda stem: run_datakit(train_words(ferry_run), stem), False)
    require("resume", usage, stem)
    found = output(stem)
    if not found["resumed_from"]:
        raise StageError([Failure("resume", "training began again instead of resuming")], log=f"{stem}.log")
    check_training(ferry_run, "resume", found, stem)


def logged_steps(root: Path) -> int:
    """Return the number of training steps whose metrics have been written."""
    files = list(root.glob(f"*/train-*/{METRICS}"))
    return sum(file.read_bytes().count(b"\n") for file in files)


def check_training(ferry_run: FerryRun, stage: Stage, found: dict[str, Any], stem: Path) -> None:
    """Raise StageError unless all steps were taken and the loss is below its bound."""
    training = ferry_run.training_settings()
    loss = float(found["figures"].get(LOSS, float("nan")))
    ferry_run.figures[LOSS] = loss
    ferry_run.training = found["directory"]
    if found["steps"] != training.steps:
        raise StageError([Failure(stage, "not all steps were taken", f"{found['steps']} of {training.steps}")])
    if not loss < training.loss_below:
        detail = f"{loss:.4f}, which is not below {training.loss_below}"
        raise StageError([Failure(stage, "the loss is too high", detail)], log=f"{stem}.log")


def validate_training(ferry_run: FerryRun) -> None:
    """Validate the training run with `datakit validate --deep`, which also makes its last logged batch again."""
    words = ["validate", ferry_run.training, "--deep", "--json"]
    usage, stem = ferry_run.measured("validate-training", lambda stem: run_datakit(words, stem))
    require("validate-training", usage, stem)


def again(ferry_run: FerryRun) -> None:
    """Run the pipeline again: every step must be found done, with the same output."""
    usage, stem = ferry_run.measured("again", lambda stem: run_datakit(run_words(ferry_run), stem))
    require("again", usage, stem)
    found = output(stem)
    if not found["reused"]:
        raise StageError([Failure("again", "a finished step ran again")], log=f"{stem}.log")
    if step_outputs(found) != ferry_run.steps:
        raise StageError([Failure("again", "a finished step changed")], ExitCode.INVALID)


def compare(ferry_run: FerryRun) -> None:
    """Compare the bytes of every step with those of the newest sound ferry that made a step with the same identity."""
    earlier = {step.identity: step for record in ferry_run.history if record.sound for step in record.steps.values()}
    known = {label: earlier[step.identity] for label, step in ferry_run.steps.items() if step.identity in earlier}
    ferry_run.compared_steps = len(known)
    failures = [
        Failure("compare", f"{label} has other bytes than before")
        for label, step in known.items()
        if step.checksum != ferry_run.steps[label].checksum
    ]
    if failures:
        raise StageError(failures, ExitCode.INVALID)


def report(ferry_run: FerryRun) -> None:
    """Write the page."""
    stem = ferry_run.stem("report")
    require("report", run_datakit(["report", ferry_run.dataset, "--output", str(ferry_run.folder)], stem), stem)
    ferry_run.page = stem.with_suffix(".out").read_text().strip()


STAGES: dict[Stage, Callable[[FerryRun], None]] = {
    "generate": generate, "warm-up": warm_up, "run": run, "validate": validate, "train": train, "interrupt": interrupt,
    "resume": resume, "validate-training": validate_training, "again": again, "compare": compare, "report": report,
}  # fmt: skip
MEASURED: tuple[Stage, ...] = ("run", "validate", "train", "interrupt", "resume", "validate-training", "again")
