"""Implements `datakit train`, `datakit train plot` and `datakit eval`: their options, and the metrics they print."""

from __future__ import annotations

import shlex
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from datakit.cli.console import note, say, say_json, table
from datakit.cli.parameters import Documents, Flag, Settings
from datakit.errors import UsageError

if TYPE_CHECKING:
    from datakit.trainer.train import Outcome


def train_model(
    run: str | None = None,
    /,
    *,
    root: str = "./data",
    set_: Settings = (),
    without: Documents = (),
    step: int | None = None,
    dry_run: Flag = False,
    flops: float | None = None,
    hidden: int | None = None,
    cache: str | None = None,
    kind: str | None = None,
    sequence: int | None = None,
    output: str | None = None,
    json: Flag = False,
) -> int:
    """Train a model on token caches.

    Resumes from the run's newest checkpoint. A finished run is not repeated. With --flops, --hidden and --cache instead
    of a run file, the run is sized as by `datakit size`, its run file is written, and it is trained.

    Examples:
      datakit train demo
      datakit train my-run.toml --root /big/disk --set steps=5000
      datakit train data/demo-train/train-0123456789ab
      datakit train demo --step 120 --without 5f0cd7a1b2c3d4e5f60718293a4b5c6d
      datakit train my-run.toml --dry-run
      datakit train --flops 1e18 --hidden 512 --cache data/books
      datakit train plot data/demo-train/train-0123456789ab

    Exit code 5 means that the loss, a gradient or a weight is NaN or infinite. The last good checkpoint is kept.

    Parameters
    ----------
    run
        A run file (TOML), the name of a built-in run, or the directory of a run.
    root
        The directory that holds the runs. Its path also replaces {root} in the paths of caches in the run file.
    set_
        Override a value of the run file, for example optimizer.learning_rate=0.01. Can be repeated.
    without
        Exclude the document with this id from --step on, in a new run that goes on from the checkpoint before that
        step: the document keeps its place in each batch, but does not count toward the loss. Can be repeated;
        `datakit explain` shows ids.
    step
        The step from which on --without applies, counted from 1 as in metrics.jsonl.
    dry_run
        Report the kernels, and the memory that a step needs, without training.
    flops
        Compute budget of a run to be sized, in floating-point operations.
    hidden
        Width of the model of a run to be sized.
    cache
        The token cache, or dataset, of a run to be sized.
    kind
        The model of a run to be sized, as for `datakit size`; by default grug.
    sequence
        Sequence length of a run to be sized; by default 4096.
    output
        The run file to write for a run to be sized; by default <cache>-<flops>-<hidden>.toml in the current directory.
    json
        Print the result as one JSON object.
    """
    if (step is None) == bool(without):
        raise UsageError("give --without and --step together: the documents, and the step from which to exclude them")
    sizes = {"--flops": flops, "--hidden": hidden, "--cache": cache}
    options = {**sizes, "--kind": kind, "--sequence": sequence, "--output": output}
    given = {name: value for name, value in options.items() if value is not None}
    if run is not None and given:
        raise UsageError(
            f"{', '.join(given)}: these options size a new run, but {run} is given; give only one of the two"
        )
    if run is None and not sizes.keys() <= given.keys():
        raise UsageError(f"give a run file or the name of a built-in run, or else all of {', '.join(sizes)}")
    if without and (run is None or dry_run):
        raise UsageError("--without needs a run that has begun, and --dry-run trains nothing; leave one of them out")
    from datakit.engine.freed_memory import keep_all_freed_memory
    from datakit.trainer import require_jax

    require_jax()
    keep_all_freed_memory()
    _end_at_sigterm()
    if run is None:
        assert flops is not None and hidden is not None and cache is not None
        run = _sized(flops, hidden, cache, output, kind=kind or "grug", sequence=sequence or 4096)
    if dry_run:
        return _dry_run(run, root, set_, json)
    outcome = _outcome(run, root, set_, without, step)
    if json:
        say_json(outcome)
        return 0
    say(outcome.directory)
    for name, value in sorted(outcome.figures.items()):
        note(f"{name}  {value:.4f}")
    note(f"plot:      datakit train plot {outcome.directory}")
    if any(name.startswith("eval/") for name in outcome.figures):
        changes = "".join(f" --set {shlex.quote(change)}" for change in set_)
        target = outcome.directory if without else f"{run} --root {root}{changes}"
        note(f"evaluate:  datakit eval {target}")
    return 0


def _outcome(run: str, root: str, changes: Settings, without: Documents, step: int | None) -> Outcome:
    if step is not None:
        from datakit.trainer.explain.counterfactual import train_without

        return train_without(run, step, without, root, changes)
    from datakit.trainer.commands import train_file

    return train_file(run, root, changes)


def _sized(flops: float, hidden: int, cache: str, output: str | None, *, kind: str, sequence: int) -> str:
    """Write the run file of a run with this budget, print the plan, and return the file's path."""
    from datakit.trainer.sizes import run_file

    folder = Path(output).resolve().parent if output else Path()
    plan, text = run_file.sized(flops, hidden, cache, kind=kind, sequence=sequence, folder=folder)
    path = Path(output) if output else run_file.default_path(text)
    run_file.write(text, path)
    for line in plan.lines():
        note(line)
    note(f"run file    {path}")
    return str(path)


def _dry_run(run: str, root: str, changes: tuple[str, ...], json: bool) -> int:
    from datakit.trainer.dry_run import dry_run

    report = dry_run(run, root, changes)
    if json:
        say_json(report)
        return 0
    head = ["sequences", "length", "passes", "needs, MB", "of, MB", "fits"]
    words = {True: "yes", False: "no", None: "unknown"}
    rows = [
        [step.rows, step.length, step.passes, step.total // 10**6, step.room and step.room // 10**6, words[step.fits]]
        for step in report.steps
    ]
    say(table(head, rows))
    more = "".join(f" --set {shlex.quote(change)}" for change in changes)
    proposals = [option for step in report.steps for option in step.proposals[:1]]
    note(f"train:     datakit train {run} --root {root}{more}{''.join(f' {option}' for option in proposals[-1:])}")
    return 0


def plot(directory: str, /, *, output: str | None = None) -> int:
    """Plot a run: losses, bits per byte, learning rates and speed. Also works while the run is in progress.

    Examples:
      datakit train plot data/demo-train/train-0123456789ab
      datakit train plot data/demo-train/train-0123456789ab --output curve.svg

    Parameters
    ----------
    directory
        The directory of a training run.
    output
        File to write (.png, .svg or .pdf); by default plot.png in the run's directory.
    """
    from datakit.plots.training import plot_run

    say(plot_run(directory, output))
    return 0


def evaluate(
    run: str, /, *, root: str = "./data", checkpoint: str | None = None, set_: Settings = (), json: Flag = False
) -> int:
    """Evaluate a checkpoint on a run's validation sets: loss and bits per byte, for each tag.

    Examples:
      datakit eval demo
      datakit eval my-run.toml --checkpoint data/my-run/train-0123456789ab/checkpoints/step-000001000

    Parameters
    ----------
    run
        The run file (TOML), the name of a built-in run, or the directory of a run.
    root
        The directory that holds the runs, as for `datakit train`.
    checkpoint
        Directory of a checkpoint; by default the run's newest checkpoint.
    set_
        Override a value of the run file, for example optimizer.learning_rate=0.01. Can be repeated.
    json
        Print one JSON object.
    """
    from datakit.trainer import require_jax

    require_jax()
    _end_at_sigterm()
    from datakit.trainer.commands import evaluate_file

    found = evaluate_file(run, root, checkpoint, set_)
    if json:
        say_json(found)
        return 0
    note(f"step {found.step:,} of {found.checkpoint}")
    say(table(["metric", "value"], [[name, f"{value:.4f}"] for name, value in sorted(found.figures.items())]))
    return 0


def _end_at_sigterm() -> None:
    """Let SIGTERM end the process immediately (shells show exit code 143, as for other commands). The training loop
    later sets its own handler. Until then, there is nothing to save. While JAX is being loaded or is compiling, the
    SystemExit that datakit's usual handler raises might be lost or crash the interpreter.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
