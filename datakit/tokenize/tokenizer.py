"""A tokenizer.json, loaded twice: by `tokenizers`, the reference, and by `fastokens`, which encodes.

fastokens gives the same ids at some fifty times the speed (docs/measurements.md), and that is verified on every
partition (verify.py). Where it cannot load a tokenizer (WordPiece, Unigram, an unknown pre-tokenizer) the reference
encodes, and the contract names it.

`load` is what the fork server calls once for all attempts: it starts no thread, also for a remote file, which a helper
process reads. Truncation and padding that a tokenizer.json may ask for are switched off: both would lose or invent
tokens. Threads: fastokens makes its own pool at its first call, as wide as the CPUs that the process may use, whatever
RAYON_NUM_THREADS says (three threads too many on four cores, measured); so that first call is made while only the
task's CPUs may be used.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import fastokens
import numpy as np
import tokenizers

from datakit.errors import NotFoundError, TokenizerError
from datakit.storage import urls

REFERENCE_BYTES = 1 << 20  # Encoding objects take some 100 bytes a token: few at a time
ENCODERS = ("auto", "fastokens", "tokenizers")
TASKS = Path("/proc/self/task")


class Encoder(Protocol):
    """Anything that turns texts into ids, nothing added: the seam for tokenizers of other kinds."""

    @property
    def name(self) -> str:
        """The library's name, as the contract records it."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The ids of all texts, uint32 [T], and how many each has, int64 [N]."""
        ...


@dataclass(frozen=True)
class FastEncoder:
    """fastokens; ids come back as one buffer, without a Python object a token."""

    tokenizer: fastokens.Tokenizer
    name: str = "fastokens"

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See Encoder."""
        ids, offsets = self.tokenizer.encode_batch_flat(list(texts))
        return np.frombuffer(ids, "<u4"), np.diff(np.frombuffer(offsets, "<u8").astype(np.int64))


@dataclass(frozen=True)
class ReferenceEncoder:
    """tokenizers; an Encoding object a text, dropped after each MiB of text."""

    tokenizer: tokenizers.Tokenizer
    name: str = "tokenizers"

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See Encoder."""
        parts, lengths = [np.empty(0, np.uint32)], [np.empty(0, np.int64)]
        for piece in _pieces(texts):
            encodings = self.tokenizer.encode_batch_fast(piece, add_special_tokens=False)
            ids = [np.array(encoding.ids, np.uint32) for encoding in encodings]
            parts += ids
            lengths.append(np.array([len(array) for array in ids], np.int64))
        return np.concatenate(parts), np.concatenate(lengths)


def _pieces(texts: Sequence[str]) -> Iterator[list[str]]:
    piece: list[str] = []
    size = 0
    for text in texts:
        piece.append(text)
        size += len(text)
        if size >= REFERENCE_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


@dataclass(frozen=True)
class Tokenizer:
    """A loaded tokenizer.json. `refusal` says why fastokens does not take it; then `fast` is None."""

    sha256: str
    reference: tokenizers.Tokenizer
    fast: fastokens.Tokenizer | None
    refusal: str = ""

    def encoder(self, wanted: str) -> Encoder:
        """The encoder of this name; "auto" takes fastokens where it can. Raises TokenizerError."""
        if wanted not in ENCODERS:
            raise TokenizerError(f"tokenize.encoder: {wanted!r} is none of {', '.join(ENCODERS)}")
        if wanted == "tokenizers" or (wanted == "auto" and self.fast is None):
            return ReferenceEncoder(self.reference)
        if self.fast is None:
            raise TokenizerError(
                f"fastokens cannot load this tokenizer ({self.refusal}); set tokenize.encoder to 'auto' or 'tokenizers'"
            )
        return FastEncoder(self.fast)


def load(url: str) -> Tokenizer:
    """The tokenizer.json at `url`. Starts no thread. Raises TokenizerError."""
    return parse(_read(url), url)


def parse(data: bytes, place: str) -> Tokenizer:
    """The tokenizer in these bytes of a tokenizer.json. Raises TokenizerError."""
    try:
        text = data.decode()
        reference = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises no narrower one
        raise TokenizerError(f"{place} is not a tokenizer.json that `tokenizers` can read: {error}") from error
    reference.no_truncation()
    reference.no_padding()
    fast, refusal = _load_fast(text)
    return Tokenizer(hashlib.sha256(data).hexdigest(), reference, fast, refusal)


def _load_fast(text: str) -> tuple[fastokens.Tokenizer | None, str]:
    try:
        fast = fastokens.Tokenizer.from_json_str(text)
    except (ValueError, NotImplementedError, RuntimeError) as error:
        return None, str(error)
    fast.no_truncation()
    fast.no_padding()
    return fast, ""


def _read(url: str) -> bytes:
    """The file's bytes; drivers of object stores start threads, so another process reads what is not on this disk."""
    try:
        if urls.is_local(url):
            return urls.read_bytes(url)
    except NotFoundError as error:
        raise TokenizerError(f"the tokenizer {url} is not there; give the path of a tokenizer.json") from error
    code = "import sys; from datakit.storage import urls; sys.stdout.buffer.write(urls.read_bytes(sys.argv[1]))"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code, url], capture_output=True, env=environment, check=False)
    if done.returncode:
        reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise TokenizerError(f"the tokenizer {url} cannot be read: {reason}")
    return done.stdout


def hold_threads(encoder: Encoder, cpus: int) -> None:
    """Make the encoder start its threads, no more than `cpus`. Call it in a task, before the first batch."""
    with narrowed(cpus):
        encoder.encode_batch(["one", "two"])


@contextmanager
def narrowed(cpus: int) -> Iterator[None]:
    """Within, this thread and those it starts may use `cpus` CPUs, so that is how many a library makes threads for.

    Afterwards they may use all again: which ones is the scheduler's business. Where the system has no CPU affinity
    (macOS) nothing is held.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed, threads = os.sched_getaffinity(0), _threads()
    os.sched_setaffinity(0, sorted(allowed)[:cpus])
    try:
        yield
    finally:
        for thread in (_threads() - threads) | {0}:
            os.sched_setaffinity(thread, allowed)


def _threads() -> set[int]:
    return {int(thread.name) for thread in TASKS.iterdir()}
