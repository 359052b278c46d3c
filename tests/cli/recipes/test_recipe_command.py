"""`datakit recipe` lists what recipes may contain."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import invoke


def test_keys_are_listed_by_table_and_by_name_within_80_columns(tmp_path: Path) -> None:
    whole = invoke("recipe", "keys", cwd=tmp_path)
    assert all(f"\n{head}\n" in f"\n{whole.stdout}" for head in ("[[sources]]", "[normalize]", "[tokenize.train]"))
    assert max(map(len, (whole.stdout + whole.stderr).splitlines())) <= 80
    one = invoke("recipe", "keys", "dedup.threshold", cwd=tmp_path).stdout
    assert "threshold  (number; default 0.8)" in one
    assert "max_removal" not in one
    keys = json.loads(invoke("recipe", "keys", "dedup", "--json", cwd=tmp_path).stdout)["keys"]
    assert {key["table"] for key in keys} == {"dedup"}
    refused = invoke("recipe", "keys", "dedup.treshold", cwd=tmp_path)
    assert (refused.returncode, "did you mean 'dedup.threshold'?" in refused.stderr) == (2, True)


def test_schema_is_printed_as_json(tmp_path: Path) -> None:
    schema = json.loads(invoke("recipe", "schema", cwd=tmp_path).stdout)
    assert schema["properties"]["dedup"]["properties"]["threshold"]["type"] == "number"
