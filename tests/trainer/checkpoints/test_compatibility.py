"""A checkpoint that does not fit names the array and the table of the run file."""

from __future__ import annotations

import numpy as np
import pytest

from datakit.errors import CheckpointError
from datakit.trainer.checkpoints.compatibility import check_fit

SAVED = {"params": {"embed": np.zeros((8, 4))}, "moments": {"mu": {"embed": np.zeros((8, 4))}}}


def test_a_missing_average_points_at_the_optimizer() -> None:
    wanted = SAVED | {"ema": {"params": {"embed": np.zeros((8, 4))}}}
    with pytest.raises(
        CheckpointError, match=r"ema/params/embed is missing in the checkpoint and .*use the table \[optimizer\]"
    ):
        check_fit(SAVED, wanted, whole=True, place="here")


def test_another_shape_points_at_the_model() -> None:
    wanted = SAVED | {"params": {"embed": np.zeros((8, 6))}}
    with pytest.raises(
        CheckpointError,
        match=r"params/embed is \[8, 4\] in the checkpoint and \[8, 6\] in this run .*use the table \[model\]",
    ):
        check_fit(SAVED, wanted, whole=True, place="here")


def test_parts_that_are_not_wanted_are_ignored() -> None:
    check_fit(SAVED, {"params": SAVED["params"]}, whole=False, place="here")
    with pytest.raises(CheckpointError, match="moments/mu/embed"):
        check_fit(SAVED, {"params": SAVED["params"]}, whole=True, place="here")
