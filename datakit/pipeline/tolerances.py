"""Rejects a finished step whose quarantined records or removals exceed the recipe's `max_quarantined` or `max_removal`.
Limits are not part of the fingerprint, so a finished step may have been made with higher limits than the current ones.
"""

from __future__ import annotations

from typing import Any

from datakit.engine.quarantine import unlisted
from datakit.engine.scheduler.finish import read_quarantine
from datakit.engine.task import Tolerance
from datakit.errors import InputError, counted
from datakit.pipeline.earlier_steps import documents_read
from datakit.pipeline.graph import Node
from datakit.storage.manifest import Manifest


def check_tolerances(node: Node, directory: str, manifest: Manifest) -> None:
    """Raise InputError if a finished step exceeds the recipe's limits for it. Call this function for every step, not
    only for reused steps: another driver, with other limits, may have finished a step while this driver ran it.
    """
    limits = node.settings.operations
    _check_quarantine(node.label, Tolerance.of(limits, node.stage), directory, manifest)
    if "max_removal" in limits:
        _check_removal(node.label, limits["max_removal"], directory, manifest.details)


def _check_quarantine(label: str, tolerance: Tolerance, directory: str, manifest: Manifest) -> None:
    records = unlisted(read_quarantine(directory), tolerance) if manifest.quarantine.records else 0
    if records > tolerance.allowed(documents_read(manifest)):
        raise InputError(
            f"{label}: {counted(records, 'record')} in quarantine (listed in "
            f"{directory}/{manifest.quarantine.path}), more than {tolerance.key} = {tolerance.limit} allows; "
            "fix or exclude the files listed there, or raise the limit"
        )


def _check_removal(label: str, limit: float, directory: str, details: dict[str, Any]) -> None:
    rates = {name: counts["rate"] for name, counts in details.get("sources", {}).items() if "rate" in counts}
    share, name = max(((rate, name) for name, rate in rates.items()), default=(0.0, ""))
    if share > limit:
        raise InputError(
            f"{label}: {share:.1%} of the documents of source {name!r} are removed ({directory}), more than "
            f"dedup.max_removal = {limit:g} allows; check the attribute files, and raise the limit if the removals are "
            "correct"
        )
