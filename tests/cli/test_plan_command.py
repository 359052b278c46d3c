"""`datakit plan` shows states, reasons and resources."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import invoke


def test_plan_shows_states_and_reasons(finished: Path) -> None:
    shown = invoke("plan", "shelf/shelf.toml", "--root", "root", cwd=finished)
    done = shown.stdout
    assert "next: datakit run shelf/shelf.toml --root root" in shown.stderr
    assert "12 steps, 12 done" in " ".join(done.split())
    assert "workers:" in done
    assert "memory:" in done
    assert "disk:    about 0 B more needed" in done
    changed = invoke(
        "plan", "shelf/shelf.toml", "--root", "root", "--set", "dedup.threshold=0.5", "--json", cwd=finished
    )
    plan = json.loads(changed.stdout)
    assert [entry["stage"] for entry in plan["steps"] if entry["state"] == "to run"] == [
        "dedup", "select", "consolidate", "train-tokenizer", "contract", "tokenize",
    ]  # fmt: skip


def test_plan_simulates_a_run_on_text_that_does_not_exist(tmp_path: Path) -> None:
    recipe = tmp_path / "web.toml"
    recipe.write_text('name = "web"\n[[sources]]\nname = "pages"\nurl = "s3://no-such-bucket/pages"\n[dedup]\n')
    options = ("--simulate", "5GB", "--nodes", "2", "--cores", "4", "--rate", "0.05")
    shown = invoke("plan", str(recipe), *options, cwd=tmp_path)
    assert "with 4.0 GB per core" in shown.stdout
    assert "core hours, which cost" in shown.stdout
    plan = json.loads(invoke("plan", str(recipe), *options, "--json", cwd=tmp_path).stdout)
    stages = ["download", "normalize", "signatures", "dedup", "select", "consolidate"]
    assert [step["stage"] for step in plan["steps"]] == stages
    of_source = ["download pages", "normalize pages", "signatures pages"]
    assert plan["critical"] == [*of_source, "dedup", "select", "consolidate"]
    assert [path.name for path in tmp_path.iterdir()] == ["web.toml"]  # nothing was written


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        (("--nodes", "3"), "--nodes describes simulated machines or text; add --simulate"),
        (("--cores", "0"), "--cores describes simulated machines or text; add --simulate"),
        (("--memory-per-core", "8GB"), "--memory-per-core describes simulated machines or text; add --simulate"),
        (("--rate", "0"), "--rate describes simulated machines or text; add --simulate"),
        (("--simulate", "5GB", "--workers", "64"), "use --nodes and --cores"),
        (("--simulate", "5GB", "--offline"), "--offline has no effect on a simulation"),
    ],
)
def test_options_without_an_effect_are_refused(options: tuple[str, ...], advice: str, tmp_path: Path) -> None:
    shown = invoke("plan", "demo", *options, cwd=tmp_path)
    assert shown.returncode == 2 and advice in shown.stderr
