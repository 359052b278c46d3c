"""`datakit.why` tells what every stage did with a document, whether or not it is in the output."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import datakit
from datakit.errors import InputError, UsageError
from datakit.pipeline.fate import Answer
from datakit.pipeline.fate.behind import Finished
from datakit.pipeline.fate.fates import why_missing
from datakit.pipeline.graph import LocatedStep, build, engine_step
from datakit.pipeline.resolve_sources import ListingOptions
from datakit.recipe import load_recipe
from datakit.storage import urls
from datakit.storage.latest import Current, record_latest
from datakit.storage.manifest import Manifest, Quarantine, Totals
from tests.support.engine.runs import run_step_of
from tests.support.faults.poisoned import ENCODE, SIGN, WRITE, poisoned
from tests.support.partitions import identity
from tests.support.paths import FIXTURES
from tests.support.small_shelf import prose, step

NEARLY = prose(5) + " and one more"


def outcomes(answer: Answer, number: int = 0) -> dict[str, str]:
    return {stage.stage: stage.outcome for stage in answer.documents[number].stages}


def explanation(answer: Answer, stage: str) -> str:
    (found,) = [one.explanation for one in answer.documents[0].stages if one.stage == stage]
    return found


def test_kept_document_is_followed_to_its_tokens(finished: Path) -> None:
    answer = datakit.why(finished / "root" / "shelf", id=identity(prose(7)))
    assert outcomes(answer) == {
        "normalize": "kept", "signatures": "signed", "dedup": "retained", "select": "kept", "consolidate": "kept",
        "tokenize": "kept",
    }  # fmt: skip
    (record,) = answer.documents[0].records
    data = (finished / "shelf" / "novels" / "a.jsonl").read_bytes()
    assert json.loads(data[record.position :].partition(b"\n")[0]) == {"text": prose(7), "n": 7}
    row = explanation(answer, "tokenize").split()[1]
    cache = datakit.open_cache(str(step(finished, "root/shelf/tokenize-*")))
    assert cache.document(int(row)).id == identity(prose(7))
    assert explanation(answer, "tokenize").endswith(f"{len(cache.document(int(row)).tokens)} tokens")
    assert (answer.others, answer.comparisons, answer.more) == ((), (), 0)


def test_near_duplicate_is_compared_with_its_representative(finished: Path) -> None:
    answer = datakit.why(finished / "root" / "shelf", id=identity(prose(5)))
    assert outcomes(answer)["dedup"] == outcomes(answer)["select"] == "removed"
    assert outcomes(answer).keys().isdisjoint(["consolidate", "tokenize"])
    (pair,) = answer.comparisons
    assert (pair.text, pair.representative_text, pair.removal.representative_source) == (prose(5), NEARLY, "letters")
    assert pair.similarity == pytest.approx(56 / 59)


def test_exact_duplicates_lead_to_all_their_records(finished: Path) -> None:
    answer = datakit.why(finished / "root" / "shelf", id=identity(prose(1)))
    records = answer.documents[0].records
    assert [record.kept for record in records] == [True, False]
    assert records[0].position is not None and records[1].position is not None
    assert records[0].position < records[1].position
    assert "1 more record has exactly this text" in explanation(answer, "normalize")
    both = datakit.why(finished / "root" / "shelf", id=identity(prose(2)))
    assert [document.source for document in both.documents] == ["novels", "letters"]
    assert (outcomes(both, 0)["tokenize"], outcomes(both, 1)["select"]) == ("kept", "removed")
    assert both.comparisons == (), "equal texts need no comparison"


@pytest.mark.parametrize("text", [prose(5), NEARLY])
def test_cluster_is_found_from_each_of_its_documents(finished: Path, text: str) -> None:
    answer = datakit.why(finished / "root" / "shelf", id=identity(text), cluster=True)
    assert [(one["id"], one["reason"]) for one in answer.cluster] == [
        (identity(NEARLY), "retained"), (identity(prose(5)), "fuzzy"),
    ]  # fmt: skip
    assert [pair.removal.id for pair in answer.comparisons] == [identity(prose(5))]


def test_earlier_roots_have_no_origins(tmp_path: Path) -> None:
    earlier = shutil.copytree(FIXTURES / "root-0.1" / "data", tmp_path / "data")
    (file,) = (earlier / "sources" / "novels").glob("normalize-*/duplicates/*")
    (removed,) = pq.read_table(file).to_pylist()
    answer = datakit.why(earlier / "shelf", id=removed["id"])
    assert [(record.file, record.kept) for record in answer.documents[0].records] == [(None, True), (None, False)]
    assert "a file that was not recorded" in explanation(answer, "normalize")


def shelf(folder: Path, texts: list[tuple[str, str]], settings: str = "") -> Path:
    """A recipe of one source whose records have ids."""
    folder.mkdir(exist_ok=True)
    lines = [json.dumps({"id": name, "text": text}) + "\n" for name, text in texts]
    (folder / "in.jsonl").write_text("".join(lines))
    recipe = folder / "one.toml"
    recipe.write_text(f'name = "one"\n[[sources]]\nname = "letters"\nurl = "in.jsonl"\n{settings}')
    return recipe


def test_source_id_of_a_duplicate_leads_to_the_document(tmp_path: Path) -> None:
    texts = [("a", "first text"), ("b", "second text"), ("c", "second text"), ("d", " ")]
    datakit.run(shelf(tmp_path, texts), tmp_path / "root", workers=1, until="normalize")
    place = tmp_path / "root" / "sources" / "letters"
    answer = datakit.why(place, source_id="c")
    assert answer.documents[0].id == identity("second text")
    assert outcomes(answer) == {"normalize": "duplicate"}
    assert explanation(answer, "normalize").startswith("in.jsonl, byte 69, source id 'c', has the same text as")
    assert outcomes(datakit.why(place, source_id="b")) == {"normalize": "kept"}
    with pytest.raises(InputError, match=r"no document of .* has the source id 'd'"):
        datakit.why(place, source_id="d")


def test_source_id_of_several_documents(tmp_path: Path) -> None:
    texts = [("a", "first text"), ("a", "second text")]
    datakit.run(shelf(tmp_path, texts), tmp_path / "root", workers=1, until="normalize")
    place = tmp_path / "root" / "sources" / "letters"
    assert len(datakit.why(place, source_id="a").documents) == 2
    few = datakit.why(place, source_id="a", most=1)
    assert (len(few.documents), few.more) == (1, 1)


def test_similarity_is_in_the_measure_of_dedup(tmp_path: Path) -> None:
    recipe = shelf(tmp_path, [("a", prose(5)), ("b", NEARLY)], '[dedup]\nmeasure = "containment"\n')
    datakit.run(recipe, tmp_path / "root", workers=1, until="dedup")
    (pair,) = datakit.why(tmp_path / "root" / "one", source_id="a").comparisons
    assert (pair.measure, pair.similarity) == ("containment", 1.0)
    assert pair.removal.jaccard == pytest.approx(56 / 59)
    with pytest.raises(UsageError, match="no dedup step"):
        datakit.why(tmp_path / "root" / "sources" / "letters", source_id="a", cluster=True)


def test_quarantined_documents_are_named_in_every_stage(tmp_path: Path) -> None:
    """If a document crashes signatures, it is just not compared. Tokenize reads what consolidate leaves out."""
    pills = {pill: f"{prose(number)} {pill}" for number, pill in enumerate((SIGN, WRITE, ENCODE))}
    # One document leaves, because consolidate links a partition in which all documents stay and does not write it.
    texts = [*pills.values(), prose(5), NEARLY, *(prose(number) for number in range(10, 40))]
    tables = 'max_quarantined = 1\n[tokenize]\ntokenizer = "train"\nmax_quarantined = 1\n[tokenize.train]\n'
    settings = f"[dedup]\nmax_quarantined = 1\n[consolidate]\n{tables}vocabulary = 400\n"
    recipe = shelf(tmp_path, [(str(number), text) for number, text in enumerate(texts)], settings)
    graph, located = build(load_recipe(recipe), str(tmp_path / "root"), ListingOptions()), dict[str, LocatedStep]()
    for node in graph.nodes:
        there = graph.locate(node, located)
        made = engine_step(there, located)
        plan = node.module.plan(made)
        crashes = node.stage in ("signatures", "consolidate", "tokenize")
        manifest = run_step_of(made, poisoned(plan, 30.0) if crashes else plan)
        located[node.label] = replace(there, manifest=manifest)
    dataset, ends = tmp_path / "root" / "one", [located[stage] for stage in ("consolidate", "tokenize")]
    documents, cache = (Current(urls.name(one.directory), one.identity) for one in ends)
    record_latest(str(dataset), cache, cache, documents=documents)
    fates = {pill: outcomes(datakit.why(dataset, id=identity(text))) for pill, text in pills.items()}
    assert (fates[SIGN]["signatures"], fates[SIGN]["tokenize"]) == ("skipped", "kept")
    unsigned = datakit.why(tmp_path / "root" / "one", id=identity(pills[SIGN]))
    assert "no signature" in explanation(unsigned, "dedup")
    assert (fates[WRITE]["consolidate"], fates[WRITE]["tokenize"]) == ("quarantined", "kept")
    assert (fates[ENCODE]["consolidate"], fates[ENCODE]["tokenize"]) == ("kept", "quarantined")


def test_refuses_what_it_cannot_find(finished: Path, finished_copy: Path) -> None:
    shelf = finished / "root" / "shelf"
    for id, source_id in ((None, None), ("abc", None), ("0" * 32, "x")):
        with pytest.raises(UsageError):
            datakit.why(shelf, id=id, source_id=source_id)
    with pytest.raises(InputError, match=r"no document of .* has the id 0000"):
        datakit.why(shelf, id="0" * 32)
    with pytest.raises(UsageError, match="no finished step"):
        datakit.why(finished / "shelf", id="0" * 32)
    shutil.rmtree(finished_copy / "root" / "sources" / "letters")
    with pytest.raises(UsageError, match="was made from normalize"):
        datakit.why(finished_copy / "root" / "shelf", id=identity(prose(7)))


def test_quarantined_record_of_a_source_with_a_longer_name_is_another_one(tmp_path: Path) -> None:
    """The name of one source may be the end of another's name, and their partitions have the same names."""
    part = "part-00000-of-00001.parquet"
    (tmp_path / "quarantine").mkdir()
    record = {"file": f"data/oldnews/{part}", "position": 3, "reason": "it kills the writer"}
    (tmp_path / "quarantine" / "records.jsonl").write_text(json.dumps(record) + "\n")
    manifest = Manifest("consolidate", "d", "f", "f", {}, [], [], [], Totals(0, 0), {}, Quarantine(1))
    step = Finished(str(tmp_path), manifest)
    found = {
        source: why_missing(step, source, (f"data/{source}/{part}", 3, {}), step) for source in ("oldnews", "news")
    }
    assert found["oldnews"] == ("quarantined", "it kills the writer")
    assert found["news"][0] == "missing"
