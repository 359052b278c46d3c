"""`datakit init` writes a recipe that runs as it is, and says what it left out and what is suspicious."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.command_line import command, invoke
from tests.support.s3 import s3_root
from tests.support.small_shelf import make_shelf, prose, write_lines

NORMALIZE = ("--root", "root", "--until", "normalize", "--workers", "1", "--json")


def recipe_of(folder: Path, name: str = "recipe.toml") -> dict[str, Any]:
    return tomllib.loads((folder / name).read_text())


def run(folder: Path, name: str = "recipe.toml") -> dict[str, Any]:
    """Run the recipe as it is, up to normalize; return what the run printed."""
    done = invoke("run", name, *NORMALIZE, cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_recipe_of_a_folder_runs_as_it_is(tmp_path: Path) -> None:
    make_shelf(tmp_path / "shelf")
    written = invoke("init", "shelf/letters", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    assert f"recipe: {tmp_path / 'recipe.toml'}" in written.stdout
    assert written.stderr == "next: datakit plan recipe.toml\n      datakit run recipe.toml\n"
    assert "word1" not in written.stdout + (tmp_path / "recipe.toml").read_text(), "text is never shown"
    (source,) = recipe_of(tmp_path)["sources"]
    assert (source["url"], source["text"]) == ("shelf/letters", "body")
    assert run(tmp_path)["stages"][-1]["rows_out"] == 50


def test_existing_file_is_overwritten_by_force_only(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", [prose(1)])
    (tmp_path / "recipe.toml").write_text("mine")
    refused = invoke("init", "texts", cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "recipe.toml exists; choose another --output, or overwrite it with --force" in refused.stderr
    assert (tmp_path / "recipe.toml").read_text() == "mine"
    assert invoke("init", "texts", "--force", cwd=tmp_path).returncode == 0
    first = (tmp_path / "recipe.toml").read_bytes()
    assert invoke("init", "texts", "--force", cwd=tmp_path).returncode == 0
    assert (tmp_path / "recipe.toml").read_bytes() == first, "the same files give the same recipe"


def test_link_to_nowhere_is_not_written_through(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", [prose(1)])
    (tmp_path / "recipe.toml").symlink_to(tmp_path / "elsewhere.toml")
    assert "exists" in invoke("init", "texts", cwd=tmp_path).stderr
    assert not (tmp_path / "elsewhere.toml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("texts", "--output", "nowhere/r.toml"), "nowhere does not exist; create it first"),
        (("texts", "--output", "texts"), "is a folder; give the path of a file"),
        (("texts", "--output", "s3://bucket/r.toml"), "is written to a file on this machine"),
        (("absent",), "no such file"),
        (("empty",), "no file can be used, so no recipe was written: a.jsonl.gz is empty (0 bytes)"),
        (("blank",), "no recipe was written: the texts of all sampled records are blank"),
        (("numbers",), "no recipe was written: no column of strings was found"),
    ],
)
def test_nothing_is_written_if_no_recipe_would_run(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", [prose(1)])
    write_lines(tmp_path / "blank" / "a.jsonl", ["", "  ", "\u00a0"])
    for folder, name, content in (("empty", "a.jsonl.gz", ""), ("numbers", "a.jsonl", '{"n": 1}\n')):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / name).write_text(content)
    before = sorted(tmp_path.rglob("*"))
    refused = invoke("init", *words, cwd=tmp_path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert message in refused.stderr
    assert sorted(tmp_path.rglob("*")) == before


def test_recipe_in_its_own_source_is_no_data(tmp_path: Path) -> None:
    folder = tmp_path / "my texts"
    write_lines(folder / "a.jsonl", [prose(n) for n in range(3)])
    written = invoke("init", cwd=folder)
    assert "next: datakit plan recipe.toml --root '../my texts-data'" in written.stderr
    document = recipe_of(folder)
    assert document["name"] == "my-texts"
    assert document["sources"] == [{"name": "my-texts", "url": ".", "exclude": ["/recipe.toml"]}]
    again = invoke("init", "--force", cwd=folder)
    assert again.returncode == 0 and recipe_of(folder) == document
    done = invoke("run", "recipe.toml", "--root", "../my texts-data", "--until", "normalize", "--json", cwd=folder)
    assert json.loads(done.stdout)["stages"][-1]["rows_out"] == 3
    done = invoke("run", "recipe.toml", "--root", "../my texts-data", "--until", "normalize", cwd=folder)
    assert "everything was already done" in done.stdout, "the first run has changed nothing in the source"


def test_paths_are_relative_to_the_recipe_unless_given_as_absolute(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", [prose(1)])
    (tmp_path / "recipes").mkdir()
    assert invoke("init", "texts", "--output", "recipes/r.toml", cwd=tmp_path).returncode == 0
    assert recipe_of(tmp_path, "recipes/r.toml")["sources"][0]["url"] == "../texts"
    run(tmp_path, "recipes/r.toml")
    assert invoke("init", tmp_path / "texts", "--output", "recipes/a.toml", cwd=tmp_path).returncode == 0
    assert recipe_of(tmp_path, "recipes/a.toml")["sources"][0]["url"] == str(tmp_path / "texts")
    assert invoke("init", "texts/*.jsonl", "--output", "recipes/g.toml", cwd=tmp_path).returncode == 0
    assert recipe_of(tmp_path, "recipes/g.toml")["sources"][0]["url"] == "../texts/*.jsonl"
    run(tmp_path, "recipes/g.toml")


def test_refused_files_and_columns_are_left_out_with_the_reasons(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    for number in range(4):
        write_lines(folder / f"part-{number}.jsonl", [prose(10 * number + n) for n in range(5)])
    (folder / "part-5.jsonl").write_bytes(gzip.compress(b'{"text": "hidden"}\n'))
    (folder / "part-6.jsonl").write_text('{"other": "no text here"}\n')
    (folder / "part-7.jsonl").write_text('{"text": "a", "meta": {"x": 1}}\n{"text": "b", "meta": [1]}\n')
    (folder / "part-8.jsonl").write_text('{"text": "c", "meta": "plain", "id": [1]}\n')
    (folder / "part-9.jsonl").touch()
    written = invoke("init", "texts", cwd=tmp_path, COLUMNS="80")
    assert written.returncode == 0, written.stderr
    text = (tmp_path / "recipe.toml").read_text()
    (source,) = recipe_of(tmp_path)["sources"]
    assert source["exclude"] == ["/part-5.jsonl", "/part-6.jsonl"]
    assert recipe_of(tmp_path)["normalize"]["drop"] == ["meta"]
    assert source["id"] == "", "a list cannot be an id"
    for part in ("# - part-5.jsonl contains gzip data", "# - part-6.jsonl has no column 'text'", "1 file of 0 bytes"):
        assert part in text and part.removeprefix("# ") in written.stdout
    assert max(map(len, text.splitlines())) <= 80
    assert run(tmp_path)["stages"][-1]["rows_out"] == 23


def test_links_that_lead_outside_and_manifests_of_others_are_no_obstacle(tmp_path: Path) -> None:
    write_lines(tmp_path / "outside" / "a.jsonl", [prose(9)])
    write_lines(tmp_path / "texts" / "a.jsonl", [prose(n) for n in range(3)])
    (tmp_path / "texts" / "manifest.json").write_text('{"files": ["a.jsonl"], "text": "of another program"}\n')
    (tmp_path / "texts" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "texts" / "broken.jsonl").symlink_to("nowhere")
    written = invoke("init", "texts", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    assert "link is a link that leads out of the source's folder" in " ".join(written.stdout.split())
    assert "broken.jsonl is a link to a file that does not exist" in " ".join(written.stdout.split())
    assert all({"/link", "/broken.jsonl"} <= set(source["exclude"]) for source in recipe_of(tmp_path)["sources"])
    assert sum(stage["rows_out"] for stage in run(tmp_path)["stages"] if stage["stage"] == "normalize") == 4


def test_attributes_in_dolma_s_form_are_no_source(tmp_path: Path) -> None:
    """They have no texts, so their ids would be taken for texts."""
    for folder, lines in (
        ("documents", [{"id": f"{n}", "text": prose(n)} for n in range(3)]),
        ("attributes/q", [{"id": f"{n}", "attributes": {"q": 0.5}} for n in range(3)]),
    ):
        (tmp_path / "dolma" / "v1" / folder).mkdir(parents=True)
        (tmp_path / "dolma" / "v1" / folder / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    written = invoke("init", "dolma", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    assert "attributes of the files below documents/, in Dolma's form" in " ".join(written.stdout.split())
    (source,) = recipe_of(tmp_path)["sources"]
    assert (source["name"], source["url"]) == ("documents", "dolma/v1/documents")
    assert run(tmp_path)["stages"][-1]["rows_out"] == 3


def test_suspicious_things_are_comments_and_part_of_the_summary(tmp_path: Path) -> None:
    folder = tmp_path / "pages"
    folder.mkdir()
    texts = [prose(n, 60).encode() for n in range(3)]
    pq.write_table(pa.table({"text": texts, "image": [b"\x89PNG" * 9] * 3, "n": [1, 2, 3]}), folder / "a-1.parquet")
    pq.write_table(pa.table({"text": texts, "n": ["1", "2", "3"]}), folder / "a-2.parquet")
    latin = "".join(json.dumps({"text": f"{prose(n)} Ã©tÃ© cafÃ©"}, ensure_ascii=False) + "\n" for n in range(4))
    (folder / "test.jsonl").write_text(latin)
    (folder / "words.jsonl").write_bytes(b'{"text": "caf\xe9 %s"}\n' % prose(7).encode())
    written = invoke("init", "pages", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    comments = " ".join((tmp_path / "recipe.toml").read_text().replace("\n# ", " ").split())
    shown = " ".join(written.stdout.split())
    for finding in (
        "column 'n' has int64, string in other files; a run joins them", "column 'image' holds bytes, 36 in a record",
        "column 'text' holds bytes", "1 column in some of the files only: 'image'",
        "1 file with a name of evaluation data: test.jsonl", "4 of 4 sampled texts look like UTF-8 that was read as",
        "1 of 1 sampled texts hold bytes that are not UTF-8",
    ):  # fmt: skip
        assert finding in comments and finding in shown, finding
    assert run(tmp_path)["stages"][-1]["rows_out"] > 0


def test_evidence_for_the_text_column_is_stated(tmp_path: Path) -> None:
    records = [{"title": prose(n, 2), "story": prose(n, 50), "n": n} for n in range(9)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert invoke("init", "a.jsonl", cwd=tmp_path).returncode == 0
    text = " ".join((tmp_path / "recipe.toml").read_text().replace("\n# ", " ").split())
    assert "'story' is taken for the text: its name is usual for texts, it holds 9" in text
    assert "the next column of strings is 'title'" in text


def test_license_of_the_files_reaches_the_lineage(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "data" / "a.jsonl", [prose(n) for n in range(9)])
    (tmp_path / "texts" / "README.md").write_text("---\nlicense: cc-by-4.0\ntags:\n- x\n---\n# Texts\n")
    (tmp_path / "texts" / "LICENSE").write_text("Creative Commons\n\nAttribution 4.0 International\n\n...")
    written = invoke("init", "texts", cwd=tmp_path)
    assert "license: CC-BY-4.0 (README.md), CC-BY-4.0 (LICENSE)\n" in written.stdout
    assert recipe_of(tmp_path)["sources"][0]["license"] == "CC-BY-4.0"
    done = invoke("run", "recipe.toml", "--root", "root", "--set", "tokenize.train.vocabulary=300", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lineage = json.loads(invoke("lineage", "root/texts", "--format", "json", cwd=tmp_path).stdout)
    assert [source["license"] for source in lineage["sources"]] == ["CC-BY-4.0"]


def test_licenses_that_disagree_are_left_to_the_user(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", [prose(1)])
    (tmp_path / "texts" / "README.md").write_text("---\nlicense: mit\n---\n")
    (tmp_path / "texts" / "COPYING").write_text("My own terms: ask me.")
    (tmp_path / "texts" / "LICENSE-CODE").write_text("Apache License\nVersion 2.0, January 2004\n")
    written = invoke("init", "texts", cwd=tmp_path)
    shown = " ".join(written.stdout.split())
    assert "license: MIT (README.md), not recognized (COPYING), Apache-2.0 (LICENSE-CODE); set" in shown
    assert "license" not in recipe_of(tmp_path)["sources"][0]
    assert "# license: see README.md (MIT), COPYING (not recognized)" in (tmp_path / "recipe.toml").read_text()
    assert "My own" not in (tmp_path / "recipe.toml").read_text()


def test_json_holds_the_recipe_and_the_report(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", [prose(1)])
    found = json.loads(invoke("init", "texts", "--json", cwd=tmp_path).stdout)
    assert found["recipe"] == str(tmp_path / "recipe.toml")
    assert found["text"] == (tmp_path / "recipe.toml").read_text()
    assert found["report"]["groups"][0]["text"] == "text"


def test_finished_step_is_not_a_source(finished: Path, tmp_path: Path) -> None:
    refused = invoke("init", finished / "root" / "shelf", cwd=tmp_path)
    assert refused.returncode == 2 and "holds the finished step" in refused.stderr


def test_bucket_is_a_source(tmp_path: Path) -> None:
    with s3_root() as root:
        make = "import fsspec, sys\nwith fsspec.open(sys.argv[1], 'wb') as file: file.write(sys.argv[2].encode())"
        for name, content in (("a.jsonl", json.dumps({"text": prose(1)})), ("LICENSE", "CC0 1.0 Universal")):
            subprocess.run([sys.executable, "-c", make, f"{root}/texts/{name}", content], check=True, env=os.environ)
        written = command("init", f"{root}/texts", cwd=tmp_path)
        assert written.returncode == 0, written.stderr
        assert recipe_of(tmp_path)["sources"][0]["license"] == "CC0-1.0"
        done = command("run", "recipe.toml", *NORMALIZE, cwd=tmp_path)
        assert done.returncode == 0 and json.loads(done.stdout)["stages"][-1]["rows_out"] == 1, done.stderr
