"""`datakit doctor`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from datakit.cli.console import say, say_json

PROBLEMS = 2


def doctor(
    *,
    root: str | None = None,
    ray: str | None = None,
    json: Annotated[bool, Parameter(negative="", show_default=False)] = False,
) -> int:
    """Check what fails in practice before a run does: disks, memory, limits, the root, the clock, a cluster.

    One line a check: ok, warning or problem, with the next step. Exit code 2 if there is a problem.

    Examples:
      datakit doctor
      datakit doctor --root s3://bucket/data --ray auto

    Parameters
    ----------
    root
        A root as for `datakit run`: it is written, read and deleted for real.
    ray
        A cluster as for `datakit run`: it is joined for real.
    json
        Print one JSON object.
    """
    from datakit.doctor.finding import State
    from datakit.doctor.machine import examine

    found = []
    for finding in examine(root, ray):
        found.append(finding)
        if not json:
            after = f"; next: {finding.next_step}" if finding.next_step else ""
            say(f"{finding.state.value:8} {finding.check}: {finding.message}{after}")
    healthy = all(finding.state is not State.PROBLEM for finding in found)
    if json:
        say_json({"healthy": healthy, "findings": found})
    return 0 if healthy else PROBLEMS
