"""Defines tokenizers that are Python code: the built-in `bytes`, and those that user packages implement.

    [tokenize]
    tokenizer = "bytes"                          # built in: one token per byte, plus end-of-text

    [tokenize]
    tokenizer = "my_package.dna:nucleotides"     # a function that returns a TextTokenizer
    tokenizer_version = "2"                      # enters the fingerprint; must equal the tokenizer's `version`

Code cannot be hashed like a file, so the declared version takes the place of a hash. The tokenizer.json in the cache's
directory states the tokenizer's function, name, version, vocabulary size and special tokens; the contract holds the
hash of this file. When a step of the recipe loads this file, the installed tokenizer must agree with what the file
states. If the code of the user's package fails, the error message shows the traceback.

A tokenizer.json is data, and may come from a stranger: a function that it names is imported only if the function is
built in or the recipe itself also names it. A cache made with a custom tokenizer can be read and trained on without the
tokenizer's code, but its tokens cannot be shown as text.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import numpy as np

from datakit.engine.user_code import describe as describe_error
from datakit.engine.user_code import user_code
from datakit.engine.user_modules import loaded
from datakit.errors import DatakitError, TokenizerError
from datakit.storage.json_data import decode
from datakit.tokenize.encoders.base import Encoder
from datakit.tokenize.encoders.long_texts import LongTexts

MARK = "datakit_tokenizer"
MARKED = re.compile(rb'\s*\{\s*"' + MARK.encode() + rb'"\s*:')  # this key comes first, because `describe` puts it there
BYTES = "bytes"
BUILT_IN = {BYTES: f"{__name__}:ByteTokenizer"}
BYTE_VALUES = 256
SHOWN_NAME = 100  # a message shows at most this many characters of a name that comes from a file


class Description(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a tokenizer.json that describes a custom tokenizer. function: see `resolve`."""

    function: str = msgspec.field(name=MARK)
    name: str
    version: str
    vocabulary_size: int
    special: dict[str, int]


class TextTokenizer(Encoder, Protocol):
    """The protocol of a custom tokenizer: an encoder that has a vocabulary.

    Whenever a change to the tokenizer gives any text different ids, the version must change too. vocabulary_size: the
    highest id plus 1. special: the ids, by string, of the tokens that do not represent text, including end-of-text.
    """

    @property
    def vocabulary_size(self) -> int: ...

    @property
    def special(self) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class ByteTokenizer:
    """A tokenizer with one token per UTF-8 byte (ids 0 to 255) and the token 256, end-of-text. It treats no string
    inside a text as a special token.
    """

    name: str = "bytes"
    version: str = "1"
    vocabulary_size: int = BYTE_VALUES + 1

    @property
    def special(self) -> Mapping[str, int]:
        return {"<|endoftext|>": BYTE_VALUES}

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        encoded = [text.encode() for text in texts]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        return np.frombuffer(b"".join(encoded), np.uint8).astype(np.uint32), lengths


@dataclass(frozen=True)
class CheckedEncoder:
    """An encoder that calls a custom tokenizer. Raises UserCodeError if the tokenizer fails, and TokenizerError if the
    tokenizer's result breaks the protocol.
    """

    inner: TextTokenizer

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def version(self) -> str:
        return self.inner.version

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        with user_code(f"tokenizer {self.name!r}", f"a {type(texts).__name__} of {len(texts)} strings"):
            ids, lengths = self.inner.encode_batch(texts)
            counts = int(np.sum(lengths)), len(lengths), int(np.max(ids, initial=0))
        for name, kind, value in (("ids", "uint32", ids), ("lengths", "int64", lengths)):
            if not isinstance(value, np.ndarray) or value.dtype != kind or value.ndim != 1:
                found = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__
                raise TokenizerError(
                    f"tokenizer {self.name!r} returned {found} as its {name}; these must be a one-dimensional numpy "
                    f"array of {kind}"
                )
        if counts[:2] != (len(ids), len(texts)) or counts[2] >= self.inner.vocabulary_size:
            raise TokenizerError(
                f"tokenizer {self.name!r} returned {len(ids)} ids (highest: {counts[2]}) and {counts[1]} lengths (sum: "
                f"{counts[0]}) for {len(texts)} texts; there must be one length per text, the lengths must add up "
                f"to the number of ids, and all ids must be below vocabulary_size = {self.inner.vocabulary_size}"
            )
        return ids, lengths


@dataclass(frozen=True)
class CustomTokenizer:
    """Gives a TextTokenizer the interface of a loaded tokenizer.json. There is no reference encoder with which the
    tokenizer's ids can be compared.
    """

    sha256: str
    inner: TextTokenizer
    refusal: str = ""

    @classmethod
    def from_description(cls, data: bytes, place: str, code: str = "") -> CustomTokenizer:
        """Load the tokenizer that `data`, the content of a tokenizer.json, describes. place: the file's name in error
        messages. code: the function that the recipe names, or "". Raises TokenizerError if the file names any other
        function that is not built in, or if the installed tokenizer differs from this description.
        """
        described = read_description(data, place)
        function = described.function
        if function != code and function not in BUILT_IN:
            shown = repr(function[:SHOWN_NAME])
            raise TokenizerError(
                f"{place} names the Python function {shown} as its tokenizer; datakit imports no code that a file "
                f"names (to tokenize with this function, set tokenize.tokenizer = {shown} in the recipe)"
            )
        installed = read_description(describe(function, described.version), function)
        if installed != described:
            fields = ((field.name, field.encode_name) for field in msgspec.structs.fields(Description))
            keys = ", ".join(key for name, key in fields if getattr(described, name) != getattr(installed, name))
            raise TokenizerError(
                f"{place}: the installed tokenizer {function!r} differs from this description in {keys}; "
                f"install the described version"
            )
        return cls(hashlib.sha256(data).hexdigest(), resolve(function))

    @property
    def vocabulary_size(self) -> int:
        return self.inner.vocabulary_size

    @property
    def special_tokens(self) -> list[str]:
        return list(self.inner.special)

    def token_id(self, token: str) -> int | None:
        return self.inner.special.get(token)

    def encoder(self, wanted: str = "auto", special_strings: str = "keep") -> Encoder:
        """Return an encoder that calls the tokenizer. Raises TokenizerError if `wanted` names any other encoder."""
        if wanted not in ("auto", self.inner.name):
            raise TokenizerError(
                f"tokenize.encoder is {wanted!r}, but the custom tokenizer {self.inner.name!r} is its own encoder"
            )
        return CheckedEncoder(self.inner)

    def reference_encoder(self, special_strings: str = "keep") -> None:
        return

    def long_texts(self, encoder: Encoder, special_strings: str = "keep") -> LongTexts:
        """Return an encoder that never cuts a document, because it is unknown where a custom tokenizer allows cuts."""
        return LongTexts(encoder, None, None, "a custom tokenizer gets each document whole")


def is_description(data: bytes) -> bool:
    """Return True if the content of a tokenizer.json describes a custom tokenizer."""
    return MARKED.match(data) is not None


def read_description(data: bytes, place: str) -> Description:
    """Decode a description. Raises TokenizerError if it is invalid. Nothing that it names is imported."""
    try:
        return decode(data, Description)
    except msgspec.DecodeError as error:
        raise TokenizerError(f"{place} is not the description of a custom tokenizer: {error}") from error


def is_custom(tokenizer: str) -> bool:
    """Return True if `tokenizer`, a value from a recipe, names code, not a file."""
    package, colon, function = tokenizer.partition(":")
    names = [*package.split("."), function]
    return tokenizer in BUILT_IN or (bool(colon) and all(name.isidentifier() for name in names))


def code_of(tokenizer: str) -> str:
    """Return the function that a recipe's `tokenizer` names, or "" if it names a file or a built-in tokenizer."""
    return tokenizer if is_custom(tokenizer) and tokenizer not in BUILT_IN else ""


def resolve(function: str) -> TextTokenizer:
    """Call `function` ("package.module:function" or a built-in name), and return its tokenizer. Raises TokenizerError
    if the call fails.
    """
    remedy = "install its package, or add its folder to PYTHONPATH"
    make = loaded(BUILT_IN.get(function, function), f"tokenizer {function!r}", remedy, TokenizerError)
    try:
        return make()
    except DatakitError:
        raise
    except Exception as error:
        raise TokenizerError(f"tokenizer {function!r} cannot be loaded\n{describe_error(error)}") from error


def describe(function: str, version: str | int | None) -> bytes:
    """Return the tokenizer.json of the custom tokenizer that `function` names. Raises TokenizerError unless the
    installed version is `version`, which may be None only for a built-in tokenizer.
    """
    tokenizer = resolve(function)
    if function in BUILT_IN and version is None:
        version = tokenizer.version
    if version is None:
        raise TokenizerError(
            f"tokenizer {function!r} is a Python function, which cannot be hashed like a file; also set "
            f"tokenizer_version = {tokenizer.version!r}"
        )
    if str(version) != tokenizer.version:
        raise TokenizerError(
            f"tokenizer {function!r} has version {tokenizer.version!r}, but the recipe states {str(version)!r}; set "
            "tokenize.tokenizer_version to the installed version, or install the version that the recipe names"
        )
    facts: dict[str, Any] = {
        MARK: function,
        "name": tokenizer.name,
        "version": tokenizer.version,
        "vocabulary_size": tokenizer.vocabulary_size,
        "special": dict(tokenizer.special),
    }
    return json.dumps(facts, indent=1).encode() + b"\n"
