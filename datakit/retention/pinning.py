"""Pins and unpins steps by their directories, and lists the pins of a root.

Like a lease (`leases/lease.py`), a pin is written before the announcements of `datakit gc` are read. If the step is
gone after that, the pin is removed again and an error is raised. So a step is kept once `pin_step` has returned.

A pin keeps a step and all steps from which it was made. A token cache is not made from the consolidate step, so pinning
a dataset pins both.

A pin must be in the root in which the step really is, because only `datakit gc` of that root could remove the step. A
path that contains a link to a dataset or to a step is therefore refused; a link to the root itself is allowed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from datakit.errors import NotFoundError, UsageError
from datakit.leases.lease import wait_for_collections
from datakit.leases.pins import Pin, find_pin, read_pins, remove_pin, write_pin
from datakit.pipeline.lineage import finished_step, identities_behind, published_step
from datakit.pipeline.root_layout import RUNS, SOURCE_STAGES, SOURCES
from datakit.retention.inventory import is_step, require_root
from datakit.retention.trash import FOLDER
from datakit.storage import urls
from datakit.storage.globs import subdirectories
from datakit.storage.latest import FILE_NAME as LATEST
from datakit.storage.manifest import is_finished


@dataclass(frozen=True)
class ListedPin:
    """A pin, the directory of its step, and whether this directory still holds a finished step."""

    directory: str
    exists: bool
    pin: Pin


def pin_step(step: str, reason: str, say: Callable[[str], None]) -> list[tuple[str, Pin]]:
    """Pin a finished step, or the current step of a dataset and its consolidate step. Return the directory of each step
    with its pin, the current step first. Raises UsageError, and NotFoundError if a step is unfinished or was removed
    meanwhile.
    """
    place = urls.absolute(step)
    found = finished_step(place)
    if found is None:
        raise UsageError(f"{place} is neither a finished step nor a dataset; `datakit ls` lists both")
    directory, manifest, _ = found
    published = published_step(place, identities_behind(directory, manifest))
    pins = [(directory, _pin(directory, reason, say))]
    if published is not None:
        pins.append((published[0], find_pin(*root_of(published[0])) or _pin(published[0], reason, say)))
    return pins


def _pin(directory: str, reason: str, say: Callable[[str], None]) -> Pin:
    root, path = root_of(directory)
    pin = write_pin(root, path, reason)
    wait_for_collections(root, [path], say)
    if not is_finished(directory):
        remove_pin(root, path)
        raise NotFoundError(
            f"{directory} was removed before it was pinned; move it back from {urls.join(root, FOLDER)}, and pin it "
            "again"
        )
    return pin


def unpin_step(step: str) -> str:
    """Remove the pin of a step, given by its directory, which need not exist. Return the directory."""
    directory = urls.absolute(step)
    remove_pin(*root_of(directory))
    return directory


def list_pins(root: str) -> list[ListedPin]:
    """Return all pins of a root, sorted by step."""
    root = require_root(root)
    places = ((urls.join(root, pin.step), pin) for pin in read_pins(root))
    return [ListedPin(place, is_finished(place), pin) for place, pin in places]


def root_of(directory: str) -> tuple[str, str]:
    """Return the root in which a step really is, and the step's path in it. Raises UsageError if the directory's path
    contains a link below the root, or is not that of a step.
    """
    if not urls.is_local(directory):
        return _split(directory)
    real = os.path.realpath(urls.local_path(directory))
    real_root, path = _split(real)
    root = directory.removesuffix(f"/{path}")
    if root == directory or os.path.realpath(urls.local_path(root)) != real_root:
        raise UsageError(f"{directory} lies behind a link, and the step is really in the root {real_root}; give {real}")
    return root, path


def _split(directory: str) -> tuple[str, str]:
    """Return the root of a step, and the step's path in it, from the path alone if possible. In
    `.../sources/<name>/<step>`, `sources` can be a root's folder of sources or a root itself; the stage tells which.
    """
    home = urls.parent(directory)
    above, stage = urls.parent(home), urls.name(directory).rpartition("-")[0]
    of_source = urls.name(above) == SOURCES and stage in SOURCE_STAGES
    if of_source and (urls.exists(urls.join(home, LATEST)) or RUNS in subdirectories(home)):
        raise UsageError(
            f"{directory} looks like a step of a source, but {home} also holds {LATEST} or {RUNS}, like a dataset of "
            f"the root {above}; move these to where they belong, or rename {above}"
        )
    root = urls.parent(above) if of_source else above
    path = directory.removeprefix(f"{root}/")
    if not is_step(path):
        raise UsageError(
            f"{directory} is not the directory of a step (<root>/<dataset>/<stage>-<12 digits>); only steps are "
            "removed by `datakit gc`, so nothing else needs a pin"
        )
    return root, path
