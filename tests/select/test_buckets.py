"""A document bucket reaches the token cache, mixtures and the consolidated dataset, with exactly its documents."""

from __future__ import annotations

import json
import random
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from datakit.api import diff, plan, run, why
from datakit.cache.reader import open_cache
from datakit.engine.task import StepInput
from datakit.errors import ColumnError, LoaderError, RecipeError
from datakit.loader import Component, Loader, Mixture, Stage, open_source
from datakit.loader.sources.cache_source import share_tokens
from datakit.pipeline.run_summary import RunResult
from datakit.recipe import load_recipe
from datakit.storage.manifest import read_manifest
from datakit.storage.parquet import read_shard
from datakit.tokenize import stage as tokenize
from datakit.validate.between import encoding
from datakit.validate.finding import Result
from datakit.validate.subject import open_subject
from datakit.validate.validation import validate
from tests.support.engine.runs import attempts
from tests.support.partitions import identity
from tests.support.validate.damage import forged, table

BUCKETS = """
[[select.buckets]]
name = "high"
highest = 0.25
by = "document.score"
sources = ["web"]

[[select.buckets]]
name = "even"
where = "document.n % 2 = 0"
"""
FINAL = """
[[select.rules]]
name = "low"
where = "document.score < 0.1"
"""


def rows(source: str, count: int) -> list[dict[str, Any]]:
    made = random.Random(source)
    return [{"text": f"{source} {n} " + "word " * (n % 9), "n": n, "score": made.random()} for n in range(count)]


ROWS = {"web": rows("web", 90), "code": rows("code", 40)}


def recipe_with(folder: Path, tables: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = ['name = "shelf"']
    for name, texts in ROWS.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
        lines.append(f'[[sources]]\nname = "{name}"\nurl = "{name}.jsonl"')
    path = folder / "shelf.toml"
    path.write_text("\n".join([*lines, tables, '[consolidate]\n[tokenize]\ntokenizer = "bytes"\n']))
    return path


def expected() -> dict[str, dict[str, str]]:
    """The text of each document by part and id, in plain Python."""
    found: dict[str, dict[str, str]] = {}
    for source, texts in ROWS.items():
        staying = [row for row in texts if row["score"] >= 0.1]
        order = sorted(staying, key=lambda row: (row["score"], identity(row["text"])))
        high = order[len(order) - len(order) // 4 :] if source == "web" else []
        for row in staying:
            bucket = "high" if row in high else "even" if row["n"] % 2 == 0 else "rest"
            found.setdefault(f"{source}.{bucket}", {})[identity(row["text"])] = row["text"]
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunResult, Path]:
    folder = tmp_path_factory.mktemp("buckets")
    return run(recipe_with(folder, FINAL + BUCKETS), root=folder / "root", workers=1), folder


def decoded(tokens: np.ndarray) -> str:
    return bytes(token for token in tokens.tolist() if token < 256).decode()


def test_each_bucket_of_the_cache_has_exactly_its_documents_in_order_of_id(finished: tuple[RunResult, Path]) -> None:
    cache = open_cache(str(finished[0].cache))
    found: dict[str, list[tuple[str, str]]] = {}
    for row in range(len(cache)):
        document, name = cache.document(row), f"{cache.source_of(row)}.{cache.bucket_of(row)}"
        found.setdefault(name, []).append((document.id, decoded(document.tokens)))
    assert found == {name: sorted(texts.items()) for name, texts in expected().items()}
    assert list(found) == ["web.high", "web.even", "web.rest", "code.even", "code.rest"]
    names = {name for batch in cache.to_arrow() for name in batch.column("bucket").to_pylist()}
    assert names == {"high", "even", "rest"}
    assert all(cache.find(name) is not None for texts in expected().values() for name in texts)


def test_mixture_reads_exactly_the_tokens_of_a_bucket(finished: tuple[RunResult, Path]) -> None:
    url = str(finished[0].cache)
    for name, texts in expected().items():
        source = open_source(url, name)
        borders = source.document_borders(0, source.tokens)
        parts = [decoded(source.read(*ends)) for ends in pairwise(borders.tolist())]
        assert parts == [text for _, text in sorted(texts.items())]
        assert source.tokens == sum(len(text.encode()) + 1 for text in texts.values())
    with pytest.raises(LoaderError, match=r"no source 'web\.hihg': did you mean 'web\.high'"):
        open_source(url, "web.hihg")
    whole, high, rest, code = (open_source(url, name) for name in ("web", "web.high", "web.rest", "code.rest"))
    assert share_tokens(whole, high) and share_tokens(high, high) and share_tokens(open_source(url), code)
    assert not share_tokens(high, rest) and not share_tokens(whole, code)
    assert len({one.identity for one in (whole, high, rest, code)}) == 4
    stages = [Stage({"high": 0.5, "rest": 0.5})]
    mixture = Mixture({"high": Component(high), "rest": Component(rest)}, stages, sequence_length=16, batch_size=4)
    with Loader(mixture) as loader:
        batch = loader[0]
    for row, segments, component in zip(batch.tokens, batch.segments, batch.components.tolist(), strict=True):
        texts = expected()[("web.high", "web.rest")[component]].values()
        for number in np.unique(segments):
            assert any(decoded(row[segments == number]) in text for text in texts)


def test_consolidated_documents_name_their_buckets(finished: tuple[RunResult, Path]) -> None:
    (step,) = finished[0].steps_of("consolidate")
    for source in ROWS:
        table = [
            row for path in Path(step.directory, "data", source).glob("*") for row in read_shard(str(path)).to_pylist()
        ]
        found = {row["id"]: row["bucket"] for row in table}
        assert found == {
            name: part.partition(".")[2]
            for part, texts in expected().items()
            for name in texts
            if part.startswith(source)
        }


def test_validate_finds_nothing_in_an_intact_run(finished: tuple[RunResult, Path]) -> None:
    report = validate(str(finished[1] / "root"))
    assert [str(finding) for finding in report.findings] == []


def test_documents_do_not_depend_on_the_number_of_workers(finished: tuple[RunResult, Path], tmp_path: Path) -> None:
    again = run(finished[1] / "shelf.toml", root=tmp_path / "root", workers=4)
    for one, other in zip(finished[0].steps, again.steps, strict=True):
        assert one.label == other.label and one.manifest == other.manifest


def test_why_names_the_bucket_and_the_final_rule(finished: tuple[RunResult, Path]) -> None:
    place = str(finished[1] / "root" / "shelf")
    high = next(iter(expected()["web.high"]))
    (document,) = why(place, id=high).documents
    explanations = {stage.stage: stage.explanation for stage in document.stages}
    assert explanations["select"] == "it stays in the dataset; in bucket high"
    assert "data/web/high/shard-" in explanations["tokenize"]
    low = next(row for row in ROWS["web"] if row["score"] < 0.1)
    (document,) = why(place, id=identity(low["text"])).documents
    assert (document.stages[-1].outcome, document.stages[-1].explanation) == ("removed", "by final rule low")


def test_diff_compares_caches_with_and_without_buckets(finished: tuple[RunResult, Path], tmp_path: Path) -> None:
    plain = run(recipe_with(tmp_path, ""), root=tmp_path / "root", workers=2)
    found = diff(str(finished[0].cache), str(plain.cache))
    removed = {source: sum(row["score"] < 0.1 for row in texts) for source, texts in ROWS.items()}
    assert not found.first.absent
    assert {(one.source, one.reason): one.documents for one in found.second.absent} == {
        (source, "select"): count for source, count in removed.items()
    }
    cache = open_cache(str(plain.cache))
    assert not cache.has_buckets and "bucket" not in (Path(cache.directory) / "manifest.json").read_text()


def test_validate_finds_a_document_in_the_wrong_bucket(finished: tuple[RunResult, Path], tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(finished[1] / "root", root)
    (cache,) = (root / "shelf").glob("tokenize-*")
    high, even = (next((cache / "data" / "web" / name).glob("*.docs.parquet")) for name in ("high", "even"))
    data = high.read_bytes()
    high.write_bytes(even.read_bytes())
    even.write_bytes(data)
    findings = [str(one) for one in validate(str(cache)).findings]
    assert any("web/high" in one for one in findings) and any("web/even" in one for one in findings)


def test_validate_evaluates_buckets_and_final_rules_again(finished: tuple[RunResult, Path], tmp_path: Path) -> None:
    odd = expected()["code.rest"]

    def with_an_odd_document(listed: pa.Table) -> pa.Table:
        (step,) = finished[0].steps_of("normalize")[1:]
        files = Path(step.directory).glob("data/code/*")
        every = [row["id"] for path in files for row in read_shard(str(path)).to_pylist()]
        rows = {row["id"]: row["row"] for row in listed.to_pylist()[1:]}
        other = min(odd)
        rows[other] = sorted(every).index(other)
        return pa.table({"id": sorted(rows), "row": [rows[name] for name in sorted(rows)]}, schema=listed.schema)

    root = Path(shutil.copytree(finished[1] / "root", tmp_path / "one"))
    table("shelf/select-*/buckets/code/even/*.parquet", with_an_odd_document, counted=False)(root)
    findings = [str(one) for one in validate(str(root)).findings]
    assert any("in a bucket that does not apply to it" in one for one in findings), findings
    root = Path(shutil.copytree(finished[1] / "root", tmp_path / "two"))
    forged("shelf/select-*", "parameters", "rules", 0, "where", value="document.score < 0.2")(root)
    findings = [str(one) for one in validate(str(root)).findings]
    assert any("which a final rule removes" in one for one in findings), findings


def test_validate_compares_the_column_bucket_with_the_lists(finished: tuple[RunResult, Path], tmp_path: Path) -> None:
    root = Path(shutil.copytree(finished[1] / "root", tmp_path / "root"))
    changed = list[str]()

    def exchanged(documents: pa.Table) -> pa.Table:
        """A document moves to another bucket in the column alone."""
        names = documents["bucket"].to_pylist()
        row = names.index("high")
        names[row] = "even"
        changed.append(documents["id"][row].as_py())
        place = documents.schema.get_field_index("bucket")
        return documents.set_column(place, documents.schema.field(place), pa.array(names, pa.string()))

    table("shelf/consolidate-*/data/web/*.parquet", exchanged, counted=False)(root)
    findings = [str(one) for one in validate(str(root)).findings]
    assert [one for one in findings if f"the document {changed[0]} is in bucket 'even'" in one], findings


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A cache whose tokenizer has a reference."""
    folder = tmp_path_factory.mktemp("trained")
    path = recipe_with(folder, FINAL + BUCKETS)
    path.write_text(path.read_text().replace('"bytes"', '"train"\n[tokenize.train]\nvocabulary = 300'))
    return str(run(path, root=folder / "root", workers=1).cache)


def encoded_again(cache: str) -> Result:
    found = Result("encoding")
    encoding.check(open_subject(cache, read_manifest(cache))[0], found)
    return found


def test_every_chosen_shard_of_a_bucket_is_encoded_again(trained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer documents are sampled than there are in the partition, so a sample of the partition can miss a bucket."""
    monkeypatch.setattr(encoding, "SHARDS", 5)
    monkeypatch.setattr(encoding, "DOCUMENTS", 1)
    found = encoded_again(trained)
    assert (found.findings, found.skipped, found.amounts["encoded document"]) == ([], [], 5)


def test_shard_without_a_sampled_document_is_named(trained: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "LONGEST_BYTES", 0)
    found = encoded_again(trained)
    assert len(found.skipped) == encoding.SHARDS and "data/web/high/" in found.skipped[0]


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ('[[select.buckets]]\nname = "rest"\nwhere = "true"', "choose another name"),
        ('[[select.buckets]]\nname = "a.b"\nwhere = "true"', "use lower-case letters"),
        ('[[select.buckets]]\nname = "x"\nwhere = "langauge.score > 1"', "bucket 'x' .*langauge"),
        ('[[select.buckets]]\nname = "x"\nwhere = "true"\nsources = ["wbe"]', "did you mean 'web'"),
        ('[[select.buckets]]\nname = "x"\nwhere = "true"\n' * 2, "two buckets are named 'x'"),
        ('[[select.buckets]]\nnmae = "x"\nwhere = "true"', "did you mean 'name'"),
        ('[[select.rules]]\nname = "x"\nwhere = "edited.byts > 1"', "did you mean 'bytes'"),
        ('[[rules]]\nname = "x"\nwhere = "edited.bytes > 1"', r"move the rule to \[\[select.rules\]\]"),
        ('[select]\nequal_after_editing = "drop"', "has no effect without"),
        (
            '[[sources]]\nname = "web.x"\nurl = "web.jsonl"\n[[select.buckets]]\nname = "x"\nwhere = "true"',
            "also a source",
        ),
    ],
)
def test_mistakes_are_found_before_anything_runs(tmp_path: Path, tables: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        plan(recipe_with(tmp_path, tables), root=tmp_path / "root")


def test_assignments_change_a_bucket(tmp_path: Path) -> None:
    recipe = load_recipe(recipe_with(tmp_path, BUCKETS)).with_overrides(["select.buckets.high.highest=0.5"])
    assert recipe.select["buckets"][0]["highest"] == 0.5


def test_memory_of_a_bucket_is_bounded_by_the_text_of_the_file(tmp_path: Path) -> None:
    """One document of a bucket has nearly all text, so a share by rows would be far too small."""
    path = recipe_with(tmp_path, '[[select.buckets]]\nname = "long"\nwhere = "document.n = 0"\nsources = ["web"]\n')
    texts = [{"text": f"{n} " + "word " * (40_000 if n == 0 else 2), "n": n, "score": 1.0} for n in range(50)]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps(row) + "\n" for row in texts))
    result = run(path, root=tmp_path / "root", workers=1)
    steps = [step for stage in ("normalize", "select") for step in result.steps_of(stage)]
    web, select = (
        StepInput(step.stage, step.source, str(step.directory), step.manifest)
        for step in steps
        if (step.stage, step.source) in (("normalize", "web"), ("select", None))
    )
    for entry in tokenize._partitions_of(web, select):
        assert tokenize._task([entry]).input_bytes >= len(texts[0]["text"]) if entry.bucket == "long" else True
        assert entry.file_bytes == web.manifest.totals.text_bytes


def test_card_counts_the_documents_of_each_bucket(finished: tuple[RunResult, Path]) -> None:
    (step,) = finished[0].steps_of("consolidate")
    card = Path(step.directory, "README.md").read_text()
    assert "The column `bucket` names" in card
    for name, texts in expected().items():
        source, _, bucket = name.partition(".")
        assert f"| {source} | {bucket} | {len(texts)} |\n" in card


def phases_begun(root: Path) -> list[str]:
    """The phases of a select step of which a task was attempted."""
    (directory,) = (root / "shelf").glob("select-*")
    return [one.phase for one in attempts(directory)]


def test_column_of_the_name_bucket_is_refused_before_any_task(tmp_path: Path) -> None:
    path = recipe_with(tmp_path, FINAL + BUCKETS)
    (tmp_path / "web.jsonl").write_text(json.dumps({"text": "a", "n": 1, "score": 1.0, "bucket": "b"}) + "\n")
    with pytest.raises(ColumnError, match="rename it"):
        run(path, root=tmp_path / "root", workers=1)
    assert phases_begun(tmp_path / "root") == []


@pytest.mark.parametrize("kind", ["rules", "buckets"])
def test_column_that_no_table_has_is_found_in_the_first_task(tmp_path: Path, kind: str) -> None:
    """No recipe check knows the columns of `words`, which depend on its lists."""
    (tmp_path / "list.txt").write_text("word\n")
    tables = "[annotate.words]\nlists.some.path = 'list.txt'\n"
    tables += f"[[select.{kind}]]\nname = 'x'\nwhere = 'words.wrods > 3'\n"
    with pytest.raises(ColumnError, match=r"words\.wrods"):
        run(recipe_with(tmp_path, tables), root=tmp_path / "root", workers=1)
    assert set(phases_begun(tmp_path / "root")) == {"columns"}
