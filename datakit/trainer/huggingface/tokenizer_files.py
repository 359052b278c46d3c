"""Makes the tokenizer's files of an exported model from the contract of the caches: `tokenizer.json`,
`tokenizer_config.json` and `special_tokens_map.json`, and the ids that `generation_config.json` needs.

The contract says which tokens stood around each document in training, and programs that use the model must do the same.
A wrong end-of-text token, for example, is never generated, so each generation runs to its limit. Therefore

- the begin- and end-of-text tokens are those of the contract, or none;
- the exported tokenizer puts the begin-of-text token before a text if the documents began with it, and adds nothing
  otherwise. The end-of-text token is never added, because a prompt is to be continued.

What a tokenizer.json adds is decided by its `post_processor`, the only part of the file that may be changed here. A
file that already does the right thing is copied byte for byte.
"""

from __future__ import annotations

from typing import Any

import msgspec

from datakit.cache.contract import AS_TEXT, ChatTemplate, Contract, Special
from datakit.errors import TokenizerError
from datakit.storage.json_data import decode

# Post-processors that add no tokens. All others are replaced, whatever they add.
ADDING_NOTHING = ("ByteLevel",)


def exported_tokenizer(tokenizer: bytes, contract: Contract, place: str) -> bytes:
    """Return the tokenizer.json to export. `place` is that of the original, for messages. Raises TokenizerError."""
    try:
        document = decode(tokenizer, dict[str, Any])
    except msgspec.DecodeError as error:
        raise TokenizerError(
            f"{place} is not a tokenizer.json, so the model cannot be exported with its tokenizer: {error}"
        ) from error
    before = document.get("post_processor")
    kept = [one for one in _parts(before) if one.get("type") in ADDING_NOTHING]
    wanted = kept + ([_template(contract.bos)] if contract.bos else [])
    if _parts(before) == wanted:
        return tokenizer
    processor = {"type": "Sequence", "processors": wanted} if len(wanted) > 1 else next(iter(wanted), None)
    return msgspec.json.format(msgspec.json.encode(document | {"post_processor": processor}), indent=2) + b"\n"


def _parts(processor: Any) -> list[dict[str, Any]]:
    """Return the post-processors that make up a post-processor, or none."""
    if processor is None:
        return []
    return processor["processors"] if processor.get("type") == "Sequence" else [processor]


def _template(bos: Special) -> dict[str, Any]:
    """Return the post-processor that puts a token before each text."""
    begin = {"SpecialToken": {"id": bos.token, "type_id": 0}}
    first, second = ({"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB"))
    return {
        "type": "TemplateProcessing",
        "single": [begin, first],
        "pair": [begin, first, second],
        "special_tokens": {bos.token: {"id": bos.token, "ids": [bos.id], "tokens": [bos.token]}},
    }


def tokenizer_config(contract: Contract, longest: int | None) -> dict[str, Any]:
    """Return the content of tokenizer_config.json. longest: the number of tokens in the longest training sequence."""
    found: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special_tokens_map(contract),
        "clean_up_tokenization_spaces": False,
        "add_bos_token": contract.bos is not None,
        "add_eos_token": False,
    }
    if longest is not None:
        found["model_max_length"] = longest
    if contract.special_strings == AS_TEXT:
        found["split_special_tokens"] = True
    if contract.chat_template is not None:
        found["chat_template"] = _chat_template(contract.chat_template)
    return found


def _chat_template(template: ChatTemplate) -> str | list[dict[str, str]]:
    """Return the value of `chat_template`: a template, or two with the names that programs choose them by."""
    if not template.tool_use:
        return template.template
    named = {"default": template.template, "tool_use": template.tool_use}
    return [{"name": name, "template": text} for name, text in named.items()]


def special_tokens_map(contract: Contract) -> dict[str, str]:
    """Return the content of special_tokens_map.json."""
    named = {"bos_token": contract.bos, "eos_token": contract.eos}
    return {name: special.token for name, special in named.items() if special is not None}


def special_ids(contract: Contract) -> dict[str, int | None]:
    """Return the ids of the special tokens, under their keys in config.json. A model type has default ids of its own,
    so an absent token is null, which overrides them.
    """
    ends = {"bos_token_id": contract.bos, "eos_token_id": contract.eos}
    return {name: special.id if special else None for name, special in ends.items()} | {"pad_token_id": None}
