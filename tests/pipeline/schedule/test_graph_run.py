"""Steps of different sources run together; a source that fails stops only the steps that need it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

import datakit
from datakit.errors import PartialError, StepFailedError
from datakit.storage import manifest, urls
from tests.support.faults.abandoned import unlocked_name
from tests.support.small_shelf import prose, write_lines
from tests.support.trees import tree

TRANSFORM = """
from pathlib import Path

def strict(batch):
    if not (Path(__file__).parent / "mended").exists():
        raise ValueError("no")
    return batch
"""


def write_recipe(folder: Path, *good: str) -> Path:
    """Write a recipe whose source `bad` has a transform that raises until a file `mended` exists."""
    sources = ""
    for number, name in enumerate((*good, "bad")):
        write_lines(folder / name / "a.jsonl", [prose(100 * number + row) for row in range(9)])
        transform = 'transform = "transforms:strict"\ntransform_version = 1\n' if name == "bad" else ""
        sources += f'[[sources]]\nname = "{name}"\nurl = "{name}"\n{transform}'
    (folder / "transforms.py").write_text(TRANSFORM)
    (folder / "recipe.toml").write_text(f'name = "texts"\n{sources}[dedup]\n')
    return folder / "recipe.toml"


def test_failed_source_stops_only_what_needs_it(tmp_path: Path) -> None:
    recipe, root = write_recipe(tmp_path, "good", "better"), tmp_path / "root"
    with pytest.raises(PartialError) as failure:
        datakit.run(recipe, root, workers=2)
    said = str(failure.value)
    assert failure.value.exit_code == 3 and isinstance(failure.value.__cause__, StepFailedError)
    assert "normalize bad: " in said and "in strict" in said, "the failed step's error is shown in full"
    assert "signatures bad: not run: it needs normalize bad" in said and "dedup: not run: it needs" in said
    finished = {path.parent.name.partition("-")[0] for path in root.glob("sources/good/*/manifest.json")}
    assert finished == {"download", "normalize", "signatures"}
    before = {path: data for path, data in tree(str(root)).items() if not path.startswith("sources/bad/")}
    (tmp_path / "mended").touch()
    result = datakit.run(recipe, root, workers=2)
    assert before.items() <= tree(str(root)).items()
    assert {step.label for step in result.steps if step.reused} >= {"signatures good", "signatures better"}


def test_next_run_removes_the_files_that_a_killed_driver_was_writing(tmp_path: Path) -> None:
    """The driver writes cached hashes before the first step, and the list of current steps after the last one."""
    write_lines(tmp_path / "good/a.jsonl", [prose(row) for row in range(9)])
    (tmp_path / "recipe.toml").write_text('name = "texts"\n[[sources]]\nname = "good"\nurl = "good"\n')
    (tmp_path / "root/texts").mkdir(parents=True)
    (tmp_path / "root/.cache").mkdir()
    left = [unlocked_name(tmp_path / "root/.cache", "hashes-good.json"),
            unlocked_name(tmp_path / "root/texts", "latest.json")]  # fmt: skip
    for path in left:
        path.write_bytes(b"{")
    datakit.run(tmp_path / "recipe.toml", tmp_path / "root", workers=1)
    assert not any(path.exists() for path in left)


def test_damaged_manifest_of_a_source_stops_only_what_needs_it(tmp_path: Path) -> None:
    recipe, root = write_recipe(tmp_path, "good"), tmp_path / "root"
    (tmp_path / "mended").touch()
    datakit.run(recipe, root, workers=2, until="normalize")
    (damaged,) = root.glob("sources/bad/normalize-*/manifest.json")
    damaged.write_bytes(damaged.read_bytes().replace(b"normalize", b"normalise", 1))
    with pytest.raises(PartialError) as failure:
        datakit.run(recipe, root, workers=2)
    said = str(failure.value)
    assert "normalize bad: " in said and str(damaged) in said and "dedup: not run: it needs normalize bad" in said
    assert list(root.glob("sources/good/signatures-*/manifest.json")), "the other source goes on"


def test_finished_step_is_found_with_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, root, read = write_recipe(tmp_path, "good"), tmp_path / "root", list[str]()
    (tmp_path / "mended").touch()
    first = datakit.run(recipe, root, workers=2, until="normalize")

    def read_bytes(url: str) -> bytes:
        read.append(url)
        return urls.read_bytes(url)

    monkeypatch.setattr(manifest, "urls", SimpleNamespace(**{**vars(urls), "read_bytes": read_bytes}))
    assert datakit.run(recipe, root, workers=2, until="normalize").reused
    assert sorted(read) == sorted(f"{step.directory}/manifest.json" for step in first.steps)


def test_failed_source_alone_ends_the_run_with_its_error(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    with pytest.raises(StepFailedError) as failure:
        datakit.run(recipe, tmp_path / "root", workers=1)
    assert failure.value.exit_code == 1


def test_events_of_steps_that_run_together_name_their_step(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(4)]
    sources = "".join(f'[[sources]]\nname = "{name}"\nurl = "{name}"\n' for name in names)
    for number, name in enumerate(names):
        write_lines(tmp_path / name / "a.jsonl", [prose(50 * number + row) for row in range(20)])
    (tmp_path / "r.toml").write_text(f'name = "r"\n{sources}[dedup]\n')
    result = datakit.run(tmp_path / "r.toml", tmp_path / "root", workers=3)
    assert result.log is not None
    events = [json.loads(line) for line in Path(result.log).read_text().splitlines()]
    open_steps, most, phases = set[tuple[str, str]](), 0, dict[tuple[str, str], str]()
    for event in events:
        step = (event.get("stage", ""), event.get("dataset", ""))
        match event["event"]:
            case "step_started":
                open_steps.add(step)
                most = max(most, len(open_steps))
            case "phase_started":
                phases[step] = event["phase"]
            case "attempt_ended":
                assert step in open_steps and phases[step] == event["phase"]
            case "step_ended":
                open_steps.discard(step)
    assert not open_steps and most > 1
    ended = [event for event in events if event["event"] == "attempt_ended"]
    assert {event["dataset"] for event in ended if event["stage"] == "normalize"} == set(names)


@pytest.mark.parametrize("constant", ["MOST_STEPS", "READY_PER_SLOT", "WINDOW"])
def test_limits_of_the_loop_do_not_change_a_byte(
    tmp_path: Path, constant: str, monkeypatch: pytest.MonkeyPatch, finished_run: datakit.RunResult, finished: Path
) -> None:
    monkeypatch.setattr(f"datakit.engine.scheduler.run_loop.{constant}", 1)
    datakit.run(finished / "shelf" / "shelf.toml", tmp_path / "root", workers=2)
    assert tree(str(tmp_path / "root")) == tree(finished_run.root)
