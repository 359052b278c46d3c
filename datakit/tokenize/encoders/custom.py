"""Tokenizers that are no tokenizer.json: bytes, and whatever a package of the user's offers, by a small protocol.

    [tokenize]
    tokenizer = "bytes"                          # built in: a token a byte, and end-of-text

    [tokenize]
    tokenizer = "my_package.dna:nucleotides"     # a function that returns a TextTokenizer
    tokenizer_version = "2"                      # what the fingerprint knows it by; must be the tokenizer's own

Code cannot be hashed the way a file can, so the declared version takes its place: beside the cache lies a
tokenizer.json that says function, name, version, vocabulary and special tokens, its hash is the contract's, and whoever
opens it gets a tokenizer that says the same of itself, or an error.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from datakit.errors import TokenizerError
from datakit.tokenize.encoders.base import Encoder
from datakit.tokenize.encoders.long_texts import LongTexts

MARK = "datakit_tokenizer"
BYTES = "bytes"
BUILT_IN = {BYTES: f"{__name__}:byte_tokenizer"}
BYTE_VALUES = 256


class TextTokenizer(Protocol):
    """What a custom tokenizer must offer."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def version(self) -> str:
        """To be changed whenever an id changes."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """The highest id + 1."""
        ...

    @property
    def special(self) -> Mapping[str, int]:
        """Tokens that stand for no text, end-of-text among them, by name."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts, uint32 [T], and how many each has, int64 [N]."""
        ...


@dataclass(frozen=True)
class ByteTokenizer:
    """A token a byte of UTF-8, id 0 to 255; 256 is end-of-text. Nothing in a text is ever special."""

    name: str = "bytes"
    version: str = "1"
    vocabulary_size: int = BYTE_VALUES + 1

    @property
    def special(self) -> Mapping[str, int]:
        """See TextTokenizer."""
        return {"<|endoftext|>": BYTE_VALUES}

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See TextTokenizer."""
        encoded = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.frombuffer(b"".join(encoded), np.uint8).astype(np.uint32), lengths


def byte_tokenizer() -> ByteTokenizer:
    """The built-in tokenizer "bytes"."""
    return ByteTokenizer()


@dataclass(frozen=True)
class CustomTokenizer:
    """A TextTokenizer in the place of a loaded tokenizer.json. There is no reference to compare it with."""

    sha256: str
    inner: TextTokenizer
    refusal: str = ""

    @classmethod
    def from_description(cls, data: bytes, place: str) -> CustomTokenizer:
        """The tokenizer that these bytes describe. Raises TokenizerError if the installed one says otherwise."""
        said = json.loads(data)
        function = said[MARK]
        found = json.loads(describe(function, said["version"]))
        if found != said:
            keys = ", ".join(key for key in said if said[key] != found.get(key))
            raise TokenizerError(f"{place}: the installed {function} differs from what is described there in {keys}")
        return cls(hashlib.sha256(data).hexdigest(), resolve(function))

    @property
    def vocabulary_size(self) -> int:
        """The highest id + 1."""
        return self.inner.vocabulary_size

    @property
    def special_tokens(self) -> list[str]:
        """The special tokens' names."""
        return list(self.inner.special)

    def token_id(self, token: str) -> int | None:
        """The id of a special token by its name."""
        return self.inner.special.get(token)

    def encoder(self, wanted: str = "auto", special_strings: str = "keep") -> Encoder:
        """Itself. Raises TokenizerError where another library is asked for."""
        if wanted not in ("auto", self.inner.name):
            raise TokenizerError(
                f"tokenize.encoder is {wanted!r}, but the tokenizer {self.inner.name!r} encodes itself"
            )
        return self.inner

    def reference_encoder(self, special_strings: str = "keep") -> None:
        """There is none."""
        return

    def long_texts(self, encoder: Encoder, special_strings: str = "keep") -> LongTexts:
        """Documents are given whole: where such a tokenizer may be cut is not known."""
        return LongTexts(encoder, None, None, "a custom tokenizer gets each document whole")


def is_custom(tokenizer: str) -> bool:
    """Whether a recipe's `tokenizer` names code, not a file."""
    package, colon, function = tokenizer.partition(":")
    return tokenizer in BUILT_IN or (bool(colon) and function.isidentifier() and _is_dotted(package))


def _is_dotted(package: str) -> bool:
    return all(part.isidentifier() for part in package.split("."))


def resolve(function: str) -> TextTokenizer:
    """Call `package.module:function`. Raises TokenizerError if it is not there."""
    module, _, name = BUILT_IN.get(function, function).partition(":")
    try:
        return getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise TokenizerError(f"tokenizer {function!r} cannot be had: {error}; is its package installed?") from error


def describe(function: str, version: str | int | None) -> bytes:
    """The tokenizer.json of a custom tokenizer. Raises TokenizerError unless `version` is the one it has."""
    tokenizer = resolve(function)
    if function in BUILT_IN and version is None:
        version = tokenizer.version
    if version is None:
        raise TokenizerError(f"tokenizer {function!r} is code: say tokenizer_version = {tokenizer.version!r} beside it")
    if str(version) != tokenizer.version:
        raise TokenizerError(
            f"tokenizer {function!r} has version {tokenizer.version!r}, the recipe says {str(version)!r}: set "
            "tokenize.tokenizer_version to what is installed, or install what the recipe means"
        )
    facts: dict[str, Any] = {
        MARK: function,
        "name": tokenizer.name,
        "version": tokenizer.version,
        "vocabulary_size": tokenizer.vocabulary_size,
        "special": dict(tokenizer.special),
    }
    return json.dumps(facts, indent=1).encode() + b"\n"
