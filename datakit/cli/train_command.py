"""Implements `datakit train`, `datakit train plot` and `datakit eval`: their options, and the metrics they print."""

from __future__ import annotations

import shlex
import signal
import threading

from datakit.cli.console import note, say, say_json, table
from datakit.cli.parameters import Flag, Settings


def train_model(run: str, /, *, root: str = "./data", set_: Settings = (), json: Flag = False) -> int:
    """Train a model on token caches.

    Resumes from the run's newest checkpoint. A finished run is not repeated.

    Examples:
      datakit train demo
      datakit train my-run.toml --root /big/disk --set steps=5000
      datakit train plot data/demo-train/train-0123456789ab

    Exit code 5 means that the loss, a gradient or a weight is NaN or infinite. The last good checkpoint is kept.

    Parameters
    ----------
    run
        A run file (TOML), or the name of a built-in run.
    root
        The directory that holds the runs. Its path also replaces {root} in the paths of caches in the run file.
    set_
        Override a value of the run file, for example optimizer.learning_rate=0.01. Can be repeated.
    json
        Print the result as one JSON object.
    """
    from datakit.trainer import require_jax

    require_jax()
    _end_at_sigterm()
    from datakit.trainer.commands import train_file

    outcome = train_file(run, root, set_)
    if json:
        say_json(outcome)
        return 0
    say(outcome.directory)
    for name, value in sorted(outcome.figures.items()):
        note(f"{name}  {value:.4f}")
    note(f"plot:      datakit train plot {outcome.directory}")
    if any(name.startswith("eval/") for name in outcome.figures):
        changes = "".join(f" --set {shlex.quote(change)}" for change in set_)
        note(f"evaluate:  datakit eval {run} --root {root}{changes}")
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
        The run file (TOML), or the name of a built-in run.
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
