"""Lists and downloads a source in this process, with a clock that does not wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from datakit.download.listing import Listing, listed
from datakit.download.remote_listing import RemoteOptions
from datakit.download.stage import fetch_file
from datakit.download.web import fetch as fetch_module
from datakit.download.web.patience import Clock
from datakit.engine.task import TaskContext
from datakit.errors import DatakitError
from datakit.storage import urls


@dataclass
class VirtualClock:
    """A clock whose time passes only during waits, which take no real time."""

    waits: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    @property
    def passed(self) -> float:
        return sum(self.waits)

    def clock(self) -> Clock:
        return Clock(self.sleep, lambda: self.passed, lambda: 1_782_900_000.0 + self.passed)


def look(
    url: str, *, include: Sequence[str] = (), clock: VirtualClock | None = None, private: bool = True,
    files: Sequence[str] | str | None = None, commit: str = "",
) -> Listing:  # fmt: skip
    """List a source. private: follow redirects to this machine."""
    time = (clock or VirtualClock()).clock()
    return listed(url, include, (), remote=RemoteOptions(files, private, commit, clock=time))


def download(
    listing: Listing, folder: Path, *, clock: VirtualClock | None = None, private: bool = True,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, bytes]:  # fmt: skip
    """Download all files of a listing with the task function of the stage, and return their content by path."""
    time = (clock or VirtualClock()).clock()
    real = fetch_module.fetch

    def fetch(*arguments: Any) -> Any:
        return real(*arguments, clock=time)

    context = TaskContext(str(folder), folder / "scratch", report=lambda records, done: progress(done))
    with patch.object(fetch_module, "fetch", fetch):
        for file in listing.files:
            arguments = {name: value for name, value in asdict(file).items() if value}
            arguments |= {"base": listing.base, "size": file.size, "private_redirects": private}
            fetch_file(arguments, {}, context)
    return {info.path: urls.read_bytes(info.url) for info in urls.listing(str(folder / "raw"))}


def refused(listing: Listing, folder: Path, kind: type[DatakitError], words: str, private: bool = True) -> VirtualClock:
    """Download with an error, after which no file has its final name."""
    clock = VirtualClock()
    with pytest.raises(kind, match=words):
        download(listing, folder, clock=clock, private=private)
    assert not list(folder.glob("raw/**/*.bin"))
    return clock
