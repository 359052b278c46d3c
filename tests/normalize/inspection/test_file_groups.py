"""Files are grouped into sources by folder, format and name pattern; no file is in two of them or in none."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.normalize.inspection.file_groups import group_files
from datakit.storage import globs
from datakit.storage.urls import FileInfo

BASE = "/absent/texts"


def files(*paths: str) -> list[FileInfo]:
    return [FileInfo(f"{BASE}/{path}", path, 1) for path in sorted(paths)]


def grouped(*paths: str, url: str = BASE) -> dict[str, tuple[str, tuple[str, ...]]]:
    groups, _ = group_files(url, files(*paths))
    return {group.name: (group.url.removeprefix(BASE), group.include) for group in groups}


def test_one_group_needs_no_pattern() -> None:
    assert grouped("a/x-00.jsonl.gz", "a/x-01.jsonl.gz", "x-7.jsonl") == {
        "a": ("/a", ("x-*.jsonl.gz",)), "texts": ("", ("/x-*.jsonl",)),
    }  # fmt: skip
    assert grouped("x-00.jsonl.gz", "x-01.jsonl.gz", "x-7.jsonl") == {"texts": ("", ())}


def test_folders_formats_and_name_patterns_are_sources() -> None:
    assert grouped(
        "data/web/train-00000-of-00002.parquet", "data/web/train-00001-of-00002.parquet", "data/web/valid.parquet",
        "data/books/emma.txt", "data/books/more/persuasion.txt", "data/books/index.csv", "data/README.md",
    ) == {
        "data": ("/data", ("/*.md",)),
        "books-csv": ("/data/books", ("index.csv",)),
        "books-text": ("/data/books", ("*.txt",)),
        "web-train": ("/data/web", ("train-*-of-*.parquet",)),
        "web-valid": ("/data/web", ("valid.parquet",)),
    }  # fmt: skip


def test_many_folders_or_patterns_are_one_source() -> None:
    assert grouped(*(f"day={day}/part-{day}.jsonl" for day in range(30))) == {"texts": ("", ())}
    assert grouped(*(f"{letter}.jsonl" for letter in "abcdefgh")) == {"texts": ("", ())}


def test_files_that_are_no_data_are_named() -> None:
    groups, problems = group_files(BASE, files("a.jsonl", "README.md", "LICENSE.txt", "my-recipe.toml", "x.qqq"))
    assert [(group.name, group.include) for group in groups] == [("texts", ("*.jsonl",))] or groups[0].include == (
        "a.jsonl",
    )
    assert [problem.split()[0] for problem in problems] == ["x.qqq", "LICENSE.txt", "README.md", "my-recipe.toml"]
    assert grouped("README.md", "guide.md") == {"texts": ("", ())}


NAME = r"([abd][0-9]{0,2}/){0,2}[ab*\[\]?0-9-]{1,4}\.(jsonl|jsonl\.gz|parquet|txt|JSON|qqq)"
names = st.lists(st.from_regex(NAME, fullmatch=True), min_size=1, max_size=20, unique=True)


@settings(max_examples=300)
@given(paths=names, url=st.sampled_from([BASE, f"{BASE}/**"]))
def test_every_file_is_selected_by_exactly_one_source(paths: list[str], url: str) -> None:
    every = files(*paths)
    groups, _ = group_files(url, every)
    assert len({group.name for group in groups}) == len(groups)
    selected: list[str] = []
    for group in groups:
        place = globs.locate(group.url)
        inside = [info for info in every if info.url.startswith(f"{place.base}/")]
        below = [replace(info, path=info.url.removeprefix(f"{place.base}/")) for info in inside]
        found = globs.select(below, place, group.include, ())
        assert {info.url for info in found} >= {info.url for info in group.files}
        selected += [info.url for info in found]
    assert sorted(selected) == sorted(info.url for info in every if not info.path.endswith("qqq"))
