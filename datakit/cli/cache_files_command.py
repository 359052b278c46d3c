"""Implements `datakit cache import` (of Levanter or Megatron data) and `datakit cache export` (to these formats, and to
MDS and Lance).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Literal

from datakit.cli.console import note, progress_note, say, say_json
from datakit.cli.parameters import Flag
from datakit.errors import counted

if TYPE_CHECKING:
    from datakit.cache.reader import Cache
    from datakit.interop.export import Exported

PAUSE = 0.5
Format = Literal["megatron", "levanter", "mds", "lance"]
READERS: dict[Format, str] = {  # how each format is read
    "megatron": "read it with megatron.core.datasets.indexed_dataset.IndexedDataset(PREFIX)",
    "levanter": "read it with levanter.store.cache.TreeCache.load",
    "mds": "read it with streaming.StreamingDataset(local=DIRECTORY)",
    "lance": "read it with lance.dataset(DIRECTORY)",
}


def import_cache(
    original: str,
    directory: str,
    /,
    *,
    tokenizer: str,
    name: str | None = None,
    copy: Flag = False,
    field: str = "input_ids",
    add: str = "none",
    bos: str | None = None,
    eos: str | None = None,
    json: Flag = False,
) -> int:
    """Make a token cache from tokens that another program wrote.

    Reads two formats: caches in the Levanter layout (a directory with shard_ledger.json), and Megatron indexed datasets
    (given by the common prefix of the .bin and .idx files). Megatron datasets require --copy.

    Examples:
      datakit cache import old/cache/train data/imported --tokenizer tokenizer.json
      datakit cache import old/cache/train data/imported --tokenizer tokenizer.json --copy --add eos
      datakit cache import megatron/web_text_document data/web --tokenizer tokenizer.json --copy

    Parameters
    ----------
    original
        The directory or prefix to import.
    directory
        The new cache's directory.
    tokenizer
        The tokenizer.json with which the tokens were made.
    name
        The name that the source gets in the new cache; by default, the last part of the original's path.
    copy
        Copy the tokens. Without this option, the new cache refers to the original's arrays, which must stay unchanged.
    field
        The array to import from a Levanter cache.
    add
        The special tokens that each document already has at its ends (eos, bos, both or none). The import checks and
        records them.
    bos
        The name of the token that begins each document; by default, the name is taken from the tokenizer.
    eos
        The name of the token that ends each document; by default, the name is taken from the tokenizer.
    json
        Print one JSON object.
    """
    from datakit.errors import UsageError
    from datakit.interop import import_cache, levanter, megatron
    from datakit.storage import urls

    place, target = urls.absolute(original), urls.absolute(directory)
    if levanter.is_levanter(place):
        layout, incoming = "levanter", levanter.read_levanter(place, field)
    elif megatron.is_megatron(place):
        layout, incoming = "megatron", iter([megatron.read_megatron(place)])
        if not copy:
            raise UsageError(f"{original} is a Megatron dataset, whose tokens can only be copied; add --copy")
    else:
        raise UsageError(f"{original}: neither {original}/shard_ledger.json nor {original}.idx exists")
    made = import_cache.import_cache(
        incoming, target, urls.absolute(tokenizer), layout=layout, source=name or urls.name(place), copy=copy,
        ends=(add, bos, eos), progress=_progress(),
    )  # fmt: skip
    totals = made.totals
    if json:
        say_json({"cache": target, "layout": layout, "copied": copy, "documents": totals.rows, "tokens": totals.tokens})
        return 0
    say(target)
    how = "copied" if copy else "left in place"
    note(
        f"{counted(totals.rows, 'document')}, {counted(totals.tokens or 0, 'token')}, {how}; "
        f"`datakit cache show {directory}` shows the first document"
    )
    return 0


def export_cache(
    cache: str,
    target: str,
    /,
    *,
    format: Format = "megatron",
    source: str | None = None,
    drop_loss_mask: Flag = False,
    json: Flag = False,
) -> int:
    """Write a token cache in the format of another program.

    megatron: an indexed dataset, TARGET.bin and TARGET.idx. levanter, mds (MosaicML Streaming) and lance: a dataset in
    the directory TARGET. Documents stay separate. Megatron and MDS cannot hold empty documents, which are left out and
    counted. Megatron and Levanter cannot hold loss masks, so sources with loss masks are refused unless
    --drop-loss-mask is given. At the end, the export is read again and compared with the cache.

    Examples:
      datakit cache export data/demo/tokenize-0123456789ab megatron/demo
      datakit cache export data/demo megatron/web --source web
      datakit cache export data/demo mds/demo --format mds

    Parameters
    ----------
    cache
        The directory of a token cache or of a dataset.
    target
        The common prefix of the two files, or the new directory.
    format
        The format to write.
    source
        Export only the documents of this source or, as source.bucket, of one of its document buckets.
    drop_loss_mask
        Also export sources that have loss masks, without these masks. All their tokens then count as targets.
    json
        Print one JSON object.
    """
    from datakit.cache.reader import open_cache
    from datakit.storage import urls

    done = _exporter(format, drop_loss_mask)(open_cache(cache), urls.absolute(target), source)
    if json:
        say_json({"format": format, "files": done.places, "sequences": done.sequences, "tokens": done.tokens,
                  "empty": done.empty})  # fmt: skip
        return 0
    for place in done.places:
        say(place)
    left = f"; {counted(done.empty, 'empty document')} left out" if done.empty else ""
    note(f"{counted(done.sequences, 'sequence')}, {counted(done.tokens, 'token')}{left}; {READERS[format]}")
    return 0


def _exporter(format: Format, drop_loss_mask: bool) -> Callable[[Cache, str, str | None], Exported]:
    """Return the function that exports to a format. Raises UsageError if an option has no effect on it."""
    from datakit.errors import UsageError
    from datakit.interop.lance_export import export_lance
    from datakit.interop.levanter_export import export_levanter
    from datakit.interop.mds import export_mds
    from datakit.interop.megatron import export_megatron

    if drop_loss_mask and format in ("mds", "lance"):
        raise UsageError(f"--drop-loss-mask has no effect on the format {format}, which holds loss masks; leave it out")
    progress = progress_note("exporting:")
    if format == "mds":
        return partial(export_mds, progress=progress)
    if format == "lance":
        return partial(export_lance, progress=progress)
    chosen = export_megatron if format == "megatron" else export_levanter
    return partial(chosen, drop_loss_mask=drop_loss_mask, progress=progress)


def _progress() -> Callable[[int, int], None]:
    """Return a function that prints on stderr the numbers of documents and tokens done so far, at most once every
    half second and only if stderr is a terminal.
    """
    last = time.monotonic()

    def show(documents: int, tokens: int) -> None:
        nonlocal last
        if sys.stderr.isatty() and time.monotonic() - last > PAUSE:
            last = time.monotonic()
            note(f"{documents:,} documents, {tokens:,} tokens")

    return show
