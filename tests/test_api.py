"""The same verbs from Python: importing costs nothing, results are typed, errors are one tree, sources are shared."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

import datakit
from datakit import pipeline
from datakit.engine.executor import Verdict
from datakit.engine.observe.observer import SilentObserver
from datakit.engine.worker import local_executor
from datakit.errors import InputError, NoInputError, PartialError, RecipeError, StepFailedError
from datakit.pipeline import StepDescription, lazy_executor, stage_lines
from datakit.recipe import Recipe, Source, load_recipe
from tests.support.s3 import s3_root
from tests.support.small_shelf import REPOSITORY, make_shelf, prose, shelf, tree, write_lines

__all__ = ["shelf"]  # a fixture


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, datakit.RunResult]:
    """A recipe file, and its run in `root` beside the shelf's folder."""
    folder = tmp_path_factory.mktemp("api")
    recipe = make_shelf(folder / "shelf")
    return recipe, datakit.run(recipe, folder / "root", workers=2)


def root_of(recipe: Path) -> Path:
    return recipe.parents[1] / "root"


def test_every_public_name_is_there_and_importing_loads_nothing() -> None:
    for name in datakit.__all__:
        assert getattr(datakit, name) is not None
    assert set(datakit.__all__) <= set(dir(datakit))
    with pytest.raises(AttributeError, match="no attribute 'rnu'"):
        datakit.rnu  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
    script = "import sys, datakit; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert not {"numpy", "pyarrow", "msgspec", "cyclopts", "numba", "fsspec"} & set(loaded.stdout.split())
    assert (resources.files(datakit) / "py.typed").is_file()
    assert (resources.files(datakit) / "catalog" / "demo.toml").is_file()


def test_a_run_gives_a_cache_that_can_be_read(done: tuple[Path, datakit.RunResult]) -> None:
    _, result = done
    assert result.cache is not None
    cache = datakit.open_cache(result.cache)
    (tokenize,) = result.steps_of("tokenize")
    assert cache.tokens == tokenize.manifest.totals.tokens
    assert len(cache.read(0, 16)) == 16
    assert not result.reused
    assert [step.label for step in result.steps][:3] == ["download novels", "download letters", "normalize novels"]


def test_lines_add_up_from_the_first_record_to_the_last_document(done: tuple[Path, datakit.RunResult]) -> None:
    lines = {line.stage: line for line in stage_lines(done[1])}
    normalize, consolidate = lines["normalize"], lines["consolidate"]
    assert (normalize.rows_in, normalize.dropped, normalize.rows_out) == (150, {"blank": 1, "exact duplicates": 2}, 147)
    assert lines["signatures"].rows_in == consolidate.rows_in == 147
    assert lines["dedup"].found == {"marked exact": 3, "marked fuzzy": 1}
    assert consolidate.dropped == {"exact duplicates across sources": 3, "fuzzy duplicates": 1}
    assert consolidate.rows_out == lines["tokenize"].rows_in == lines["tokenize"].rows_out == 143


def test_a_second_run_starts_no_worker(done: tuple[Path, datakit.RunResult], monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, _ = done

    def refuse(*arguments: object) -> None:
        raise AssertionError("an executor was made")

    monkeypatch.setattr(lazy_executor, "LocalExecutor", refuse)
    monkeypatch.setattr(local_executor, "LocalExecutor", refuse)
    again = datakit.run(recipe, root_of(recipe), ray="nowhere:1")
    assert again.reused
    assert again.log is None, "and it leaves no log"


def test_settings_make_new_steps_beside_the_old(done: tuple[Path, datakit.RunResult]) -> None:
    recipe, first = done
    before = tree(root_of(recipe))
    second = datakit.run(recipe, root_of(recipe), settings=["tokenize.add=none"])
    assert {step.stage for step in second.steps if not step.reused} == {"tokenize"}
    assert first.cache != second.cache
    assert before.items() <= tree(root_of(recipe)).items()


def test_recipes_that_share_a_source_share_its_steps(done: tuple[Path, datakit.RunResult]) -> None:
    recipe, first = done
    source = load_recipe(recipe).sources[0]
    other = datakit.run(Recipe("other", (source,), dedup={}), root_of(recipe))
    mine = {step.label: step.directory for step in first.steps}
    assert {step.label: step.reused for step in other.steps} == {
        "download novels": True, "normalize novels": True, "signatures novels": True,
        "dedup": False, "consolidate": False,
    }  # fmt: skip
    assert all(mine[step.label] == step.directory for step in other.steps if step.reused)
    assert other.cache is None


def test_plan_status_and_inspect_tell_of_the_run(done: tuple[Path, datakit.RunResult]) -> None:
    recipe, result = done
    assert {step.state for step in datakit.plan(recipe, root_of(recipe)).steps} == {"done"}
    states = {step.directory: step.state for step in datakit.status(root_of(recipe))}
    assert all(states[step.directory] == "done" for step in result.steps)
    assert result.cache is not None
    found = datakit.inspect(result.cache)
    assert isinstance(found, StepDescription)
    assert found.tokens == datakit.open_cache(result.cache).tokens
    raw = datakit.inspect(recipe.parent / "letters")
    assert not isinstance(raw, StepDescription)
    assert raw.formats[0].text == "body"


def test_errors_are_one_tree(tmp_path: Path) -> None:
    with pytest.raises(RecipeError):
        datakit.run("dmeo")
    with pytest.raises(NoInputError):
        datakit.run(Recipe("r", (Source("s", str(tmp_path / "absent")),)), tmp_path / "root")
    with pytest.raises(InputError):
        datakit.status(tmp_path)
    with pytest.raises(datakit.DatakitError):
        datakit.inspect(tmp_path / "absent")
    assert not (tmp_path / "root").exists()


def test_a_watch_sees_every_step_and_attempt(shelf: Path, tmp_path: Path) -> None:
    class Notes(SilentObserver):
        def __init__(self) -> None:
            self.steps: list[str] = []
            self.verdicts: set[Verdict] = set()

        def step_ended(self, step, manifest, reused) -> None:
            self.steps.append(f"{step.stage} {step.dataset}")

        def attempt_ended(self, outcome, verdict) -> None:
            self.verdicts.add(verdict)

    notes = Notes()
    result = datakit.run(shelf, tmp_path / "root", until="normalize", observer=notes)
    assert notes.steps == ["download novels", "download letters", "normalize novels", "normalize letters"]
    assert notes.verdicts == {Verdict.DONE}
    assert result.log is not None
    assert Path(result.log).exists()


def test_quarantined_records_change_what_downstream_is(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", [prose(number) for number in range(20)])
    with (tmp_path / "texts" / "a.jsonl").open("a") as file:
        file.write('{"text": "broken\n')
    recipe = Recipe("r", (Source("s", str(tmp_path / "texts")),))
    with pytest.raises(PartialError, match="max_quarantined"):
        datakit.run(recipe, tmp_path / "root")
    promised = datakit.plan(recipe, tmp_path / "root").steps[-1]
    result = datakit.run(recipe, tmp_path / "root", settings=["normalize.max_quarantined=1"])
    normalize, consolidate = result.steps_of("normalize")[0], result.steps_of("consolidate")[0]
    assert normalize.manifest.quarantine.records == 1
    assert normalize.manifest.identity != normalize.manifest.fingerprint
    assert (promised.settled, promised.directory == consolidate.directory) == (False, False)
    assert datakit.plan(recipe, tmp_path / "root").steps[-1].directory == consolidate.directory
    with pytest.raises(InputError, match=r"1 records are in quarantine.*max_quarantined = 0"):
        datakit.run(recipe, tmp_path / "root")
    assert datakit.run(recipe, tmp_path / "root", settings=["normalize.max_quarantined=5"]).reused


def test_a_step_that_another_driver_finishes_meanwhile_is_held_to_this_recipes_limit(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", [prose(number) for number in range(20)])
    with (tmp_path / "texts" / "a.jsonl").open("a") as file:
        file.write('{"text": "broken\n' * 30)  # so many that the task gives up, and finds the step done
    recipe = Recipe("r", (Source("s", str(tmp_path / "texts")),))
    root = tmp_path / "root"

    class Overtaking(SilentObserver):
        def phase_started(self, step, phase, done, slots) -> None:
            if phase.name == "route":
                datakit.run(recipe, root, settings=["normalize.max_quarantined=30"], until="normalize")

    with pytest.raises(InputError, match=r"30 records are in quarantine.*max_quarantined = 0"):
        datakit.run(recipe, root, until="normalize", observer=Overtaking())


def test_a_limit_on_removal_is_no_part_of_identity_but_always_asked(
    done: tuple[Path, datakit.RunResult], tmp_path: Path
) -> None:
    recipe, result = done
    with pytest.raises(InputError, match=r"'letters' loses 6\.0% .* max_removal = 0\.05"):
        datakit.run(recipe, root_of(recipe), settings=["dedup.max_removal=0.05"])
    with pytest.raises(StepFailedError, match=r"'letters' would lose 3 of 50"):
        datakit.run(recipe, tmp_path, settings=["dedup.max_removal=0.05"])
    raised = datakit.run(recipe, tmp_path, settings=["dedup.max_removal=0.06"], until="dedup")
    assert raised.steps_of("dedup")[0].manifest == result.steps_of("dedup")[0].manifest


def test_offline_trusts_the_last_download(tmp_path: Path) -> None:
    from datakit.storage import atomic, urls

    with s3_root() as store:
        texts, root = urls.join(store, "texts"), str(tmp_path / "root")
        atomic.commit_bytes(b'{"text": "one"}\n', urls.join(texts, "a.jsonl"))
        recipe = Recipe("r", (Source("s", texts),))
        with pytest.raises(NoInputError, match="run once without --offline"):
            datakit.run(recipe, root, offline=True)
        first = datakit.run(recipe, root)
        atomic.commit_bytes(b'{"text": "two"}\n', urls.join(texts, "b.jsonl"))
        offline = datakit.run(recipe, root, offline=True)
        assert offline.reused
        assert "not listed" in offline.notes[0]
        assert [step.directory for step in offline.steps] == [step.directory for step in first.steps]
        online = datakit.run(recipe, root)
        assert online.steps_of("consolidate")[0].manifest.totals.rows == 2
        newest = datakit.run(recipe, root, offline=True)
        assert newest.steps_of("download")[0].directory == online.steps_of("download")[0].directory
    assert datakit.run(recipe, root, offline=True).reused, "the store is gone, and is not asked"


def test_a_root_in_a_store_works_like_one_on_a_disk(shelf: Path, tmp_path: Path) -> None:
    disk = datakit.run(shelf, tmp_path / "root", until="consolidate")
    with s3_root() as store:
        remote = datakit.run(shelf, store, until="consolidate")
        assert [step.manifest for step in remote.steps] == [step.manifest for step in disk.steps]
        assert datakit.run(shelf, store, until="consolidate").reused
        found = datakit.inspect(f"{store}/shelf")
        assert isinstance(found, StepDescription)
        assert (found.stage, found.rows) == ("consolidate", 143)
        assert all(entry.found for entry in found.lineage)
        assert {step.state for step in datakit.status(store)} == {"done"}
        assert pipeline.find_leftovers(store) == []
