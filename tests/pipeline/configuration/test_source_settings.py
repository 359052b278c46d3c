"""A run with every setting of columns and records: the same bytes for any number of workers; all records counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import datakit
from datakit.errors import NoInputError, RecipeError
from datakit.normalize.record_counts import conservation
from datakit.normalize.stage import FORMAT_VERSION
from datakit.pipeline.configuration.configure import configure
from datakit.pipeline.simulate.clock import Cluster
from datakit.pipeline.simulate.simulation import simulate
from datakit.recipe import load_recipe, parse_recipe
from datakit.storage.fingerprint import fingerprint
from datakit.storage.parquet import read_shard
from tests.support.trees import only, tree

RECIPE = """
name = "shelf"

[[sources]]
name = "web"
url = "web"
splits = ["train", "validation"]
id = "key"
text = { template = "{title}\\n\\n{page.parts.text}" }
where = "page.lang <> 'xx' and split <> 'test'"
keep = ["lang", "split", "mixed"]
rename = { lang = "language" }
conflicts = { mixed = "null" }
sample = 0.9
sample_seed = 3
limit = 150

[[sources]]
name = "chats"
url = "chats.jsonl"
text = { chat = "messages" }
conflicts = { meta = "string" }

[tokenize]
tokenizer = "bytes"
"""


def page(number: int) -> dict[str, Any]:
    """A record of the source `web`."""
    parts = [{"text": f"Part {part} of page {number}."} for part in range(number % 4)]
    return {
        "key": f"k{number}", "title": f"Page {number}" if number % 5 else None, "lang": "en",
        "page": {"lang": "xx" if number % 11 == 0 else "en", "parts": parts}, "unused": "x" * 50,
    }  # fmt: skip


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe that uses all settings."""
    folder = tmp_path_factory.mktemp("shelf")
    (folder / "web" / "train").mkdir(parents=True)
    lines = [json.dumps({**page(n), "mixed": n if n % 7 else f"n{n}"}) for n in range(100)]
    (folder / "web" / "train" / "a.jsonl").write_text("\n".join(lines) + "\n")
    pages = pa.Table.from_pylist([page(n) for n in range(100, 200)])
    pq.write_table(pages, folder / "web" / "train" / "b.parquet")
    pq.write_table(pages.slice(0, 20), folder / "web" / "validation-0.parquet")
    (folder / "web" / "test.jsonl").write_text('{"key": "not read", "title": 5}\n')
    turns = [{"role": role, "content": f"{role} says"} for role in ("user", "assistant")]
    chats = [{"messages": turns[: n % 3], "meta": {"n": n} if n % 2 else n} for n in range(9)]
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    (folder / "recipe.toml").write_text(RECIPE)
    return folder / "recipe.toml"


@pytest.fixture(scope="module")
def root(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The root of a run with one worker."""
    root = str(tmp_path_factory.mktemp("root"))
    datakit.run(recipe, root, workers=1)
    return root


def test_four_workers_write_the_bytes_of_one(recipe: Path, root: str, tmp_path: Path) -> None:
    datakit.run(recipe, tmp_path, workers=4)
    assert tree(str(tmp_path)) == tree(root)


def rows(root: str, source: str) -> list[dict[str, Any]]:
    directory, manifest = only(root, "normalize", source)
    return [row for part in manifest.partitions for row in read_shard(f"{directory}/{part.path}").to_pylist()]


def test_every_record_is_counted(root: str) -> None:
    for source in ("web", "chats"):
        counters = only(root, "normalize", source)[1].counters
        assert conservation(counters) is None
    web = only(root, "normalize", "web")[1].counters
    assert web["normalize/records_out"] + web["normalize/duplicates"] == 150
    assert all(web[f"normalize/{name}"] for name in ("where_dropped", "sample_dropped", "missing", "limit_dropped"))


def test_the_documents_are_those_of_the_settings(root: str) -> None:
    web = rows(root, "web")
    names = ["id", "text", "source", "source_id", "language", "mixed", "split", "edited_id"]
    assert sorted(web[0]) == sorted(names)
    assert {row["split"] for row in web} == {"train"}, (
        "the copies in the other split are duplicates, or after the limit"
    )
    row = next(row for row in web if row["source_id"] == "k3")
    assert (row["text"], row["language"]) == (
        "Page 3\n\n" + "\n\n".join(f"Part {n} of page 3." for n in range(3)),
        "en",
    )
    assert {type(row["mixed"]) for row in web} == {str, type(None)}, "the first value, of page 0, is a string"
    chats = rows(root, "chats")
    assert {row["text"] for row in chats} == {"user: user says", "user: user says\n\nassistant: assistant says"}
    assert all(json.loads(row["meta"]) in ({"n": 1}, 2) for row in chats)


def test_the_plan_names_what_is_read(recipe: Path, tmp_path: Path) -> None:
    steps = datakit.plan(recipe, tmp_path).steps
    found = next(step.reads for step in steps if step.stage == "normalize" and len(step.reads) > 2)
    assert found[1:] == (
        "for the text: title, page.parts.text",
        "the splits train (2 files), validation (1 file)",
        "what makes the first 150 documents",
    )


@pytest.mark.parametrize(
    ("setting", "error", "message"),
    [
        ('sources.web.splits=["dev"]', NoInputError, "no files match"),
        ('sources.web.splits=["train", "dev"]', NoInputError, "no file is in the split 'dev'"),
        ('sources.web.include=["*.jsonl"]', RecipeError, "include and splits both select files"),
        ('sources.web.splits={ a = ["**/a*"], train = ["train/**"] }', RecipeError, "is in the splits 'a' and 'train'"),
        ('normalize.splits={ a = ["x"] }', RecipeError, "splits belongs into the table of a source"),
        ('sources.web.text={ template = "{" }', RecipeError, "has no counterpart"),
    ],
)
def test_the_plan_reports_mistakes(
    recipe: Path, tmp_path: Path, setting: str, error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        datakit.plan(recipe, tmp_path, settings=[setting])
    assert message in str(caught.value)


def test_recipes_without_these_settings_keep_their_fingerprints() -> None:
    """The fingerprints are those of the version before the settings were added."""
    first = {"name": "a", "url": "/x", "text": "body", "where": "n > 1", "types": {"n": "int64"}, "sample": 0.5}
    document = {
        "name": "x", "sources": [{**first, "include": ["*.csv"]}, {"name": "b", "url": "/y", "text": "a.b"}],
        "normalize": {"drop": ["z"]},
    }  # fmt: skip
    found = configure(parse_recipe(document, "recipe", Path("/")))
    normalize = [
        fingerprint("normalize", FORMAT_VERSION, found["normalize"][name].content, ["0" * 32]) for name in "ab"
    ]
    download = [fingerprint("download", 1, found["download"][name].content, []) for name in "ab"]
    assert normalize == ["1ab88711418dd874fa29d1cc6c617c52", "bdd9ea02d4210ad9b9e3ac0478ffdbad"]
    assert download == ["8c8c069a01c1daac7813078df3d28763", "e0b72a23000f4eaebd2cc598dee508a2"]


def test_a_run_with_these_settings_can_be_simulated(recipe: Path) -> None:
    found = simulate(load_recipe(recipe), 1 << 30, Cluster(1, 4, 8 << 30))
    phases = {phase.phase for step in found.steps for phase in step.phases}
    assert {"limit-00000", "route"} <= phases
