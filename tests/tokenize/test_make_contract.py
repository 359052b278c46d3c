"""Tests of the contract that is made from a tokenizer and a recipe's settings."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest
import tokenizers

from datakit.cache.contract import PARTS, WHOLE, Special
from datakit.errors import TokenizerError
from datakit.tokenize.encoders import tokenizer as tokenizer_module
from datakit.tokenize.encoders import word_models
from datakit.tokenize.make_contract import GOLDEN, make_contract
from tests.support.caches import contract_of, load_tokenizer, trained
from tests.support.tokens.tokenizer_kinds import small_tokenizer


def test_contract_describes_the_tokens() -> None:
    contract = contract_of(trained())
    assert contract.tokenizer_sha256 == hashlib.sha256(trained()).hexdigest()
    assert (contract.encoder, contract.vocabulary_size, contract.dtype) == ("datakit", 400, np.uint16)
    assert (contract.bos, contract.eos) == (None, Special("<|endoftext|>", 0))
    reference = tokenizers.Tokenizer.from_str(trained().decode())
    assert [golden.text for golden in contract.golden] == list(GOLDEN)
    assert all(golden.ids == reference.encode(golden.text).ids for golden in contract.golden)
    assert 0 in contract.golden[-1].ids  # a special token's string inside a text is that token


def test_special_tokens_are_never_guessed() -> None:
    both = tokenizers.Tokenizer.from_str(trained().decode())
    both.add_special_tokens(["<s>", "</s>", "<|mask|>"])
    data = both.to_str().encode()
    with pytest.raises(TokenizerError, match=r"more than one token with a usual name \(<\|endoftext\|>, </s>\) for"):
        contract_of(data)
    with pytest.raises(TokenizerError, match="no token '<end>'; its special tokens are"):
        contract_of(data, eos="<end>")
    with pytest.raises(TokenizerError, match="did you mean 'both'"):
        contract_of(data, add="boht", eos="</s>")
    found = contract_of(data, add="both", eos="<|mask|>")
    assert (found.bos, found.eos) == (Special("<s>", 400), Special("<|mask|>", 402))


def test_libraries_that_match_nested_added_tokens_differently_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    definition = json.loads(trained())
    plain = {"single_word": False, "lstrip": False, "rstrip": False}
    for number, (content, normalized) in enumerate([("<|sep a|>", True), ("sep", False)]):
        token = {"id": 400 + number, "content": content, "special": False, "normalized": normalized, **plain}
        definition["added_tokens"].append(token)
    assert contract_of(json.dumps(definition).encode()).encoder == "fastokens"
    monkeypatch.setattr(tokenizer_module, "disputed_strings", lambda definition: ())
    with pytest.raises(TokenizerError, match="added tokens differently"):
        contract_of(json.dumps(definition).encode())


def test_probe_finds_parts_that_treat_words_of_the_vocabulary_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    data = json.dumps(small_tokenizer("ignore_merges").definition).encode()
    assert contract_of(data).long_texts == PARTS
    bare = word_models.bare
    monkeypatch.setattr(word_models, "bare", lambda definition, ignore_merges: bare(definition))
    assert contract_of(data).long_texts == f"{WHOLE}: encoded in parts, a probe has other tokens"


def test_special_strings_that_the_model_itself_contains_are_not_text() -> None:
    """A Unigram model has its special tokens as ordinary pieces."""
    pieces = [("<unk>", 0.0), ("</s>", 0.0), *((character, -3.0) for character in "▁ab</s>")]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, 0, False))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()  # pyright: ignore[reportAttributeAccessIssue]
    made.add_special_tokens(["</s>"])
    tokenizer = load_tokenizer(made.to_str().encode())
    choices = (tokenizer, tokenizer.encoder("auto"), "eos", None, None)
    assert make_contract(*choices).eos == Special("</s>", 1)
    with pytest.raises(TokenizerError, match="its model encodes the string"):
        make_contract(*choices, special_strings="text")
