"""`datakit explain` fits a terminal, shows text only on request, and ends with the command that trains without."""

from __future__ import annotations

import json

import pytest

from datakit.cli import main

pytest.importorskip("pyarrow")
from tests.support.explain.planted import garbage

pytestmark = pytest.mark.xdist_group("explain")


def test_the_table_fits_80_columns_and_the_end_names_the_next_commands(
    run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", run, "--step", "16", "--top", "3"]) == 0
    shown = capsys.readouterr()
    assert max(map(len, shown.out.splitlines())) <= 80
    first, batch, _, heads, top, *_ = shown.out.splitlines()
    assert first.startswith("step 16: loss ")
    assert first.endswith("; replayed bit for bit")
    assert "is the one trained on (same digest)" in batch
    assert heads.split() == ["document", "source", "tokens", "loss", "excess", "gradient"]
    identity, source, *_ = top.split()
    assert source == "toxic"
    assert not any(garbage(seed)[:20] in shown.out + shown.err for seed in range(4))
    assert f"datakit train {run} --step 16 --without {identity}" in shown.err
    assert "raw files unknown: " in shown.err


def test_json_has_everything_and_an_excerpt_on_request(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["explain", run, "--step", "16", "--top", "1", "--excerpt", "--estimate", "--loss-only", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["step"], len(found["why_estimate"])) == ("estimate", 16, 2)
    (document,) = found["documents"]
    assert any(document["excerpt"].startswith(garbage(seed)[:20]) for seed in range(4))
    assert document["origin"]["file"] is None
    assert document["gradient_norm"] is None


@pytest.mark.parametrize("arguments", [["--step", "4"], ["--without", "ab" * 16]])
def test_train_takes_step_and_documents_only_together(
    run: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", run, *arguments]) == 2
    assert "give --without and --step together" in capsys.readouterr().err
