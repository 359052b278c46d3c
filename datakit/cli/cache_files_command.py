"""`datakit validate`, `datakit cache import` and `datakit cache export`: a cache's files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Annotated

from cyclopts import Parameter

from datakit.cli.console import bytes_text, note, say, say_json, seconds_text, table

Flag = Parameter(negative="", show_default=False)
DAMAGED = 2
PAUSE = 0.5


def validate(cache: str, /, *, json: Annotated[bool, Flag] = False) -> int:
    """Compare every file of a token cache with the checksums of its manifest.

    Goes on after damage and lists all of it. Exit code 2 if anything is missing, altered or unfinished.

    Examples:
      datakit validate data/demo/tokenize-0123456789ab
      datakit validate s3://bucket/data/demo/tokenize-0123456789ab --json

    Parameters
    ----------
    cache
        A token cache's directory.
    json
        Print one JSON object.
    """
    from datakit.cache.reader import open_cache
    from datakit.errors import CorruptError, NotFoundError
    from datakit.validate.token_cache import find_damage

    try:
        opened = open_cache(cache)
    except (CorruptError, NotFoundError) as error:
        if json:
            say_json({"cache": cache, "intact": False, "bytes": 0, "damaged": [], "refused": str(error)})
        else:
            note(f"error: {error}")
        return DAMAGED
    began = time.monotonic()
    size, damaged = find_damage(opened.directory, opened.manifest, opened.details, _progress("files"))
    if json:
        found = [{"url": entry.url, "difference": entry.difference, "remedy": entry.remedy} for entry in damaged]
        say_json({"cache": opened.directory, "intact": not damaged, "bytes": size, "damaged": found, "refused": None})
    elif damaged:
        say(table(("damaged file", "difference", "what to do"), [[d.url, d.difference, d.remedy] for d in damaged]))
    else:
        say(f"{opened.directory}: intact, {bytes_text(size)} compared in {seconds_text(time.monotonic() - began)}")
    if damaged:
        note(f"error: {len(damaged)} damaged files in {opened.directory}")
    return DAMAGED if damaged else 0


def import_cache(
    original: str,
    directory: str,
    /,
    *,
    tokenizer: str,
    name: str | None = None,
    copy: Annotated[bool, Flag] = False,
    field: str = "input_ids",
    add: str = "none",
    bos: str | None = None,
    eos: str | None = None,
    json: Annotated[bool, Flag] = False,
) -> int:
    """Make a token cache of tokens that another program wrote.

    Reads caches in the Levanter layout (a directory with shard_ledger.json) and Megatron indexed datasets (the common
    name of .bin and .idx; always copied).

    Examples:
      datakit cache import old/cache/train data/imported --tokenizer tokenizer.json
      datakit cache import old/cache/train data/imported --tokenizer tokenizer.json --copy --add eos
      datakit cache import megatron/web_text_document data/web --tokenizer tokenizer.json --copy

    Parameters
    ----------
    original
        Where it lies.
    directory
        The new cache's directory.
    tokenizer
        The tokenizer.json that the tokens were made with.
    name
        The source's name in the new cache; the original's last name by default.
    copy
        Copy the tokens. Without, the new cache refers to the original's arrays, which must then stay unchanged.
    field
        Which array of a Levanter cache.
    add
        What stands around each document (eos, bos, both, none); checked, and recorded.
    bos
        The first token's name; the tokenizer's usual one by default.
    eos
        The last token's name; the tokenizer's usual one by default.
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
            raise UsageError(f"{original}: tokens of this format can only be copied; say --copy")
    else:
        raise UsageError(f"{original}: neither {original}/shard_ledger.json nor {original}.idx is there")
    made = import_cache.import_cache(
        incoming, target, urls.absolute(tokenizer), layout=layout, source=name or urls.name(place), copy=copy,
        ends=(add, bos, eos), progress=_progress("documents"),
    )  # fmt: skip
    totals = made.totals
    if json:
        say_json({"cache": target, "layout": layout, "copied": copy, "documents": totals.rows, "tokens": totals.tokens})
        return 0
    say(target)
    how = "copied" if copy else "left where they are"
    note(
        f"{totals.rows:,} documents, {totals.tokens or 0:,} tokens, {how}; `datakit cache show {directory}` decodes one"
    )
    return 0


def export_cache(cache: str, prefix: str, /, *, source: str | None = None, json: Annotated[bool, Flag] = False) -> int:
    """Write a token cache as a Megatron indexed dataset: PREFIX.bin and PREFIX.idx.

    A document becomes a sequence; documents without tokens are left out and counted.

    Examples:
      datakit cache export data/demo/tokenize-0123456789ab megatron/demo
      datakit cache export data/demo/tokenize-0123456789ab megatron/web --source web

    Parameters
    ----------
    cache
        A token cache's directory.
    prefix
        The common name of the two files.
    source
        Only this source.
    json
        Print one JSON object.
    """
    from datakit.cache.reader import open_cache
    from datakit.interop.megatron import export_megatron
    from datakit.storage import urls

    done = export_megatron(open_cache(cache), urls.absolute(prefix), source)
    if json:
        say_json({"files": done.files, "sequences": done.sequences, "tokens": done.tokens, "empty": done.empty})
        return 0
    for file in done.files:
        say(file)
    left = f"; {done.empty:,} documents without tokens are left out" if done.empty else ""
    note(f"{done.sequences:,} sequences, {done.tokens:,} tokens{left}")
    return 0


def _progress(what: str) -> Callable[[int, int], None]:
    """A line on stderr now and then, on a terminal only."""
    last = time.monotonic()

    def tell(count: int, size: int) -> None:
        nonlocal last
        if sys.stderr.isatty() and time.monotonic() - last > PAUSE:
            last = time.monotonic()
            amount = bytes_text(size) if what == "files" else f"{size:,} tokens"
            note(f"{count:,} {what}, {amount}")

    return tell
