"""Implements `datakit doctor`."""

from __future__ import annotations

from datakit.cli.console import say, say_json
from datakit.cli.parameters import Flag

PROBLEM_EXIT_CODE = 2


def doctor(
    *,
    root: str | None = None,
    ray: str | None = None,
    json: Flag = False,
) -> int:
    """Check, before a run, what often goes wrong: disks, memory, limits, the root, the clock, a cluster.

    Prints one line per check: ok, warning or problem, with the next step. The exit code is 2 if there is a problem.

    Examples:
      datakit doctor
      datakit doctor --root s3://bucket/data --ray auto

    Parameters
    ----------
    root
        The root, as for `datakit run`. The check writes, reads and deletes a file there.
    ray
        The cluster, as for `datakit run`. The check joins it.
    json
        Print one JSON object.
    """
    from datakit.doctor.finding import State
    from datakit.doctor.machine import examine

    found = []
    for finding in examine(root, ray):
        found.append(finding)
        if not json:
            advice = f"; next: {finding.next_step}" if finding.next_step else ""
            say(f"{finding.state.value:8} {finding.check}: {finding.message}{advice}")
    healthy = all(finding.state is not State.PROBLEM for finding in found)
    if json:
        say_json({"healthy": healthy, "findings": found})
    return 0 if healthy else PROBLEM_EXIT_CODE
