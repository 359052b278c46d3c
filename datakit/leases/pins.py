"""Defines, writes and reads the files in `<root>/.pins/`, each of which keeps a step until somebody removes the pin.

A pin names a step and the reason for which it is needed, for example that a program outside of the root reads the cache
or that the version was published. The name of the file is the step's path in the root with `+` in place of `/`, so a
step has at most one pin. Names of datasets and sources contain no `+`, so no two steps share a file. Cost: one file per
pin; listing all pins takes one read of each.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from datakit.errors import CorruptError, NotFoundError, UsageError
from datakit.leases.own_folder import file_names, own_folder, paths_below
from datakit.storage import atomic, removal, urls
from datakit.storage.json_data import decode
from datakit.storage.manifest import refuse_newer

FOLDER = ".pins"
FORMAT = "datakit.pin/1"


class PinFile(msgspec.Struct, frozen=True):
    """The content of a pin. step: the path of the step in the root. time: when it was pinned, in seconds since 1970."""

    step: str
    reason: str
    time: float
    host: str
    format: str = FORMAT


@dataclass(frozen=True)
class Pin:
    """A pin of a step. url: the pin's file."""

    url: str
    step: str
    reason: str
    time: float
    host: str


def pin_url(root: str, step: str) -> str:
    """Return the URL of the file that pins a step. step: the path of the step in the root."""
    return urls.join(own_folder(root, FOLDER), f"{step.replace('/', '+')}.json")


def write_pin(root: str, step: str, reason: str) -> Pin:
    """Pin a step, given by its path in the root. Raises UsageError if it is pinned already."""
    url = pin_url(root, step)
    before = find_pin(root, step)
    if before is not None:
        raise UsageError(
            f"{urls.join(root, step)} is pinned already, for this reason: {before.reason}; to give another reason, "
            f"run `datakit unpin {urls.join(root, step)}` first"
        )
    content = PinFile(step, reason, time.time(), os.uname().nodename)
    atomic.replace_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n", url)
    return _pin(url, content)


def remove_pin(root: str, step: str) -> None:
    """Remove the pin of a step, given by its path in the root. Raises UsageError if it is not pinned."""
    url = pin_url(root, step)
    if not urls.exists(url):
        raise UsageError(f"{urls.join(root, step)} is not pinned; `datakit pin --list {root}` lists all pins")
    removal.remove(url)


def read_pins(root: str) -> list[Pin]:
    """Return all pins in a root, sorted by step. Raises CorruptError or NewerFormatError if one cannot be read."""
    folder = own_folder(root, FOLDER)
    found = (_read(urls.join(folder, name)) for name in file_names(folder))
    return sorted((pin for pin in found if pin is not None), key=lambda pin: pin.step)


def find_pin(root: str, step: str) -> Pin | None:
    """Return the pin of a step, given by its path in the root; None if it is not pinned."""
    return _read(pin_url(root, step))


def refuse_pinned(root: str, directories: Iterable[str]) -> None:
    """Raise UsageError if any of these steps is pinned, because the caller is about to remove them."""
    for directory in directories:
        for pin in (find_pin(root, step) for step in paths_below(root, directory)):
            if pin is not None:
                raise UsageError(
                    f"{directory} is pinned, so it is not removed; the reason for the pin: {pin.reason}. To remove it, "
                    f"run `datakit unpin {directory}` first"
                )


def _read(url: str) -> Pin | None:
    try:
        data = urls.read_bytes(url)
    except NotFoundError:
        return None
    refuse_newer(data, url, FORMAT)
    try:
        content = decode(data, PinFile)
    except msgspec.DecodeError as error:
        raise CorruptError(f"{url} cannot be read: {error}; remove this file, and pin its step again") from error
    if content.format != FORMAT or not urls.is_below(content.step):
        raise CorruptError(f"{url} is not a pin that datakit wrote; remove this file, and pin its step again")
    return _pin(url, content)


def _pin(url: str, content: PinFile) -> Pin:
    return Pin(url, content.step, content.reason, content.time, content.host)
