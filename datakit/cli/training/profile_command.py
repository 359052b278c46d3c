"""Implements `datakit train profile`, which summarizes a trace of training steps."""

from __future__ import annotations

from datakit.cli.console import note, say, say_json, table
from datakit.cli.parameters import Flag
from datakit.errors import UsageError


def profile(directory: str, /, *, top: int = 15, json: Flag = False) -> int:
    """Summarize the trace of a run: how long the devices computed, communicated, copied and waited for the host.

    The run records a trace of the steps that log.profile names in its run file.

    Examples:
      datakit train my-run.toml --set log.profile=[100,105]
      datakit train profile data/my-run/train-0123456789ab

    Parameters
    ----------
    directory
        The directory of a training run.
    top
        Number of operations to list.
    json
        Print one JSON object.
    """
    from datakit.trainer import require_jax

    require_jax()
    if top < 1:
        raise UsageError(f"--top is {top}; use at least 1")
    from datakit.trainer.loop.trace_summary import summarize

    found = summarize(directory)
    if json:
        say_json(found)
        return 0
    say(table(["time", "seconds", "share"], found.rows()))
    busy = sum(found.operations.values())
    rows = [[name[:50], f"{value:.3f}", f"{value / busy:.1%}"] for name, value in list(found.operations.items())[:top]]
    say(table(["operation", "seconds", "share"], rows))
    note(f"{found.devices} device(s), {found.seconds:.3f} s; the trace: {found.trace}")
    note("to look at single steps, open its folder with xprof or TensorBoard")
    return 0
