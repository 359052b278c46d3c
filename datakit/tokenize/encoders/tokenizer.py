"""Loads a tokenizer.json with `tokenizers` (the reference), chooses the encoder, and prepares it for tasks.

datakit's own encoder (bpe/) is preferred, then fastokens. Both give the same ids as the reference, in about a thirtieth
of the time (docs/measurements.md). On a sample of every partition, their ids are compared with the reference's
(tokenize/reference_check.py). If datakit's own encoder does not support a tokenizer, and fastokens cannot load it
(WordPiece, Unigram, an unknown pre-tokenizer), panics while loading it, or is known to give different ids
(disagreements.py), the reference encodes instead, and the contract records why. fastokens is loaded only when it is
needed, because that takes some tenths of a second.

The fork server calls `load_for_tasks` once for all attempts, so it must not start any thread; a helper process reads
remote files. Truncation and padding in a tokenizer.json are switched off, because they would drop or add tokens.

`load_for_tasks` does before the fork what each task would otherwise do. It finds the places at which long texts can be
cut, and prepares the encoder: it loads the kernels and puts the vocabulary into their cache or, if fastokens encodes,
makes its first call, which builds a table of all words in its vocabulary in 20 ms of CPU time. If the tokens will be
compressed, it also imports TensorStore, which takes 0.1 s; for loss masks, which are always compressed, a preload of
its own does so (preloaded_tokenizer.py). Loading leaves 30 MB of unused memory, which is returned to the system, so
that the tasks need not copy its pages (this saved 2 to 3 % of their CPU time).
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import fastokens
import tokenizers
from tokenizers.pre_tokenizers import ByteLevel, Split

from datakit.cache import zarr_arrays
from datakit.cache.contract import SMALL_VOCABULARY
from datakit.engine.freed_memory import return_freed_memory
from datakit.engine.interpreter import command, environment
from datakit.errors import NotFoundError, TokenizerError
from datakit.storage import urls
from datakit.tokenize.encoders import word_models
from datakit.tokenize.encoders.added_tokens import added_by_string, added_tokens
from datakit.tokenize.encoders.base import OWN, Encoder, FastEncoder, ReferenceEncoder
from datakit.tokenize.encoders.custom import CustomTokenizer, is_description
from datakit.tokenize.encoders.disagreements import check_added_ids, disputed_strings, fast_refusal
from datakit.tokenize.encoders.long_texts import PART_BYTES, LongTexts
from datakit.tokenize.encoders.long_words import WordEncoder
from datakit.tokenize.encoders.safe_cuts import Splitter, find_splitter, splitting_expression
from datakit.tokenize.encoders.threads import in_another_thread, limit_threads

if TYPE_CHECKING:
    from datakit.tokenize.encoders.bpe.model import BpeModel

ENCODERS = ("auto", OWN, "fastokens", "tokenizers")
SPECIAL_STRINGS = ("keep", "text")
SHOWN_REASON = 200


@dataclass(frozen=True)
class Tokenizer:
    """A loaded tokenizer.json. text: the content of the file. definition: the same, parsed."""

    sha256: str
    reference: tokenizers.Tokenizer
    text: str = field(repr=False)
    definition: dict[str, Any] = field(repr=False)

    @cached_property
    def _fast(self) -> tuple[fastokens.Tokenizer | None, str]:
        fast, refusal = _load_fast(self.text)
        if fast and (refusal := fast_refusal(self.definition)):
            fast = None
        return fast, refusal

    @property
    def fast(self) -> fastokens.Tokenizer | None:
        """The tokenizer as fastokens loads it; None if it cannot load it or would not give the reference's ids."""
        return self._fast[0]

    @property
    def refusal(self) -> str:
        """The reason why `fast` is None."""
        return self._fast[1]

    @cached_property
    def disputed(self) -> tuple[str, ...]:
        """The strings whose texts `fast` must leave to the reference."""
        return disputed_strings(self.definition)

    @cached_property
    def own(self) -> tuple[BpeModel | None, str]:
        """The tables of datakit's own kernels, and the reason why they cannot be used, "" if there is none."""
        from datakit.tokenize.encoders.bpe import model  # imports numba, which not every user of a tokenizer needs

        return model.model_of(self.definition)

    @cached_property
    def vocabulary_size(self) -> int:
        """The highest id of any token, added tokens included, plus 1; there may be gaps between ids."""
        numbers = self.reference.get_vocab(with_added_tokens=True).values()
        return max([*numbers, *(token["id"] for token in added_tokens(self.definition))]) + 1

    @property
    def special_tokens(self) -> list[str]:
        return [token.content for token in self.reference.get_added_tokens_decoder().values() if token.special]

    def token_id(self, token: str) -> int | None:
        return self.reference.token_to_id(token)

    def encoder(self, wanted: str = "auto", special_strings: str = "keep") -> Encoder:
        """Return the encoder with the name `wanted`. Raises TokenizerError if `wanted` is not a known name, or if this
        encoder cannot be used.

        "auto" means datakit's own encoder if it can be used for this tokenizer, else fastokens, else the reference.
        """
        if wanted not in ENCODERS:
            raise TokenizerError(f"tokenize.encoder: {wanted!r} is not one of {', '.join(ENCODERS)}")
        if special_strings not in SPECIAL_STRINGS:
            raise TokenizerError(f"tokenize.special_strings: {special_strings!r} is neither 'keep' nor 'text'")
        as_text = special_strings == "text"
        if wanted in ("auto", OWN):
            own, reason = self.own
            if own is not None:
                from datakit.tokenize.encoders.bpe.encoder import BpeEncoder

                return BpeEncoder(own, special_strings, self._normalize, lambda: self._library_encoder(special_strings))
            if wanted == OWN:
                raise TokenizerError(
                    f"datakit's own encoder cannot be used for this tokenizer ({reason}); set tokenize.encoder to "
                    "'auto', 'fastokens' or 'tokenizers'"
                )
        if wanted == "tokenizers" or (wanted == "auto" and self.fast is None):
            return ReferenceEncoder(self.reference, special_as_text=as_text)
        if self.fast is None:
            raise TokenizerError(
                f"fastokens cannot be used for this tokenizer ({self.refusal}); set tokenize.encoder to 'auto' or "
                "'tokenizers'"
            )
        return FastEncoder(self.fast, as_text, self.reference, self.disputed)

    def _library_encoder(self, special_strings: str) -> Encoder:
        """Return the encoder of texts that datakit's own encoder leaves, with one thread."""
        encoder = self.encoder("fastokens" if self.fast else "tokenizers", special_strings)
        limit_threads(encoder, 1)
        return encoder

    def _normalize(self, text: str) -> str:
        normalizer = self.reference.normalizer
        return normalizer.normalize_str(text) if normalizer else text

    def reference_encoder(self, special_strings: str = "keep") -> Encoder:
        return ReferenceEncoder(self.reference, special_as_text=special_strings == "text")

    @cached_property
    def _splitting(self) -> tuple[Splitter | None, str]:
        """The splitter of long texts, and the reason why they must be encoded whole, "" if there is none. It is found
        only once, because a forked process copies the pages of the vocabulary when it reads the strings in it.
        """
        splitter, reason = find_splitter(self.definition)
        return splitter, reason or word_models.refusal(self.definition)

    def prepare(self) -> None:
        """Do what every task would otherwise do before it encodes its first text. No thread is left running. If
        fastokens encodes, its later calls in this process and its children run on one thread.
        """
        _ = self._splitting
        own, _ = self.own
        if own is not None:
            from datakit.text import token_counts

            own.learn_vocabulary()
            self.encoder(OWN).encode_batch(["one"])  # loads all kernels
            token_counts.warm()
        elif self.fast is not None:
            # fastokens keeps a copy of the table for each thread, and drops the copy when the thread ends. If this
            # thread had one, every child would copy it page by page, in more CPU time than a new copy takes.
            in_another_thread(lambda: limit_threads(self.encoder("fastokens"), 1))

    def long_texts(self, encoder: Encoder, special_strings: str = "keep", part_bytes: int = PART_BYTES) -> LongTexts:
        splitter, reason = self._splitting
        if splitter is None or reason:
            return LongTexts(encoder, None, None, reason, part_bytes)
        return LongTexts(encoder, splitter, lambda: self._words(encoder.name, special_strings), "", part_bytes)

    def _model_alone(self) -> Encoder:
        """Return an encoder that encodes each text as one word with the reference's model, which it shares. It encodes
        4 to 6 MB/s of words of several KiB. fastokens encodes two to four times as much, but takes 0.3 s to load, and
        few texts need it.
        """
        tokenizer = tokenizers.Tokenizer(self.reference.model)
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
        made = ReferenceEncoder(tokenizer)
        limit_threads(made, 1)
        return made

    def _words(self, encoder: str, special_strings: str) -> WordEncoder:
        merges_alone = not self.definition["model"].get("ignore_merges")

        def bare(ignore_merges: bool = False) -> Encoder:
            if encoder == OWN and merges_alone:
                return self._model_alone()
            text = json.dumps(word_models.bare(self.definition, ignore_merges=ignore_merges))
            fast = _load_fast(text)[0] if encoder != "tokenizers" else None
            made = FastEncoder(fast) if fast else ReferenceEncoder(tokenizers.Tokenizer.from_str(text))
            limit_threads(made, 1)
            return made

        raw, normalized = added_by_string(added_tokens(self.definition), special_strings == "keep")
        pre_tokenizer = Split(tokenizers.Regex(splitting_expression(self.definition)), "isolated")

        def pieces(text: str) -> list[tuple[int, int]]:
            return [place for _, place in pre_tokenizer.pre_tokenize_str(text)]

        sizes = word_models.token_sizes(self.definition["model"]["vocab"])
        normalized = {self._normalize(token): number for token, number in normalized.items()}
        ignoring = None if merges_alone else bare(ignore_merges=True)
        return WordEncoder(bare, sizes, self._normalize, pieces, raw, normalized, ignoring)


def load(url: str, code: str = "") -> Tokenizer | CustomTokenizer:
    """Load the tokenizer.json at `url` without starting a thread. Raises TokenizerError if it cannot be read or
    loaded. code: see `parse`.
    """
    return parse(_read(url), url, code)


def load_for_tasks(url: str, code: str = "") -> Tokenizer | CustomTokenizer:
    """Load a tokenizer as `load` does, and prepare it for the tasks of the tokenize stage, which use one CPU each."""
    tokenizer = load(url, code)
    if isinstance(tokenizer, Tokenizer):
        tokenizer.prepare()
    if tokenizer.vocabulary_size > SMALL_VOCABULARY:
        zarr_arrays.prepare()
    return_freed_memory()
    return tokenizer


def parse(data: bytes, place: str, code: str = "") -> Tokenizer | CustomTokenizer:
    """Parse the content of a tokenizer.json. place: the file's name in error messages. code: the Python function that
    the recipe names as the tokenizer; no other function is imported, whatever the content says. Raises TokenizerError
    if the content is invalid.
    """
    if is_description(data):
        return CustomTokenizer.from_description(data, place, code)
    try:
        text = data.decode()
        reference = tokenizers.Tokenizer.from_str(text)
    except BaseException as error:
        # The library raises plain Exceptions, so no narrower class can be caught.
        if not (isinstance(error, Exception) or _is_panic(error)):
            raise
        raise TokenizerError(f"{place} is not a tokenizer.json that `tokenizers` can read: {error}") from error
    reference.no_truncation()
    reference.no_padding()
    definition = json.loads(text)
    check_added_ids(reference, definition, place)
    return Tokenizer(hashlib.sha256(data).hexdigest(), reference, text, definition)


def _load_fast(text: str) -> tuple[fastokens.Tokenizer | None, str]:
    try:
        fast = fastokens.Tokenizer.from_json_str(text)
    except (ValueError, NotImplementedError, RuntimeError) as error:
        return None, str(error)[:SHOWN_REASON]
    except BaseException as error:
        if not _is_panic(error):
            raise
        return None, f"it panics: {error}"[:SHOWN_REASON]
    fast.no_truncation()
    fast.no_padding()
    return fast, ""


def _is_panic(error: BaseException) -> bool:
    """Return True if the error is a panic in Rust code, which is a BaseException but not an Exception."""
    return type(error).__name__ == "PanicException"


def _read(url: str) -> bytes:
    """Read a file. A remote file is read in another process, because clients of object stores start threads."""
    try:
        if urls.is_local(url):
            return urls.read_bytes(url)
    except NotFoundError as error:
        raise TokenizerError(f"tokenizer {url} was not found; give the path of a tokenizer.json") from error
    code = "import sys; from datakit.storage import urls; sys.stdout.buffer.write(urls.read_bytes(sys.stdin.read()))"
    # The URL may contain a signature. It is not passed as an argument, because other users can see a command line.
    done = subprocess.run(command(code), input=url.encode(), capture_output=True, env=environment(), check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise TokenizerError(f"cannot read the tokenizer {url}: {reason}")
    return done.stdout
