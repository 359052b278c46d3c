"""Reads a file sequentially, decompresses gzip, zstd, bzip2, xz, lz4 and Brotli in bounded memory, and decides when a
compressed file counts as damaged. One loop handles the first four compression formats. If a file holds several streams
in a row (gzip members, zstd frames), all of them are read. Zero padding after a stream is skipped.

A file that ends inside a stream is truncated: what could be decoded is used, and the rest is lost. If instead a stream
is corrupt (its checksum does not match, or it cannot be decoded), nothing of that stream may be used, because the
damage began at an unknown place before the one where it was noticed. Part of the stream may already have been yielded
by then: `Streams` records how far the content is known to be sound, and DamagedStreamError tells the routing task to
start again without the damaged stream. The data of earlier streams is used.

isal inflates gzip about twice as fast as zlib does (850 MB/s of text per core; zstd reaches 1,350 MB/s). A zstd frame
may need a window of up to 2 GiB (as in dumps made with `--long=31`), whose memory is allocated as the window fills.

Arrow decompresses lz4. It does not tell where a frame ends, so all frames of a file count as one stream, and a
truncated file counts as a corrupt one. Damage is noticed only if the frame has a checksum, which the program `lz4`
writes.

A Brotli file holds one stream, without a mark at its beginning or a checksum, so damage is noticed only if the stream
cannot be decoded, and may look like a truncation. The library reports an error for bytes after the stream's end, even
zeros, as it does for damage, and drops what it decoded last; therefore nothing of such a file is used. Its limit on the
output is exceeded by a factor of two at most; its window takes at most 16 MiB, as larger ones are not enabled. 1 GiB
of zeros in 800 bytes is decoded in 34 MB of memory. Cost: about 300 MB/s of text per core.
"""

from __future__ import annotations

import bz2
import lzma
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, cast

import brotli
import pyarrow as pa
import zstandard
from isal import igzip_lib

from datakit.errors import UnreadableError
from datakit.normalize.formats import MAGIC, check_head, compression_of, is_skippable
from datakit.printable import one_line

INPUT_BYTES = 1 << 20  # the cost of one system call per MiB is not measurable
ZSTD_INPUT_BYTES = 8 << 10  # small, because zstandard's output is not limited: up to 128 KiB per 4 bytes of input
OUTPUT_BYTES = 1 << 20
HEAD_BYTES = 262  # a tar archive is recognized by bytes 257 to 261
LARGEST_WINDOW = 1 << 31  # as with zstd --long=31, the largest window in practice


class DamagedError(Exception):
    """The rest of a file cannot be decoded. Readers catch this error, since they know the position to report."""


class _ContentError(Exception):
    """A compressed stream is corrupt."""


class DamagedStreamError(UnreadableError):
    """A compressed stream proved to be corrupt after part of it had been yielded.

    start: the offset of the stream's content in the decompressed file.
    """

    def __init__(self, path: str, start: int, reason: str) -> None:
        place = f"in the stream that begins at byte {start} of the decompressed file"
        super().__init__(f"{one_line(path)}: {place}, {reason}")
        self.path = path
        self.start = start
        self.reason = reason


@dataclass
class Streams:
    """The compressed streams that a task reads, counted over all its files.

    damaged: path -> (offset in the decompressed file at which to stop, reason), for the files that are known to be
    damaged.
    begun: the number of streams begun so far.
    sound: the number of streams, starting with the first, that were decoded to their end or to the end of a truncated
    file, or that a check has found to be sound.
    check: decodes a file to its end and raises DamagedStreamError if one of its streams is corrupt.
    """

    damaged: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    begun: int = 0
    sound: int = 0
    check: Callable[[str], None] = lambda path: None
    _path: str = field(default="", init=False)
    _checked: str | None = field(default=None, init=False)

    def begin(self, path: str) -> None:
        """Record that a stream of the file `path` begins. If the file was checked, the stream is known to be sound."""
        self.begun, self._path = self.begun + 1, path
        if path == self._checked:
            self.sound = self.begun

    def verify(self) -> None:
        """Check the file that is being read, unless it was checked before. Its streams are then known to be sound.

        Raises DamagedStreamError.
        """
        if self._checked != self._path:
            self.check(self._path)
            self._checked = self._path
        self.sound = self.begun


class _ZstdStream:
    """zstandard's decompressor, with the interface of `bz2.BZ2Decompressor`."""

    needs_input = True

    def __init__(self) -> None:
        self._stream = zstandard.ZstdDecompressor(max_window_size=LARGEST_WINDOW).decompressobj()

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._stream.decompress(data)

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data


OPENERS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: igzip_lib.IgzipDecompressor(flag=igzip_lib.DECOMP_GZIP),
    "zstd": _ZstdStream,
    "bzip2": bz2.BZ2Decompressor,
    "xz": lzma.LZMADecompressor,
}
_NOT_BROTLI = "the compressed data is damaged, is not Brotli data, or is followed by other data"
_CUT_OFF = "the file ends inside the compressed stream"
_ISAL_ERROR = cast(type[Exception], igzip_lib.IsalError)
DECODING_ERRORS = (_ISAL_ERROR, zstandard.ZstdError, lzma.LZMAError, OSError, EOFError, ValueError)


def decompressed(
    file: BinaryIO, path: str, start: int = 0, streams: Streams | None = None, allowed: str = ""
) -> Iterator[bytes]:
    """Yield the content of an open file, decompressed as its name implies. In a plain file, begin at byte `start`.
    allowed: see `check_head`.

    Raises UnreadableError if the content is of another kind, DamagedError if the rest cannot be decoded (after all
    usable bytes have been yielded), and DamagedStreamError if bytes already yielded must not be used.
    """
    compression = compression_of(path)
    check_head(path, file.read(HEAD_BYTES), compression, allowed)
    file.seek(start)
    if compression is None:
        while data := file.read(OUTPUT_BYTES):
            yield data
    else:
        yield from _decompress(file, path, compression, streams or Streams())


def _decompress(file: BinaryIO, path: str, compression: str, streams: Streams) -> Iterator[bytes]:
    if compression in _WHOLE:
        if path in streams.damaged:
            raise DamagedError(streams.damaged[path][1])
        yield from _sound_or_refused(_WHOLE[compression](file), path, 0, streams)
        return
    opener, magic = OPENERS[compression], MAGIC[compression]
    input_bytes = ZSTD_INPUT_BYTES if compression == "zstd" else INPUT_BYTES
    stop, reason = streams.damaged.get(path, (None, ""))
    data, position = file.read(input_bytes), 0
    while data:
        if position == stop:
            raise DamagedError(reason)
        stream = opener()
        for output in _sound_or_refused(_decompress_stream(file, stream, data, input_bytes), path, position, streams):
            position += len(output)
            yield output
        data = stream.unused_data.lstrip(b"\0")
        while not data and (more := file.read(input_bytes)):
            data = more.lstrip(b"\0")  # zero padding
        if data and not data.startswith(magic[: len(data)]) and not is_skippable(data):
            raise DamagedError("unexpected data follows the compressed stream")


def _sound_or_refused(outputs: Iterator[bytes], path: str, start: int, streams: Streams) -> Iterator[bytes]:
    """Yield the content of one stream and count the stream. Raises DamagedError or DamagedStreamError."""
    streams.begin(path)
    used = False
    try:
        for output in outputs:
            yield output
            used = True
    except _ContentError as error:
        if used:
            raise DamagedStreamError(path, start, str(error)) from error
        streams.sound = streams.begun
        raise DamagedError(str(error)) from error
    except DamagedError:
        streams.sound = streams.begun
        raise
    streams.sound = streams.begun


def _decompress_stream(file: BinaryIO, stream: Any, data: bytes, input_bytes: int) -> Iterator[bytes]:
    while not stream.eof:
        if stream.needs_input and not data:
            data = file.read(input_bytes)
            if not data:
                raise DamagedError(_CUT_OFF)
        try:
            output = stream.decompress(data, OUTPUT_BYTES)
        except DECODING_ERRORS as error:
            raise _ContentError(f"the compressed data is damaged ({error})") from error
        data = b""
        if output:
            yield output


class _LeftOpen:
    """A file that Arrow may read. Arrow closes what it has read, but the caller still needs the file."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.read = file.read

    def close(self) -> None:
        """Do nothing."""


def _decompress_lz4(file: BinaryIO) -> Iterator[bytes]:
    stream = pa.CompressedInputStream(pa.PythonFile(_LeftOpen(file), mode="r"), "lz4")
    while True:
        try:
            output = stream.read(OUTPUT_BYTES)
        except OSError as error:
            if error.errno is not None:  # an error of the disk, not of the content
                raise
            raise _ContentError(f"the compressed data is damaged or incomplete ({error})") from error
        if not output:
            return
        yield output


def _decompress_brotli(file: BinaryIO) -> Iterator[bytes]:
    stream = brotli.Decompressor()
    while not stream.is_finished():
        hungry = stream.can_accept_more_data()  # also if it has more to put out, which it then does without more data
        data = file.read(INPUT_BYTES) if hungry else b""
        try:
            output = stream.process(data, output_buffer_limit=OUTPUT_BYTES)
        except brotli.error as error:
            raise _ContentError(_NOT_BROTLI) from error
        if output:
            yield output
        elif hungry and not data and not stream.is_finished():
            raise DamagedError(_CUT_OFF)
    if file.read(1):
        raise _ContentError(_NOT_BROTLI)


# formats of which all that a file holds counts as one stream
_WHOLE: dict[str, Callable[[BinaryIO], Iterator[bytes]]] = {"lz4": _decompress_lz4, "brotli": _decompress_brotli}
