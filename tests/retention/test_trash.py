"""A move between two places of a store shows at most one finished step at any moment."""

from __future__ import annotations

from collections.abc import Iterator

import fsspec
import pytest

from datakit.retention import trash
from datakit.retention.leftovers import find_leftovers
from datakit.storage import removal
from datakit.storage.manifest import is_finished
from datakit.storage.urls import read_bytes
from tests.support.retention.tiny_roots import DATA, is_whole, step_path, write_step

STEP = step_path("shelf", "tokenize", "0")


class KilledError(BaseException):
    """Stands for the end of the process."""


@pytest.fixture
def root() -> Iterator[str]:
    """A root in a store, with one finished step."""
    root = "memory://trash-of-a-store"
    write_step(root, STEP)
    yield root
    removal.remove_tree(root)


def kill_at(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """End the process at its `number`-th request that writes."""
    store, seen = type(fsspec.filesystem("memory")), iter(range(1000))
    for name in ("cp_file", "rm_file"):
        real = getattr(store, name)

        def request(self: object, *paths: str, real: object = real) -> None:
            if next(seen) == number:
                raise KilledError
            real(self, *paths)  # type: ignore[operator]

        monkeypatch.setattr(store, name, request)


@pytest.mark.parametrize("number", range(6))
def test_killed_move_in_a_store_leaves_a_whole_step_in_one_place(
    root: str, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(trash.urls, "PARALLEL_REQUESTS", 1)  # the order of requests is then fixed
    with monkeypatch.context() as patch:
        kill_at(patch, number)
        with pytest.raises(KilledError):
            trash.move_in(root, STEP)
    if is_finished(f"{root}/{STEP}"):
        assert is_whole(root, STEP)
        return
    (day,) = trash.days(root)
    assert is_finished(f"{day.url}/{STEP}")
    assert read_bytes(f"{day.url}/{STEP}/{DATA}") == STEP.encode()
    assert [leftover.url for leftover in find_leftovers(root, 0.0)] == [f"{root}/{STEP}"], "the rest can be removed"
