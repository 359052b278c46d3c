"""Models are found by name or import path."""

from __future__ import annotations

import pytest

from datakit.errors import UsageError
from datakit.trainer.models import grug, load_model, olmoe


def test_models_are_found_by_name_or_path() -> None:
    assert load_model("grug") is grug
    assert load_model("datakit.trainer.models.olmoe") is olmoe
    with pytest.raises(UsageError, match="did you mean 'grug'"):
        load_model("grugg")
    with pytest.raises(UsageError, match="cannot be imported"):
        load_model("nobody.has.this")
