"""Implements `datakit doctor`, which prints one line per check and ends with exit code 2 if there is a problem."""

from __future__ import annotations

from datakit.cli.console import say, say_json
from datakit.cli.parameters import Flag
from datakit.exit_codes import ExitCode


def doctor(*, root: str | None = None, ray: str | None = None, json: Flag = False) -> int:
    """Before a run, check what often causes trouble: disks, memory, limits, the root, the clock and the cluster.

    Prints one line per check, with its result (ok, warning or problem) and what to do next. The exit code is 2 if there
    is a problem.

    Examples:
      datakit doctor
      datakit doctor --root s3://bucket/data --ray auto

    Parameters
    ----------
    root
        The root to check, as given to `datakit run`. The check writes, reads and deletes a file in it.
    ray
        The Ray cluster to check, as given to `datakit run`. With --root, the check joins the cluster; without --root,
        it only tests whether a running cluster answers.
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
    return ExitCode.DONE if healthy else ExitCode.USAGE
