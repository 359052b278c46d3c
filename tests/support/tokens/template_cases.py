"""Conversations and chat templates on which `transformers` and datakit must agree.

An environment variable names a Python in which transformers is installed (see real_readers.py). With it,

    DATAKIT_READER_TRANSFORMERS=/tmp/peers/bin/python python -m tests.support.tokens.template_cases

writes `expected.json` beside the stored templates. If the package trl is installed there too, the tests also compare
the templates of well-known models that trl comes with, which are not stored here.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import tokenizers
from tokenizers import decoders, models, normalizers

from datakit.cache.contract import ChatTemplate
from datakit.tokenize.encoders.long_texts import LongTexts
from datakit.tokenize.encoders.tokenizer import Tokenizer
from datakit.tokenize.templates.child import compiled, guarded, rendered
from datakit.tokenize.templates.encode_chats import EncodedChats, TemplateEncoder
from datakit.tokenize.templates.limits import Limits
from datakit.tokenize.templates.renderer import Lost, Rendered
from tests.support.caches import load_tokenizer, trained
from tests.support.paths import REPOSITORY
from tests.support.tokens.real_readers import Reader

FOLDER = REPOSITORY / "tests" / "fixtures" / "chat_templates"
EXPECTED = FOLDER / "expected.json"
DATE = "2026-01-31"
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
SPECIAL = (
    "<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "[INST]",
    "[/INST]", "<start_of_turn>", "<end_of_turn>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>",
    "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>",
)  # fmt: skip
ADDED = ("<think>", "</think>", "<tool_call>", "</tool_call>")  # tokens that are not special
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "What it's like outside: “now”",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}


@dataclass(frozen=True)
class Conversation:
    messages: list[dict[str, Any]]
    tools: list[Any] | None = None


def turns(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in pairs]


CONVERSATIONS = {
    "one turn": Conversation(turns(("user", "what is two and two"), ("assistant", "four"))),
    "system and turns": Conversation(turns(("system", "be brief\n"), ("user", " hi "), ("assistant", "yo\n\n"),
                                           ("user", "more"), ("assistant", "ok"))),
    "no answer": Conversation(turns(("user", "漢字, café e\u0301"))),
    "spaces and signs": Conversation(
        turns(("user", "  x\n\n\ty  "), ("assistant", "\n  a  b <b>&amp;</b> {{ 1 }} 👩‍🚀  ")),
    ),
    "thought": Conversation(turns(("user", "why"), ("assistant", "<think>\nhm\n</think>\n\nso"), ("user", "and"),
                                  ("assistant", "<think>\noh\n</think>\n\nyes"))),
    "reasoning": Conversation([*turns(("user", "why")),
                               {"role": "assistant", "content": "so", "reasoning_content": "because"}]),
    "tools": Conversation(
        [*turns(("user", "how is it outside")), {"role": "assistant", "content": "", "tool_calls": [CALL]},
         *turns(("tool", '{"sky": "blue"}'), ("assistant", "it is blue"))],
        [WEATHER],
    ),
    "wrong order": Conversation(turns(("assistant", "hello"), ("assistant", "again"))),
}  # fmt: skip

PROGRAM = """
import datetime, json, sys
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils
try:
    from importlib import resources
    found = {one.name: one.read_text() for one in (resources.files("trl") / "chat_templates").iterdir()
             if one.name.endswith(".jinja")}
except ModuleNotFoundError:
    found = {}
asked = json.loads(open(sys.argv[1]).read())

class Fixed(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromisoformat(asked["date"])

chat_template_utils.datetime = Fixed
templates = {**found, **asked["templates"]} if asked["more"] else asked["templates"]
results = {}
for file in asked["tokenizers"]:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=file, **asked["variables"])
    for name, template in templates.items():
        for title, (messages, tools) in asked["conversations"].items():
            try:
                text = tokenizer.apply_chat_template(messages, tools=tools, chat_template=template, tokenize=False)
                made = tokenizer.apply_chat_template(
                    messages, tools=tools, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
                )
                result = [text, made["input_ids"], made["assistant_masks"]]
            except Exception as error:
                result = type(error).__name__
            results.setdefault(file.rsplit("/", 1)[-1], {}).setdefault(name, {})[title] = result
print(json.dumps({"templates": templates, "results": results}))
"""
TRANSFORMERS = Reader("transformers", "transformers, jinja2 and, for more templates, trl", PROGRAM)


def byte_level() -> Tokenizer:
    """A byte-level tokenizer with the special tokens of the templates."""
    return _with_tokens(tokenizers.Tokenizer.from_str(trained().decode()))


def with_spaces() -> Tokenizer:
    """A tokenizer whose entries stand for characters, with bytes for unknown ones, as in models of the Gemma kind."""
    single = sorted({*"abcdefghijklmnopqrstuvwxyz", "▁", "\n", "▁▁"})
    entries = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *single, "th", "ha"]
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    merges = [("▁", "▁"), ("t", "h"), ("h", "a")]
    made = tokenizers.Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return _with_tokens(made)


def _with_tokens(made: tokenizers.Tokenizer) -> Tokenizer:
    made.add_special_tokens(list(SPECIAL))
    made.add_tokens(list(ADDED))
    return load_tokenizer(made.to_str().encode())


TOKENIZERS = {"bytes.json": byte_level, "characters.json": with_spaces}


def stored_templates() -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(FOLDER.glob("*.jinja"))}


def ask_transformers(folder: Path, *, more: bool) -> dict[str, Any]:
    """Render all cases with transformers. more: also use the templates that come with trl."""
    for name, make in TOKENIZERS.items():
        (folder / name).write_text(make().reference.to_str())
    asked = {
        "date": DATE,
        "variables": VARIABLES,
        "more": more,
        "templates": stored_templates(),
        "tokenizers": [str(folder / name) for name in TOKENIZERS],
        "conversations": {title: [one.messages, one.tools] for title, one in CONVERSATIONS.items()},
    }
    (folder / "asked.json").write_text(json.dumps(asked))
    return TRANSFORMERS.read(folder / "asked.json")


@dataclass
class InlineRenderer:
    """Renders with the functions of the child process, in this process."""

    template: str
    variables: dict[str, str] = field(default_factory=lambda: dict(VARIABLES))
    date: str = DATE
    special: tuple[str, ...] = SPECIAL

    def __post_init__(self) -> None:
        first = {"template": self.template, "tool_use": "", "variables": self.variables, "date": self.date}
        first |= {"special": list(self.special)}
        self.answer, self.made = guarded(None, lambda: compiled(first, Limits()), self.template)

    def render(self, messages: list[Any], tools: list[Any] | None) -> Rendered | Lost:
        answer, _ = guarded(None, lambda: rendered(self.made, {"messages": messages, "tools": tools}), self.template)
        return Lost(answer["reason"]) if "error" in answer else Rendered(**answer)

    def close(self) -> None: ...


def encoder_of(tokenizer: Tokenizer, renderer: Any, encoder: str = "auto") -> TemplateEncoder:
    """A template encoder with this renderer."""
    texts, contents = (LongTexts(tokenizer.encoder(encoder, policy), None, None, "test") for policy in ("keep", "text"))
    template = ChatTemplate("", renderer.template, "", dict(VARIABLES), DATE)
    made = TemplateEncoder.of(template, tokenizer, texts, contents)
    made.renderer = renderer
    return made


def encoded(encoder: TemplateEncoder, conversation: Conversation) -> EncodedChats:
    """Encode a conversation that stands in columns of its own."""
    tools = None if conversation.tools is None else pa.array([json.dumps(conversation.tools)])
    return encoder.encode(pa.array([conversation.messages]), tools, "here")


def main() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        found = ask_transformers(Path(folder), more=False)
    EXPECTED.write_text(json.dumps(found["results"], ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    assert os.environ.get(TRANSFORMERS.variable), f"set {TRANSFORMERS.variable}"
    main()
