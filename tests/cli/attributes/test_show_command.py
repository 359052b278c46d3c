"""`datakit attributes show` prints what the tables hold, in 80 columns, and no text of documents unless asked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import invoke
from tests.support.small_shelf import step

RECIPE = 'name = "shelf"\n[[sources]]\nname = "a"\nurl = "a.jsonl"\n[[sources]]\nname = "b"\nurl = "b.jsonl"\n'


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a recipe with two annotators and two sources."""
    folder = tmp_path_factory.mktemp("attributes")
    for name in "ab":
        texts = [f"Canary {name}{n} {'x' * n} write to a{n}@mail.invalid" + " слово" * (n % 3) for n in range(40)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": one}) + "\n" for one in texts))
    (folder / "r.toml").write_text(f"{RECIPE}[annotate.script]\n[annotate.personal]\n")
    done = invoke("run", "r.toml", "--root", "root", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def shown(shelf: Path, *arguments: str | Path) -> str:
    done = invoke("attributes", "show", *arguments, cwd=shelf, COLUMNS="80")
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 80
    return done.stdout


def as_json(shelf: Path, *arguments: str | Path) -> dict[str, Any]:
    done = invoke("attributes", "show", *arguments, "--json", cwd=shelf)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_dataset_shows_the_columns_of_all_its_sources(shelf: Path) -> None:
    text = shown(shelf, "root/shelf")
    assert text.startswith("80 documents of 2 sources: a, b\n")
    assert "script.letters" in text and "80 labels" not in text
    assert "Canary" not in text and "mail" not in text.replace("email", "")
    found = as_json(shelf, "root/shelf")
    assert [one["column"] for one in found["columns"]] == [
        "personal.spans", "script.letters", "script.script", "script.share", "script.scripts",
    ]  # fmt: skip
    assert found["documents"] == 80


def test_step_manifest_source_and_dataset_name_the_same_tables(shelf: Path) -> None:
    place = step(shelf, "root/sources/a/annotate-*")
    pages = {shown(shelf, one) for one in (place, place / "manifest.json", "root/sources/a")}
    assert pages == {shown(shelf, "root/shelf", "--source", "a")}


def test_histogram_and_sample_fit_in_the_terminal_and_agree(shelf: Path) -> None:
    text = shown(shelf, "root/shelf", "--column", "letters", "--histogram", "--sample", "3")
    assert "quantiles:" in text and "#" in text and "3 documents of 80 that match:" in text
    found = as_json(shelf, "root/shelf", "--column", "letters", "--histogram", "--sample", "3")
    assert sum(found["histogram"]["counts"]) == found["numbers"]["count"] == found["matching"] == 80
    assert all(one["id"] in text and one["excerpt"] is None for one in found["sample"])
    spans = shown(shelf, "root/shelf", "--column", "personal", "--histogram")
    assert "elements" in spans and "email" in spans


def test_text_of_documents_needs_an_option(shelf: Path) -> None:
    words = ("root/shelf", "--column", "share", "--sample", "5", "--between", "1", "1")
    assert "Canary" not in shown(shelf, *words) and "Canary" not in json.dumps(as_json(shelf, *words))
    assert shown(shelf, *words, "--text").count("Canary") == 5


def test_figure_is_written(shelf: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for column, option in (("share", "--png"), ("personal", "--plot"), ("script.script", "--plot")):
        shown(shelf, "root/shelf", "--column", column, option, tmp_path / f"{column}.png")
        assert (tmp_path / f"{column}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--histogram"], "--histogram needs a column"),
        (["--column", "share", "--text"], "--text chooses what to sample; add --sample"),
        (["--column", "script.shar"], "did you mean 'script.share'?"),
        (["--column", "share", "--bins", "0", "--histogram"], "--bins 0: give a number from 1"),
        (["--source", "c"], "--source c: root/shelf has no attributes of it; known names are a, b"),
        (["--column", "share", "--plot", "x.bmp"], r"the name must end in .png, .svg or .pdf"),
        (["--column", "script.script", "--sample", "1", "--between", "0", "1"], "holds no numbers"),
    ],
)
def test_mistaken_option_is_refused(shelf: Path, arguments: list[str], message: str) -> None:
    done = invoke("attributes", "show", "root/shelf", *arguments, cwd=shelf)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
