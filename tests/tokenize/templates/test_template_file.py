"""The template is found where transformers finds it, and its hash covers all that decides what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from datakit.errors import RecipeError, TokenizerError
from datakit.tokenize.templates import template_file
from datakit.tokenize.templates.template_file import check_date, read_template


def write(folder: Path, **files: Any) -> str:
    """Write files beside a tokenizer, and return the tokenizer's path."""
    for name, content in files.items():
        file = folder / {"raw": "chat_template.jinja", "config": "tokenizer_config.json"}.get(name, name)
        file.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder / "tokenizer.json")


def test_file_of_its_own_comes_before_the_tokenizer_s_config(tmp_path: Path) -> None:
    config = {"chat_template": "of config", "eos_token": {"content": "</s>"}, "bos_token": "<s>", "pad_token": None}
    tokenizer = write(tmp_path, config=config)
    found = read_template("", tokenizer, "")
    assert (found.template, found.tool_use) == ("of config", "")
    assert found.variables == {"bos_token": "<s>", "eos_token": "</s>", "pad_token": ""}
    write(tmp_path, raw="of file\r\n")
    assert read_template("", tokenizer, "").template == "of file\n"
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("with tools")
    assert read_template("", tokenizer, "").tool_use == "with tools"
    write(tmp_path, **{"mine.jinja": "mine"})
    named = read_template(str(tmp_path / "mine.jinja"), tokenizer, "")
    assert (named.template, named.tool_use, named.variables) == ("mine", "", found.variables)


def test_config_may_hold_several_templates(tmp_path: Path) -> None:
    several = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    found = read_template("", write(tmp_path, config={"chat_template": several}), "")
    assert (found.template, found.tool_use) == ("a", "b")
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    named = read_template(str(tmp_path / "tokenizer_config.json"), str(elsewhere / "tokenizer.json"), "")
    assert named == found


def test_hash_covers_text_tools_variables_and_date(tmp_path: Path) -> None:
    several = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    configs = [
        {"chat_template": "a"},
        {"chat_template": "b"},
        {"chat_template": "a", "eos_token": "</s>"},
        {"chat_template": several},
    ]
    hashes = {read_template("", write(tmp_path, config=config), "").sha256 for config in configs}
    hashes.add(read_template("", write(tmp_path, config=configs[0]), "2026-01-31").sha256)
    assert len(hashes) == 5
    write(tmp_path, config={**configs[0], "model_max_length": 7, "bos_token": None})
    assert read_template("", str(tmp_path / "tokenizer.json"), "").sha256 in hashes


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "there is neither chat_template.jinja nor tokenizer_config.json beside"),
        ({"config": {}}, "has no chat template; set tokenize.chat_template"),
        ({"config": {"chat_template": [{"name": "rag", "template": "a"}]}}, "has no chat template"),
        ({"config": "{"}, r"tokenizer_config\.json: "),
        ({"config": {"chat_template": 7}}, r"tokenizer_config\.json: Expected `str \| array \| null`, got `int`"),
    ],
)
def test_missing_template_is_named(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    with pytest.raises(TokenizerError, match=message):
        read_template("", write(tmp_path, **files), "")


def test_unusable_files_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TokenizerError, match="the tokenizer is not a file; set"):
        read_template("", "", "")
    with pytest.raises(TokenizerError, match=r"tokenize.chat_template: .*gone.jinja was not found"):
        read_template(str(tmp_path / "gone.jinja"), "", "")
    (tmp_path / "latin.jinja").write_bytes(b"\xe9")
    with pytest.raises(TokenizerError, match=r"latin.jinja: the chat template is not UTF-8"):
        read_template(str(tmp_path / "latin.jinja"), "", "")
    monkeypatch.setattr(template_file, "LONGEST_TEMPLATE", 300)
    (tmp_path / "long.jinja").write_text("a" * 301)
    with pytest.raises(TokenizerError, match=r"long.jinja is longer than 300 bytes, the limit for a chat template"):
        read_template(str(tmp_path / "long.jinja"), "", "")


def test_date_has_one_form() -> None:
    check_date("2026-01-31")
    for wrong in ("2026-02-30", "20260131", "today", "2026-01-31T00:00"):
        with pytest.raises(RecipeError, match="write a date as in '2026-01-31'"):
            check_date(wrong)
