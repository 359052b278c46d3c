"""Removes steps for `datakit run --fresh`, unless another process uses one of them.

The order is that of `datakit gc` (`lease.py`): announce the steps, then read the leases, then remove the steps. If a
process took its lease before the announcement, its lease is found, and nothing is removed. Any other process waits
until the announcement is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from datakit.errors import RetentionError
from datakit.leases.lease import Lease
from datakit.leases.lease_files import COLLECT, USE, read_leases, remove_expired
from datakit.leases.own_folder import paths_below
from datakit.storage import removal


def remove_unused(own: Lease, directories: Sequence[str], command: str, say: Callable[[str], None]) -> None:
    """Remove the directories of steps in the root of `own`, the lease of this process. Raises RetentionError, and
    removes nothing, if another live lease names one of the steps.
    """
    if not directories:
        return
    with Lease(own.root, COLLECT, command, say) as announcement:
        announcement.hold(directories)
        _refuse_used(own, directories)
        for directory in directories:
            announcement.require()
            removal.remove_tree(directory)


def _refuse_used(own: Lease, directories: Sequence[str]) -> None:
    found = read_leases(own.root, USE)
    remove_expired(found)
    steps = {path: directory for directory in directories for path in paths_below(own.root, directory)}
    for lease in found:
        used = next((step for step in lease.content.steps if step in steps), None)
        if used is not None and lease.url != own.url:
            raise RetentionError(
                f"{steps[used]} is in use by {lease.content.holder}, so nothing is removed; wait for that process "
                "to end, and run the same command again"
            )
