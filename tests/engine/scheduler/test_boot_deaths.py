"""A fork server that dies twice in the same way while it starts ends the run; other deaths are retried."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.engine.scheduler import retry_policy
from datakit.errors import InputError
from tests.support.engine.bad_preloads import preload
from tests.support.engine.engine_tasks import number_step, one_phase
from tests.support.engine.runs import attempts, run_step_of


@pytest.fixture(autouse=True)
def no_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retry at once after a lost worker."""
    monkeypatch.setattr(retry_policy, "BACKOFF_SECONDS", 0.0)


@pytest.mark.parametrize(("function", "said"), [("leave_with_a_message", "exit code 127"), ("crash", "SIGSEGV")])
def test_second_equal_death_is_a_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, said: str
) -> None:
    monkeypatch.setenv("CANARY_PASSWORD", "canary-0123456789")
    starts = tmp_path / "starts"
    with pytest.raises(InputError, match=rf"while starting \({said}\)") as refusal:
        run_step_of(number_step(str(tmp_path / "step")), one_phase(preload(function, str(starts))), workers=1)
    assert starts.read_text() == "xx"
    assert [line.cause for line in attempts(tmp_path / "step")] == ["infrastructure", "refused"]
    text = str(refusal.value)
    if function == "leave_with_a_message":
        assert "libexample.so.3: cannot open shared object file" in text and "hint: password=[redacted]" in text
    assert "canary-" not in text + "".join(line.message for line in attempts(tmp_path / "step"))


@pytest.mark.parametrize("function", ["run_out_of_memory", "be_killed", "differ"])
def test_other_deaths_are_retried(tmp_path: Path, function: str) -> None:
    starts = tmp_path / "starts"
    run_step_of(number_step(str(tmp_path / "step")), one_phase(preload(function, str(starts))), workers=1)
    assert starts.read_text() == "xxx"
    causes = [line.cause for line in attempts(tmp_path / "step")]
    assert sorted(causes) == ["done", "done", "infrastructure", "infrastructure"]
