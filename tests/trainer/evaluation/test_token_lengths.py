"""The lengths of tokens add up to those of texts, and only a byte-level vocabulary has them."""

from __future__ import annotations

import json

import pytest

from datakit.errors import TokenizerError
from datakit.trainer.evaluation.token_lengths import MOST_IDS, token_byte_lengths
from tests.support.data import need_data


@pytest.mark.parametrize("name", ["gpt2.json", "gpt-neox-olmo-dolma-v1_5.json"])
def test_token_bytes_sum_to_the_text_s_bytes(name: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = need_data() / "tokenizers" / name
    lengths = token_byte_lengths(path.read_bytes(), name)
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    for text in (
        "plain words\n\n\tand  runs   of spaces",
        "naïve — 東京タワー 🗼",
        "def f(x):\n    return x**2\n" * 50,
    ):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert lengths[ids].sum() == len(text.encode())
    assert lengths[tokenizer.token_to_id("<|endoftext|>")] == 0


def test_other_vocabularies_are_refused() -> None:
    data = json.dumps({"model": {"vocab": {"a": 0}}, "decoder": {"type": "WordPiece"}}).encode()
    with pytest.raises(TokenizerError, match=r"my.json has no byte-level vocabulary"):
        token_byte_lengths(data, "my.json")


def hostile(**changes: object) -> bytes:
    file = {"model": {"vocab": {"a": 0}}, "decoder": {"type": "ByteLevel"}, "added_tokens": []}
    return json.dumps(file | changes).encode()


TOKEN = {"id": 1, "content": "x", "special": False}
HOSTILE = {
    "no JSON": b"{",
    "no UTF-8": hostile(model={"vocab": {"Z": 0}}).replace(b"Z", b"\xff"),
    "a list": b"[]",
    "deeply nested": hostile(decoder="Z").replace(b'"Z"', b"[" * 100_000 + b"]" * 100_000),
    "no model": hostile(model=None),
    "an empty vocabulary": hostile(model={"vocab": {}}),
    "a list as its vocabulary": hostile(model={"vocab": [["a", 0.0]]}),
    "an id that takes all memory": hostile(model={"vocab": {"a": MOST_IDS}}),
    "a negative id": hostile(model={"vocab": {"a": 0, "b": -1}}),
    "an id that is not a number": hostile(model={"vocab": {"a": "0"}}),
    "an added id that takes all memory": hostile(added_tokens=[TOKEN | {"id": 1 << 40}]),
    "a negative added id": hostile(added_tokens=[TOKEN | {"id": -1}]),
    "an added token that is no object": hostile(added_tokens=[7]),
    "an added token without content": hostile(added_tokens=[{"id": 1, "special": False}]),
    "an object of added tokens": hostile(added_tokens={"a": TOKEN}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_tokenizer_file_gives_no_lengths(case: str) -> None:
    with pytest.raises(TokenizerError, match=r"^my.json has no byte-level vocabulary"):
        token_byte_lengths(HOSTILE[case], "my.json")
