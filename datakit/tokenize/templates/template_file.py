"""Finds and reads the chat template of a tokenizer: the file that the recipe names or, beside the tokenizer.json, the
file chat_template.jinja or the value `chat_template` in tokenizer_config.json, in this order, as `transformers` does.

The strings of special tokens that a template can use (such as `eos_token`) are those of the tokenizer_config.json. If
it does not name one of them, the class of the tokenizer decides in `transformers`; here, the contract does (trial.py).
One that is null there does not exist; its string is "" until then.

The hash covers everything that decides what the template writes. It is in the fingerprint in place of the files' paths.
"""

from __future__ import annotations

import hashlib
from datetime import date
from typing import Any

import msgspec

from datakit.cache.contract import ChatTemplate
from datakit.errors import NotFoundError, RecipeError, TokenizerError
from datakit.storage import urls
from datakit.storage.json_data import decode

RAW = "chat_template.jinja"
TOOL_USE = "additional_chat_templates/tool_use.jinja"
CONFIG = "tokenizer_config.json"
LONGEST_TEMPLATE = 1 << 20  # bytes; the longest that we know have 20 KB
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class _Config(msgspec.Struct, frozen=True):
    """The chat template in a tokenizer_config.json: one, or several with names."""

    chat_template: str | list[dict[str, str]] | None = None


def check_date(text: str) -> None:
    """Raise RecipeError unless a date has the form 2026-01-31."""
    try:
        if date.fromisoformat(text).isoformat() == text:
            return
    except ValueError:
        pass
    raise RecipeError(f"tokenize.chat_date is {text!r}; write a date as in '2026-01-31'")


def read_template(file: str, tokenizer: str, today: str) -> ChatTemplate:
    """Return a chat template. file: the path or URL of the template or of a tokenizer_config.json that holds it; "" if
    the recipe names none. tokenizer: the path or URL of the tokenizer.json; "" if the tokenizer is not a file. today:
    the date for `strftime_now`, or "". Raises TokenizerError if there is no template, or if its file is not valid.
    """
    folder = urls.parent(tokenizer) if tokenizer else ""
    config = _read(urls.join(folder, CONFIG)) if folder else None
    variables = _variables(config, urls.join(folder, CONFIG)) if config else {}
    if file:
        data = _read(file)
        if data is None:
            raise TokenizerError(f"tokenize.chat_template: {file} was not found")
        if file.endswith(".json"):
            return _template(*_of_config(data, file), _variables(data, file) or variables, today)
        return _template(_text(data, file), "", variables, today)
    raw = _read(urls.join(folder, RAW)) if folder else None
    if raw is not None:
        tool_use = _read(urls.join(folder, TOOL_USE))
        return _template(_text(raw, folder), _text(tool_use, folder) if tool_use else "", variables, today)
    if config is not None:
        return _template(*_of_config(config, urls.join(folder, CONFIG)), variables, today)
    beside = f"there is neither {RAW} nor {CONFIG} beside {tokenizer}" if folder else "the tokenizer is not a file"
    raise TokenizerError(
        f"tokenize.chat_format = 'template' needs a chat template, but {beside}; set tokenize.chat_template to the "
        "path of one"
    )


def _template(template: str, tool_use: str, variables: dict[str, str], today: str) -> ChatTemplate:
    known = [template, tool_use, {name: text for name, text in variables.items() if text}, today]
    digest = hashlib.sha256(msgspec.json.encode(known, order="sorted")).hexdigest()
    return ChatTemplate(digest, template, tool_use, variables, today)


def _of_config(data: bytes, place: str) -> tuple[str, str]:
    """Return the template in a tokenizer_config.json, and the one for conversations with tools."""
    try:
        found = decode(data, _Config).chat_template
    except msgspec.DecodeError as error:
        raise TokenizerError(f"{place}: {error}") from error
    if isinstance(found, list):
        named = {one.get("name", ""): one.get("template", "") for one in found}
        found, tool_use = named.get("default"), named.get("tool_use", "")
    else:
        tool_use = ""
    if not found:
        raise TokenizerError(f"{place} has no chat template; set tokenize.chat_template to the path of one")
    return found, tool_use


def _variables(data: bytes, place: str) -> dict[str, str]:
    """Return the strings of the special tokens in a tokenizer_config.json; each is a string, an object or null ("")."""
    try:
        config: dict[str, Any] = decode(data, dict[str, Any])
    except msgspec.DecodeError as error:
        raise TokenizerError(f"{place}: {error}") from error
    found = {name: config[name] for name in SPECIAL if name in config}
    strings = {name: one.get("content") if isinstance(one, dict) else one or "" for name, one in found.items()}
    return {name: text for name, text in strings.items() if isinstance(text, str)}


def _read(url: str) -> bytes | None:
    try:
        if urls.size(url) > LONGEST_TEMPLATE and not url.endswith(".json"):
            raise TokenizerError(f"{url} is longer than {LONGEST_TEMPLATE:,} bytes, the limit for a chat template")
        return urls.read_bytes(url)
    except NotFoundError:
        return None


def _text(data: bytes, place: str) -> str:
    try:
        return data.decode().replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise TokenizerError(f"{place}: the chat template is not UTF-8: {error.reason}") from error
