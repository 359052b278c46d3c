"""A run names its kernels, and says where it fell back to others."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import jax
import pytest

from datakit.trainer.models import grug, kernels
from tests.support.trainer.small_models import SMALL, dense


def test_the_kernels_of_this_machine_are_named() -> None:
    assert kernels.kernels(grug.Config())["experts"] == "tiles"
    assert kernels.kernels(SMALL)["experts"] == "dense"
    assert "experts" not in kernels.kernels(dense(SMALL))
    assert kernels.lines(SMALL) == ["kernels on cpu: experts by dense, attention by blocked"]


@pytest.mark.filterwarnings("error")
def test_a_fallback_on_a_gpu_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    installed = importlib.util.find_spec("tokamax") is not None
    if not installed:
        line, warning = kernels.lines(grug.Config())
        assert "experts by tiles" in line
        assert warning.startswith("warning: tokamax is not installed")
    module = ModuleType("tokamax")
    module.__spec__ = importlib.util.spec_from_loader("tokamax", None)
    monkeypatch.setitem(sys.modules, "tokamax", module)
    (line,) = kernels.lines(grug.Config())
    assert "experts by tokamax" in line
