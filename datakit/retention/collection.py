"""Finds everything in a root that is no longer needed, and removes it without harming a run on any host.

    leftovers             removed at once (`leftovers.py`)
    unreachable steps     moved to the trash (`reachability.py`, `trash.py`), unless they have changed within the age
                          limit: an interrupted run may have finished them, and uses them when it is resumed
    the trash             emptied after 14 days
    expired ferry roots   removed (`ferry_roots.py`)

A removal proceeds in this order, on which the argument in `leases/lease.py` depends:

1. List what could be removed, and announce the steps to which it belongs. Stop if another process has announced a
   removal.
2. Read the root again, leases first, and make a second list. A process that took its lease before the announcement
   either still has the lease, or has ended and left a record (such as `latest.json`). Records are read after leases, so
   one of the two is seen. Any other process sees the announcement and waits.
3. Remove what both lists contain, one step after another. Steps that were made last are moved first, so a kill leaves
   no step whose inputs are gone.
4. Right before and right after each move, check that the announcement is still there. It is missing only if this
   process was stopped for so long that the announcement expired and another process removed it. A step that was moved
   without an announcement is moved back, so it is missing for little longer than a rename takes.

A lease that appears after point 2 does not stop the removal: its process waits until the announcement is gone, and only
then looks for the step. The step is not moved back for such a lease, because its inputs may be moved next.

Nothing behind a link is removed: every path is checked for links when it is listed, and again right before it is
removed. Only paths from listings of the root are removed; manifests, leases and records only add to what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from datakit.errors import RetentionError
from datakit.leases.lease import Lease
from datakit.leases.lease_files import COLLECT, USE, read_leases, remove_expired
from datakit.pipeline.root_layout import flow_order
from datakit.retention import trash
from datakit.retention.ferry_roots import ExpiredRoot, expired_ferry_roots, remove_ferry_root
from datakit.retention.inventory import StoredFile, files, is_inside, require_root, step_of
from datakit.retention.leftovers import Leftover, find_leftovers, remove_leftovers
from datakit.retention.reachability import Reachability, reachability
from datakit.storage import store_clock, urls

COMMAND = "datakit gc"


@dataclass(frozen=True)
class Unreachable:
    """A finished step that is not needed, or a day's folder in the trash: its directory, its size, and why it is
    listed.
    """

    url: str
    bytes: int
    why: str


@dataclass(frozen=True)
class Kept:
    """A finished step that is not current and is not listed for removal, and why it is kept."""

    url: str
    why: str


@dataclass(frozen=True)
class Garbage:
    """Everything in a root that can be removed. linked: the unreachable steps behind links, which are never removed.
    kept: the steps that are not current, but stay.
    """

    leftovers: tuple[Leftover, ...]
    unreachable: tuple[Unreachable, ...]
    trash: tuple[Unreachable, ...]
    ferry_roots: tuple[ExpiredRoot, ...]
    linked: tuple[str, ...] = ()
    kept: tuple[Kept, ...] = ()

    @property
    def bytes(self) -> int:
        """The size of everything listed."""
        parts = (*self.leftovers, *self.unreachable, *self.trash, *self.ferry_roots)
        return sum(part.bytes for part in parts)


def find_garbage(root: str, age_seconds: float) -> Garbage:
    """List what can be removed. age_seconds: as in `find_leftovers`, and the minimum time since the last change to an
    unreachable step. Raises InputError if the root does not exist, and RetentionError if something in it cannot be
    read.
    """
    root = require_root(root)
    reachable = reachability(root)
    listed = files(root)
    unneeded = _old_steps(root, reachable, listed, age_seconds)
    inside = [step for step in unneeded if is_inside(root, step)]
    sizes = _sizes(listed)
    return Garbage(
        tuple(find_leftovers(root, age_seconds, reachable.leased)),
        tuple(Unreachable(urls.join(root, step), sizes.get(step, 0), "nothing refers to it") for step in inside),
        tuple(_due(root, sizes)),
        tuple(expired_ferry_roots(root)),
        tuple(urls.join(root, step) for step in unneeded if step not in inside),
        tuple(_kept(root, reachable, unneeded, age_seconds)),
    )


def _old_steps(root: str, reachable: Reachability, listed: Iterable[StoredFile], age_seconds: float) -> list[str]:
    """Return the unreachable steps that have not changed in the last `age_seconds` seconds, without the direct and
    indirect inputs of those that have. A step's last change is that of its newest file, by the clock of the root's disk
    or store.
    """
    unneeded = reachable.unreachable()
    if age_seconds <= 0 or not unneeded:
        return unneeded
    limit = store_clock.now(root) - age_seconds
    changed = {step for file in listed if file.changed > limit and (step := step_of(file.path)) is not None}
    kept, pending = set[str](), [step for step in unneeded if step in changed]
    while pending:
        step = pending.pop()
        if step not in kept:
            kept.add(step)
            pending += reachable.finished.get(step, ())
    return [step for step in unneeded if step not in kept]


def _kept(root: str, reachable: Reachability, unneeded: Sequence[str], age_seconds: float) -> Iterable[Kept]:
    """Return the finished steps that are neither current nor `unneeded`."""
    young = f"changed in the last {age_seconds / 3600:,g} hours (--older-than)"
    stays = (step for step in sorted(reachable.finished) if step not in {*reachable.current, *unneeded})
    return (Kept(urls.join(root, step), reachable.because.get(step, young)) for step in stays)


def _sizes(listed: Iterable[StoredFile]) -> dict[str, int]:
    """Return the size of each step, and of each day in the trash, by its path in the root."""
    sizes: dict[str, int] = {}
    for file in listed:
        parts = file.path.split("/")
        group = "/".join(parts[:2]) if parts[0] == trash.FOLDER else step_of(file.path)
        if group:
            sizes[group] = sizes.get(group, 0) + file.bytes
    return sizes


def _due(root: str, sizes: dict[str, int]) -> Iterable[Unreachable]:
    why = f"in the trash for more than {trash.KEPT_DAYS} days"
    return (Unreachable(day.url, sizes.get(f"{trash.FOLDER}/{day.day}", 0), why)
            for day in trash.days(root) if day.due)  # fmt: skip


def remove_garbage(
    root: str,
    age_seconds: float,
    *,
    unreachable: bool = False,
    ferry_roots: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Garbage:
    """Remove the leftovers of a root. unreachable: also move the unreachable steps to the trash, and remove what has
    been there for long enough. ferry_roots: also remove expired roots of ferries. Return what was removed.
    """
    root = require_root(root)
    first = find_garbage(root, age_seconds)
    listed = {entry.url for entry in (*first.leftovers, *(first.unreachable if unreachable else ()))}
    with Lease(root, COLLECT, COMMAND, say) as announcement:
        steps = (step_of(url.removeprefix(f"{root}/")) for url in listed)
        announcement.hold(urls.join(root, step) for step in steps if step is not None)
        _require_alone(root, announcement)
        remove_expired(read_leases(root, USE))
        second = find_garbage(root, age_seconds)
        leftovers = [entry for entry in second.leftovers if entry.url in listed]
        remove_leftovers(root, leftovers)
        moved = _move_steps(root, [one for one in second.unreachable if one.url in listed], announcement)
    due = second.trash if unreachable else ()
    if due:
        trash.empty(root)
    expired = [one for one in second.ferry_roots if remove_ferry_root(root, one)] if ferry_roots else []
    return Garbage(tuple(leftovers), tuple(moved), due, tuple(expired), second.linked, second.kept)


def _require_alone(root: str, announcement: Lease) -> None:
    """Raise RetentionError if another process has announced that it removes steps."""
    found = read_leases(root, COLLECT)
    remove_expired(found)
    other = next((lease for lease in found if not lease.expired and lease.url != announcement.url), None)
    if other is not None:
        raise RetentionError(
            f"{other.content.holder} is removing steps from {root}; wait for it to end, and run `{COMMAND}` again"
        )


def _move_steps(root: str, steps: Sequence[Unreachable], announcement: Lease) -> list[Unreachable]:
    moved = []
    for entry in sorted(steps, key=lambda entry: flow_order(entry.url), reverse=True):
        step = entry.url.removeprefix(f"{root}/")
        if not is_inside(root, step):
            continue
        announcement.require()
        place = trash.move_in(root, step)
        if not urls.exists(announcement.url):
            trash.move_back(place, root, step)
        announcement.require()
        moved.append(entry)
    return moved
