"""Implements `datakit cache import` (of Levanter or Megatron data) and `datakit cache export`."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from datakit.cli.console import note, say, say_json
from datakit.cli.parameters import Flag
from datakit.errors import counted

PAUSE = 0.5


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
    cache: str, prefix: str, /, *, source: str | None = None, drop_loss_mask: Flag = False, json: Flag = False
) -> int:
    """Write a token cache as a Megatron indexed dataset: PREFIX.bin and PREFIX.idx.

    Each document becomes one sequence. Empty documents are left out, and their number is reported. The format has no
    loss masks, so sources with loss masks are refused unless --drop-loss-mask is given.

    Examples:
      datakit cache export data/demo/tokenize-0123456789ab megatron/demo
      datakit cache export data/demo/tokenize-0123456789ab megatron/web --source web

    Parameters
    ----------
    cache
        A token cache's directory.
    prefix
        The common prefix of the two files.
    source
        Export only the documents of this source or, as source.bucket, of one of its document buckets.
    drop_loss_mask
        Also export sources that have loss masks, without these masks. All their tokens then count as targets.
    json
        Print one JSON object.
    """
    from datakit.cache.reader import open_cache
    from datakit.interop.megatron import export_megatron
    from datakit.storage import urls

    done = export_megatron(open_cache(cache), urls.absolute(prefix), source, drop_loss_mask=drop_loss_mask)
    if json:
        say_json({"files": done.files, "sequences": done.sequences, "tokens": done.tokens, "empty": done.empty})
        return 0
    for file in done.files:
        say(file)
    left = f"; {counted(done.empty, 'empty document')} left out" if done.empty else ""
    note(f"{counted(done.sequences, 'sequence')}, {counted(done.tokens, 'token')}{left}")
    return 0


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
