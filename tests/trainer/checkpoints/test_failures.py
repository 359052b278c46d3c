"""Orbax leaves nothing behind that still runs, or that nobody waits for, when a write or read fails."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from typing import Any

import pytest
import tensorstore
from orbax.checkpoint._src import asyncio_utils

from datakit.trainer.checkpoints.failures import prepare_orbax, run_to_the_end


def run(error: BaseException, seconds: float | None) -> tuple[list[Any], Any]:
    """Let orbax wait for a write that fails and one that ends later, or never; return what the other one returned."""
    prepare_orbax()
    promise, other = tensorstore.Promise.new()
    ended: list[Any] = []

    async def write() -> None:
        ended.append(await other)

    async def fail() -> None:
        raise error

    async def save() -> None:
        await asyncio.gather(write(), fail())

    timer = threading.Timer(seconds or 0.0, promise.set_result, ["written"])
    if seconds is not None:
        timer.start()
    with pytest.raises(type(error)):
        asyncio_utils.run_sync(save())
    return ended, other


def test_a_failed_write_is_reported_after_all_others_have_ended() -> None:
    assert run(OSError("full"), 0.3)[0] == ["written"]


def test_an_interruption_does_not_wait_for_other_writes() -> None:
    ended, other = run(KeyboardInterrupt(), None)
    assert ended == []
    assert other.cancelled()


@pytest.mark.parametrize("fails", [True, False])
def test_unretrieved_errors_are_logged_only_if_none_is_raised(fails: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def save() -> None:
        kept.append(asyncio.get_running_loop().create_future())
        kept[0].set_exception(OSError("full"))
        if fails:
            raise OSError("full")

    kept: list[Any] = []
    with contextlib.suppress(OSError):
        run_to_the_end(save())
    kept.clear()
    gc.collect()
    assert [record.name for record in caplog.records] == ([] if fails else ["asyncio"])
