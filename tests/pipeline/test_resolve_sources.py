"""Sources are resolved to what they are now: listed, pinned, or trusted from the last download."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import datakit
from datakit.errors import NoInputError, RecipeError, UnreadableError
from datakit.pipeline import planning
from datakit.recipe import Recipe, Source, load_recipe
from datakit.storage import atomic, urls
from tests.support.s3 import s3_root
from tests.support.small_shelf import write_lines


def test_offline_run_trusts_the_last_download(tmp_path: Path) -> None:

    with s3_root() as store:
        texts, root = urls.join(store, "texts"), str(tmp_path / "root")
        atomic.commit_bytes(b'{"text": "one"}\n', urls.join(texts, "a.jsonl"))
        recipe = Recipe("r", (Source("s", texts),))
        with pytest.raises(NoInputError, match="run once without --offline"):
            datakit.run(recipe, root, offline=True)
        first = datakit.run(recipe, root, until="normalize")
        atomic.commit_bytes(b'{"text": "two"}\n', urls.join(texts, "b.jsonl"))
        offline = datakit.run(recipe, root, offline=True, until="normalize")
        assert offline.reused
        assert "not listed" in offline.notes[0]
        assert [step.directory for step in offline.steps] == [step.directory for step in first.steps]
        online = datakit.run(recipe, root, until="normalize")
        assert online.steps_of("normalize")[0].manifest.totals.rows == 2
        newest = datakit.run(recipe, root, offline=True, until="normalize")
        assert newest.steps_of("download")[0].directory == online.steps_of("download")[0].directory
    again = datakit.run(recipe, root, offline=True, until="normalize")
    assert again.reused, "the store is gone and is not contacted"


def test_root_inside_a_source_is_rejected(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", ["one"])
    write_lines(tmp_path / "texts" / "out" / "old.jsonl", ["two"])
    recipe = tmp_path / "r.toml"
    recipe.write_text('name = "r"\n[[sources]]\nname = "s"\nurl = "texts"\n')
    with pytest.raises(RecipeError, match=r'exclude = \["out/\*\*"\]'):
        planning.plan(load_recipe(recipe), str(tmp_path / "texts" / "out"))


def test_links_out_of_a_source_need_the_recipes_leave(tmp_path: Path) -> None:
    """The key decides whether the files are read, so it is not part of the identity of what was read."""
    write_lines(tmp_path / "elsewhere" / "b.jsonl", ["two"])
    write_lines(tmp_path / "texts" / "a.jsonl", ["one"])
    (tmp_path / "texts" / "b.jsonl").symlink_to(tmp_path / "elsewhere" / "b.jsonl")
    source, root = Source("s", str(tmp_path / "texts")), str(tmp_path / "root")
    with pytest.raises(UnreadableError, match=r"b\.jsonl is a link that leads out of the source's folder; exclude it"):
        planning.plan(Recipe("r", (source,)), root)
    followed = planning.plan(Recipe("r", (replace(source, outside_links=True),)), root)
    (tmp_path / "texts" / "b.jsonl").unlink()
    write_lines(tmp_path / "texts" / "b.jsonl", ["two"])
    copied = planning.plan(Recipe("r", (source,)), root)
    assert [step.fingerprint for step in followed.steps] == [step.fingerprint for step in copied.steps]


def test_named_pipe_is_skipped_with_a_note(tmp_path: Path) -> None:
    write_lines(tmp_path / "texts" / "a.jsonl", ["one"])
    os.mkfifo(tmp_path / "texts" / "pipe.jsonl")
    planned = planning.plan(Recipe("r", (Source("s", str(tmp_path / "texts")),)), str(tmp_path / "root"))
    assert planned.notes == ("source s: left out: 1 entry that cannot be read (pipe.jsonl is a named pipe)",)
