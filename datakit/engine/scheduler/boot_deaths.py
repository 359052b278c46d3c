"""Ends a run, with a refusal, if two fork servers die in the same way while they start.

A library that cannot be loaded or a preload that crashes would otherwise cost 20 attempts and half an hour, and the
reason would be lost. Two deaths are equal if the exit code (or signal) and the output are the same. Numbers in the
output are not compared, since they may be process ids, addresses or times. On a cluster, the two deaths may be on
different nodes; when an attempt succeeds on a node, the earlier deaths there are forgotten. `worker/boot_output.py`
decides which deaths count.
"""

from __future__ import annotations

import re
from dataclasses import replace

from datakit.engine.executor import BOOT_DEATH, Cause, Outcome
from datakit.errors import InputError

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+")
ADVICE = (
    "remove the cause that the output shows (a library, a tokenizer, a transform, an environment variable) and run "
    "again: finished work is kept"
)


class BootDeaths:
    """The last death on each node."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}

    def judge(self, outcome: Outcome) -> Outcome:
        """Return the outcome, or a refusal if it is the second of two equal deaths."""
        if outcome.cause is Cause.DONE:
            self._last.pop(outcome.node, None)
        if outcome.error_type != BOOT_DEATH:
            return outcome
        how, _, output = outcome.message.partition("\n")
        death = f"{how}\n{_NUMBER.sub('#', output)}"
        known = death in self._last.values()
        self._last[outcome.node] = death
        if not known:
            return outcome
        message = f"no task can run on {outcome.node}: twice, {outcome.message}\n{ADVICE}"
        return replace(outcome, cause=Cause.REFUSED, error_type=InputError.__name__, message=message)
