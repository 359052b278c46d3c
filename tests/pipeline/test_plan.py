"""A plan says what a run does, before it does it, and writes nothing; identity follows content and nothing else."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import fsspec
import pytest

from datakit import pipeline
from datakit.engine.task import TOLERANCES
from datakit.errors import NoInputError, RecipeError, TokenizerError, UsageError
from datakit.pipeline.configure import configure, parameters
from datakit.pipeline.root_layout import STAGE_NAMES
from datakit.recipe import load_recipe
from tests.support.small_shelf import REPOSITORY, make_shelf, shelf, write_lines

__all__ = ["shelf"]  # a fixture

WATCHED = """
import sys
from pathlib import Path

written = []
CHANGES = {"os.mkdir", "os.rename", "os.link", "os.symlink", "os.remove", "os.rmdir", "os.truncate", "os.utime",
           "os.chmod", "shutil.rmtree", "tempfile.mkstemp", "tempfile.mkdtemp", "subprocess.Popen", "os.fork",
           "os.forkpty", "os.exec", "os.posix_spawn", "socket.connect"}
WRITING = 0o3 | 0o100 | 0o1000  # not O_RDONLY, O_CREAT, O_TRUNC

def hook(event, arguments):
    if event in CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING):
        written.append((event, str(arguments[0])))

import datakit.pipeline  # what imports write (nothing, but caches of numba) is not the plan's doing
from datakit.recipe import load_recipe
sys.addaudithook(hook)
plan = datakit.pipeline.plan(load_recipe(sys.argv[1]), sys.argv[2])
assert len(plan.steps) == 10, len(plan.steps)
assert not written, written
"""


def listing(folder: Path) -> list[tuple[str, int, int]]:
    return sorted((str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in folder.rglob("*"))


@pytest.mark.parametrize("done", [False, True], ids=["nothing done", "all done"])
def test_a_plan_writes_nothing_and_starts_nothing(shelf: Path, tmp_path: Path, done: bool) -> None:
    root = tmp_path / "root"
    if done:
        pipeline.run(load_recipe(shelf), str(root))
    before = listing(tmp_path)
    watched = subprocess.run(
        [sys.executable, "-B", "-c", WATCHED, str(shelf), str(root)],
        cwd=REPOSITORY, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert watched.returncode == 0, watched.stderr
    assert listing(tmp_path) == before
    assert root.exists() == done


def test_a_plan_writes_nothing_to_a_store(shelf: Path) -> None:
    store = fsspec.filesystem("memory")
    pipeline.plan(load_recipe(shelf), "memory://plan-only/root")
    assert store.find("/plan-only") == []


def test_the_plan_is_what_the_run_does(shelf: Path, tmp_path: Path) -> None:
    recipe, root = load_recipe(shelf), str(tmp_path / "root")
    before = pipeline.plan(recipe, root)
    result = pipeline.run(recipe, root, workers=1)
    assert [(step.stage, step.source, step.directory) for step in before.steps] == [
        (step.stage, step.source, step.directory) for step in result.steps
    ]
    assert {step.state for step in before.steps} == {"to run"}
    after = pipeline.plan(recipe, root)
    assert {step.state for step in after.steps} == {"done"}
    assert after.disk_needed == 0
    assert [step.fingerprint for step in after.steps] == [step.manifest.fingerprint for step in result.steps]


def test_a_plan_explains_workers_memory_and_disk(shelf: Path, tmp_path: Path) -> None:
    plan = pipeline.plan(load_recipe(shelf), str(tmp_path / "root"), workers=3)
    assert (plan.resources.workers, plan.resources.workers_reason) == (3, "as asked for")
    assert plan.resources.memory_bytes > 0
    assert plan.disk_needed is not None
    assert plan.disk_needed > 0
    steps = {(step.stage, step.source): step for step in plan.steps}
    novels = steps["normalize", "novels"]
    assert (novels.tasks, novels.at_a_time, novels.reason) == (1, 1, "limited by the number of tasks")
    assert novels.settled, "a local source is in place, so its normalize step can be told exactly"
    assert steps["tokenize", None].reason == "known when its inputs are done"
    assert steps["dedup", None].reads == (
        "normalize novels", "normalize letters", "signatures novels", "signatures letters",
    )  # fmt: skip


def test_the_flow_has_the_stages_that_the_recipe_names(shelf: Path, tmp_path: Path) -> None:
    def stages(*settings: str, until: str | None = None) -> list[str]:
        recipe = load_recipe(shelf).with_overrides(settings)
        return list(dict.fromkeys(step.stage for step in pipeline.plan(recipe, str(tmp_path), until=until).steps))

    everything = list(STAGE_NAMES)
    assert stages() == everything
    without = [name for name in everything if name not in ("signatures", "dedup")]
    assert stages("dedup.enabled=false") == without
    assert stages(until="consolidate") == everything[:5]
    assert stages(until="download") == ["download"]
    with pytest.raises(UsageError, match="did you mean 'normalize'"):
        stages(until="normalise")


def fingerprints(recipe_file: Path, root: Path, *settings: str) -> dict[str, str]:
    plan = pipeline.plan(load_recipe(recipe_file).with_overrides(settings), str(root))
    return {f"{step.stage} {step.source or ''}".strip(): step.fingerprint for step in plan.steps}


def changed(recipe_file: Path, root: Path, *settings: str) -> set[str]:
    before, after = fingerprints(recipe_file, root), fingerprints(recipe_file, root, *settings)
    return {name for name in after if after[name] != before.get(name)}


END = {"consolidate", "train-tokenizer", "tokenize"}


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("tokenize.add=both", {"tokenize"}),
        ("tokenize.train.vocabulary=500", {"train-tokenizer", "tokenize"}),
        ('consolidate.drop=["exact"]', END),
        ("dedup.threshold=0.7", {"dedup"} | END),
        ("dedup.bands=20", {"signatures novels", "signatures letters", "dedup"} | END),
        ("sources.letters.sample=0.5", {"normalize letters", "signatures letters", "dedup"} | END),
        ("normalize.whitespace_run=64", None),
        ("dedup.threshold=0.8", set()),
        ("normalize.format=auto", set()),
        ("normalize.max_quarantined=7", set()),
        ("dedup.max_removal=0.99", set()),
    ],
)
def test_a_parameter_changes_its_step_and_what_follows(
    shelf: Path, tmp_path: Path, setting: str, expected: set[str] | None
) -> None:
    downloads = {"download novels", "download letters"}
    everything = set(fingerprints(shelf, tmp_path)) - downloads
    assert changed(shelf, tmp_path, setting) == (everything if expected is None else expected)


def test_every_default_is_in_the_fingerprint(shelf: Path) -> None:
    settings = configure(load_recipe(shelf))
    decoded = [*settings.normalize.values(), settings.signatures, settings.dedup, settings.consolidate]
    for config in [*decoded, settings.train, settings.tokenize]:
        assert config is not None
        names = {entry.name for entry in fields(config)}
        assert set(parameters(config)) == names - set(TOLERANCES), type(config)


def test_content_is_identity_and_names_times_and_places_are_not(shelf: Path, tmp_path: Path) -> None:
    before = fingerprints(shelf, tmp_path)
    twin = make_shelf(tmp_path / "elsewhere")
    assert fingerprints(twin, tmp_path / "other-root") == before
    data = (twin.parent / "novels" / "a.jsonl").read_bytes()
    (twin.parent / "novels" / "a.jsonl").write_bytes(data.replace(b"word1 ", b"word2 ", 1))
    after = fingerprints(twin, tmp_path)
    untouched = {name for name in before if after[name] == before[name]}
    assert untouched == {"download letters", "normalize letters", "signatures letters"}


def test_the_order_of_sources_counts_for_dedup_only(shelf: Path, tmp_path: Path) -> None:
    document = load_recipe(shelf)
    before = fingerprints(shelf, tmp_path)
    text = shelf.read_text()
    first, second = text.index("[[sources]]"), text.rindex("[[sources]]")
    end = text.index("[dedup]")
    shelf.write_text(text[:first] + text[second:end] + text[first:second] + text[end:])
    assert load_recipe(shelf) != document
    after = fingerprints(shelf, tmp_path)
    assert {name for name in before if before[name] != after[name]} == {"dedup"} | END


def test_mistakes_are_found_before_anything_runs(shelf: Path, tmp_path: Path) -> None:
    def refusal(*settings: str) -> pytest.ExceptionInfo[Exception]:
        with pytest.raises((RecipeError, NoInputError, TokenizerError)) as caught:
            pipeline.plan(load_recipe(shelf).with_overrides(settings), str(tmp_path))
        return caught

    for setting, message in [
        ("dedup.treshold=0.9", "[dedup]: unknown key 'treshold'; did you mean 'threshold'?"),
        ("dedup.threshold=2", "threshold is 2"),
        ('dedup.threshold="much"', "[dedup]: threshold: Expected `float`, got `str`"),
        ("dedup.enabled=1", "enabled is true or false"),
        ("tokenize.vocabulary=3", "[tokenize]: unknown key 'vocabulary'"),
        ("tokenize.train.vocab=3", "[tokenize.train]: unknown key 'vocab'; did you mean 'vocabulary'?"),
        ("tokenize.train=3", "[tokenize.train] is a table"),
        ("tokenize.tokenizer=gpt2.json", "the tokenizer is not trained"),
        ("normalize.txt=body", "[normalize]: unknown key 'txt'; did you mean 'text'?"),
        ("sources.letters.format=pdf", "source 'letters': format 'pdf' is unknown"),
        ('consolidate.drop=["fuzy"]', "did you mean 'fuzzy'?"),
        ('sources.letters.include=["*.parquet"]', "no files match *.parquet"),
        ("sources.letters.url=lettres", "lettres"),
        ("sources.letters.revision=abc", "a local source has no revision"),
    ]:
        assert message in str(refusal(setting).value), setting
        assert not (tmp_path / "shelf" / "shelf").exists()


@pytest.mark.parametrize("table", ["normalize", "dedup", "consolidate", "tokenize"])
@pytest.mark.parametrize("limit", ["-1", "5.0", "-0.5", "nan"])
def test_a_limit_that_cannot_be_is_refused_by_every_stage(shelf: Path, table: str, limit: str) -> None:
    with pytest.raises(RecipeError, match=rf"max_quarantined is {limit}; it must be a number of records, or a share"):
        configure(load_recipe(shelf).with_overrides([f"{table}.max_quarantined={limit}"]))
    configure(load_recipe(shelf).with_overrides([f"{table}.max_quarantined=0.001"]))


def test_a_tokenizer_that_is_not_there_is_an_input_error(shelf: Path, tmp_path: Path) -> None:
    shelf.write_text(shelf.read_text().partition("[tokenize]")[0] + '[tokenize]\ntokenizer = "absent.json"\n')
    with pytest.raises(TokenizerError, match=r"absent\.json"):
        pipeline.plan(load_recipe(shelf), str(tmp_path))


def test_a_root_inside_a_source_is_refused(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", ["one"])
    write_lines(tmp_path / "texts" / "out" / "old.jsonl", ["two"])
    recipe = tmp_path / "r.toml"
    recipe.write_text('name = "r"\n[[sources]]\nname = "s"\nurl = "texts"\n')
    with pytest.raises(RecipeError, match=r'exclude = \["out/\*\*"\]'):
        pipeline.plan(load_recipe(recipe), str(tmp_path / "texts" / "out"))


def test_a_pinned_source_that_cannot_be_reached_can_still_be_planned(tmp_path: Path) -> None:
    plan = pipeline.plan(load_recipe("fineweb-edu-10bt"), str(tmp_path), offline=True)
    assert [step.stage for step in plan.steps] == list(STAGE_NAMES)
    assert plan.disk_needed is None
    assert (plan.steps[0].tasks, plan.steps[0].reason) == (None, "known when its files are listed")
    assert "not downloaded yet" in plan.notes[0]
    with pytest.raises(NoInputError, match="run once without --offline"):
        pipeline.run(load_recipe("fineweb-edu-10bt"), str(tmp_path), offline=True)
