"""A Hub on this machine, which `hf://` URLs lead to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hub_server.hub import Hub, hub_server

TOKEN = "hf_abcdefghijklmnopqrstuvwx"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with hub_server() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.hub.address)
        yield running
