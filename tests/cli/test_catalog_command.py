"""`datakit catalog` lists recipes, and prints them to be edited."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.command_line import invoke


def test_catalog_lists_and_prints_recipes_to_edit(tmp_path: Path) -> None:
    listed = invoke("catalog", cwd=tmp_path).stdout
    assert "demo" in listed
    assert "fineweb-edu-10bt" in listed
    (tmp_path / "mine.toml").write_text(invoke("catalog", "demo", cwd=tmp_path).stdout)
    plan = json.loads(invoke("plan", "mine.toml", "--json", cwd=tmp_path).stdout)
    assert plan["dataset"] == "demo"
    recipes = json.loads(invoke("catalog", "--json", cwd=tmp_path).stdout)["recipes"]
    assert {"demo", "fineweb-edu-10bt"} <= {recipe["name"] for recipe in recipes}
