"""The reference of a recipe's keys is complete, its examples are valid, and docs/recipe.md shows it as it is.

`python -m tests.test_recipe_keys` writes the tables in docs/recipe.md.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from dataclasses import fields
from itertools import groupby
from pathlib import Path

import jsonschema
import pyarrow as pa
import pytest

from datakit.annotate.language.builtin_model import builtin_path
from datakit.download.stage import Config as DownloadConfig
from datakit.pipeline.configuration.configure import configure
from datakit.recipe import CATALOG, Recipe, parse_recipe
from datakit.recipe_keys import (
    BUCKETS,
    EDITS,
    FINAL_RULES,
    MEANINGS,
    PASSAGES,
    TABLES,
    RecipeKey,
    heading,
    json_schema,
    recipe_keys,
)
from datakit.store_access import KEYS
from tests.support.paths import REPOSITORY

PAGE = REPOSITORY / "docs" / "recipe.md"
MARK = "This section is generated from the config classes by `python -m tests.test_recipe_keys`.\n"
RENDERED = {"chat_format": "template", "formats": {"a": "chat"}, "chat_template": "chat_template.jinja"}
BASE = {"name": "x", "sources": [{"name": "a", "url": "/x"}], "tokenize": {"tokenizer": "bytes"}}

ANNOTATE = {"language": {}, "heuristics": {"stop_words": ["gopher", "deu_Latn"]}}  # what the examples of rules read


def markdown() -> str:
    """The tables of keys, as docs/recipe.md shows them."""
    parts = [MARK]
    for table, keys in groupby(recipe_keys(), lambda entry: entry.table):
        parts.append(f"\n### `{heading(table)}`\n\n{MEANINGS[table]}\n\n| key | type | default | meaning | example |\n")
        parts.append("|---|---|---|---|---|\n" + "".join(map(_row, keys)))
    return "".join(parts)


def _row(key: RecipeKey) -> str:
    default = "required" if key.required else f"`{key.default}`" if key.default is not None else ""
    return f"| `{key.name}` | {key.type} | {default} | {key.meaning} | `{key.name} = {key.example}` |\n"


def document(key: RecipeKey) -> dict[str, object]:
    """A recipe in which a key has the value of its example."""
    value = tomllib.loads(f"{key.name} = {key.example}")
    beside = {
        "transform": {"transform_version": 1}, "transform_version": {"transform": "a:b"},
        "types": {"where": "year > 1"}, "sample_seed": {"sample": 0.5}, "files": {"url": "https://host/data"},
        "lowest": {"by": "1"}, "highest": {"by": "1"}, "by": {"lowest": 0.1},
        "part": {"set": "fineweb2"}, "without": {"set": "gopher_quality"}, "thresholds": {"set": "gopher_quality"},
        "tokenizer_version": {"tokenizer": "a:b"}, "tokenizer": {"tokenizer": "bytes"},
        **dict.fromkeys(("chat_template", "chat_date", "tools"), RENDERED),
        **{name: {"url": "s3://bucket/data"} for name in KEYS},
    }.get(key.name, {})  # fmt: skip
    values = {**value, **beside}
    if key.table == "":
        return {**BASE, **values}
    if key.table == "sources":
        beside = {"catalog": "fineweb-2"} if key.name == "parameters" else {}
        return {**BASE, "sources": [{"name": "a", "url": "/x", **values, **beside}]}
    if key.table == "rules":
        source = {"name": "web", "url": "/x"}
        return {
            **BASE,
            "sources": [source],
            "annotate": ANNOTATE,
            "rules": [{"name": "x", "where": "source = 'web'", **values}],
        }
    if key.table in (FINAL_RULES, BUCKETS):
        listed = [{"name": "x", "where": "source = 'web'", **values}]
        sources = [{"name": "web", "url": "/x"}]
        return {**BASE, "sources": sources, "annotate": ANNOTATE, "select": {key.table.split(".")[1]: listed}}
    if key.table == "select" and key.name == "equal_after_editing":
        edit = {"spans": "personal.spans", "action": "cut"}
        return {**BASE, "annotate": {"personal": {}}, "select": {**values, "edits": {"mail": edit}}}
    if key.table.startswith("annotate."):
        return {**BASE, "annotate": _annotator(key.table.split(".")[1:], {**_required(key.table, key), **values})}
    if key.table == "annotate":
        return {**BASE, "annotate": {"script": {}, **values}}
    if key.table == EDITS:
        annotate, mask = {"personal": {}}, {"replacement": "x"} if key.name != "replacement" else {}
        sources = [{"name": "novels", "url": "/x"}]
        edit = {**_required(key.table, key), **mask, **values}
        return {**BASE, "sources": sources, "annotate": annotate, "select": {"edits": {"mail": edit}}}
    if key.table == PASSAGES:
        search = {**_required(key.table, key), **values, **({"above": 1} if key.name == "keep" else {})}
        return {**BASE, "passages": {"lines": search}}
    if key.table == "tokenize.train":
        return {**BASE, "tokenize": {"tokenizer": "train", "train": values}}
    return {**BASE, key.table: {**BASE.get(key.table, {}), **values}}  # pyright: ignore[reportGeneralTypeIssues]


def _annotator(table: list[str], values: dict[str, object]) -> dict[str, object]:
    """An annotator's table with these values, which may be those of a table in it. If the annotator requires a table of
    files, it has one.
    """
    name, *inner = table
    if name == "user":
        return {name: {"quality": values}}
    if name == "model_server":
        needed = {"labels": {}, "fields": {}, "structured": {"fields": {"score": "integer"}},
                  "max_cost": {"number": [0, 5], "price_per_1k_input_tokens": 0.1}}  # fmt: skip
        found = next((needed[one] for one in needed if one in values), {"number": [0, 5]})
        return {name: {"quality": found | values}}
    for nested in TABLES:
        if nested.startswith(f"annotate.{name}.") and not inner:
            path = nested.split(".")[2:]
            values = {**values, path[0]: {path[1]: _required(nested)}}
    if inner:
        values = {**_required(f"annotate.{name}"), inner[0]: {inner[1]: values}}
    return {name: values}


def _required(table: str, key: RecipeKey | None = None) -> dict[str, object]:
    """The examples of the keys that an annotator requires beside this one. A model's path requires a sha256, and a
    sha256 a model.
    """
    names = {"model", "sha256"} if key is not None and key.name in ("model", "sha256") else set[str]()
    beside = [one for one in recipe_keys() if one.table == table and (one.required or one.name in names)]
    return tomllib.loads("\n".join(f"{one.name} = {one.example}" for one in beside))


def test_page_shows_the_current_keys() -> None:
    _, mark, rest = PAGE.read_text().partition(MARK)
    assert mark + rest == markdown(), "run `python -m tests.test_recipe_keys`"


def test_every_key_is_described() -> None:
    keys = recipe_keys()
    assert all(key.meaning.endswith(".") and key.example != "null" for key in keys)
    found = {(key.table, key.name) for key in keys}
    for table, kinds in TABLES.items():
        names = {field.name for kind in kinds for field in fields(kind)} if table else {"name", "description"}
        names -= {"splits"} if table == "normalize" else set()  # written out from the key of a source
        names -= {other.removeprefix(f"{table}.").split(".")[0] for other in TABLES if other.startswith(f"{table}.")}
        assert {name for where, name in found if where == table} == names
    assert {name for where, name in found if where == "sources"} > {field.name for field in fields(DownloadConfig)}
    tables = {field.name for field in fields(Recipe)} - {"origin", "name", "description"}
    assert tables == {table for table in TABLES if table and "." not in table}


@pytest.mark.parametrize("key", recipe_keys(), ids=lambda key: f"{key.table}.{key.name}")
def test_examples_are_accepted_and_fit_the_schema(
    key: RecipeKey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(
        "import datakit, pyarrow as pa\n@datakit.annotator(version=1, writes={'n': pa.int32()})\n"
        "def exclamations(batch, mark='!'): return batch\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    for one in recipe_keys():
        if one.table.startswith("annotate.") and one.name == "path":  # the examples of sha256 are those of this model
            path = tmp_path / tomllib.loads(f"path = {one.example}")["path"].replace("*", "")
            path.parent.mkdir(exist_ok=True)
            shutil.copy(builtin_path(), path)
    recipe = document(key)
    (tmp_path / RENDERED["chat_template"]).write_text("a template")
    configure(parse_recipe(recipe, "example", tmp_path))
    jsonschema.validate(recipe, json_schema())


def test_schema_accepts_the_catalog_and_refuses_typos() -> None:
    schema = json_schema()
    for rules in ([{"name": "x", "where": "true"}], [{"set": "mc4"}]):
        jsonschema.validate({**BASE, "rules": rules, "select": {"rules": rules}}, schema)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({**BASE, "sources": [{"catalog": "arxiv", "sample": 0.1}]}, schema)
    for path in CATALOG.glob("*.toml"):
        jsonschema.validate(tomllib.loads(path.read_text()), schema)
    for wrong in (
        {"dedupe": {}}, {"dedup": {"treshold": 0.9}}, {"dedup": {"threshold": "much"}}, {"sources": [{"name": "a"}]},
        {"sources": [{"name": "a", "url": "x", "format": "pdf"}]}, {"sources": [{"catalog": ["arxiv"]}]},
        {"tokenize": {"tokenizer": "train", "train": {"v": 1}}}, {"annotate": {"language": {"topk": 2}}},
        {"rules": [{"where": "true"}]}, {"rules": [{"set": "mc4", "tresholds": {}}]},
        {"select": {"edits": {"mail": {"spans": "personal.spans", "verb": "cut"}}}},
    ):  # fmt: skip
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**BASE, **wrong}, schema)


def test_filter_on_the_page_works() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    found: dict[str, object] = {}
    exec(compile(code, "my_filters", "exec"), found)
    batch = pa.RecordBatch.from_pydict({"text": ["a" * 200, "a" * 199, "{" * 200, None], "n": [1, 2, 3, 4]})
    assert found["long_enough"](batch)["n"].to_pylist() == [1]  # pyright: ignore[reportCallIssue]


if __name__ == "__main__":
    before, _, _ = PAGE.read_text().partition(MARK)
    PAGE.write_text(before + markdown())
