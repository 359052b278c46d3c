"""Implements `datakit cache show`, which decodes tokens and marks their boundaries, and `datakit cache stats`, which
prints totals.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from datakit.cli.console import INDENT, bytes_text, note, say, say_json, table, visible, wrapped
from datakit.cli.parameters import Flag
from datakit.errors import counted
from datakit.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from datakit.cache.reader import Cache
    from datakit.cache.summary import CacheSummary
    from datakit.tokenize.encoders.token_text import Piece

# Numbers in the 256-color palette, used in turn for pieces of text: neighbors differ; light text is readable on each.
BACKGROUNDS = (236, 24, 236, 58)
JOINED = 53  # the background of a piece of several tokens that form valid text only together
BAR = 40


def show(
    cache: str,
    /,
    *,
    document: str | None = None,
    step: int | None = None,
    position: int | None = None,
    length: int = 4096,
    limit: int = 1024,
    ids: Flag = False,
    json: Flag = False,
) -> int:
    """Show the text of a document or a sequence in a token cache, with the token boundaries marked.

    On a terminal, adjacent tokens have different background colors. Elsewhere, or with NO_COLOR=1, each token is in
    ⟦brackets⟧. The default is to show the first document.

    Examples:
      datakit cache show data/demo/tokenize-0123456789ab
      datakit cache show data/demo/tokenize-0123456789ab --document 5f0cd7a1b2c3d4e5f60718293a4b5c6d
      datakit cache show data/demo/tokenize-0123456789ab --step 12 --length 2048 --ids

    Parameters
    ----------
    cache
        A token cache's directory.
    document
        Show this document, given by its id (32 hex digits) or its row in the cache (a shorter number).
    step
        Show sequence number N, counted from 0 in stored order (without a mixture): the tokens at positions
        N * length up to, but not including, (N + 1) * length.
    position
        Show the document that contains the token at this position in the cache.
    length
        Number of tokens per sequence.
    limit
        Maximum number of tokens to show; 0 shows all tokens.
    ids
        Also list the token ids.
    json
        Print one JSON object.
    """
    from datakit.cache.reader import open_cache
    from datakit.errors import UsageError
    from datakit.tokenize.encoders.token_text import load_reference, pieces

    if sum(choice is not None for choice in (document, step, position)) > 1:
        raise UsageError("--document, --step and --position are mutually exclusive; give only one of them")
    opened = open_cache(cache)
    try:
        found = _sequence(opened, step, length) if step is not None else _document(opened, document, position)
    except IndexError as error:
        raise UsageError(str(error)) from error
    tokens = found.pop("tokens")
    shown = tokens[:limit] if limit else tokens
    tokenizer = load_reference(opened.tokenizer_url)
    parts = list(pieces(tokenizer, shown))
    if json:
        listed = [{"ids": list(part.ids), "text": part.text} for part in parts]
        say_json({**found, "count": len(tokens), "shown": len(shown), "pieces": listed})
        return 0
    facts = ", ".join(f"{key} {value}" for key, value in found.items())
    note(wrapped(f"{facts}: {counted(len(tokens), 'token')}", more=INDENT))
    if _in_colour():
        print(_coloured(parts))  # not with `say`, which would escape the colors
    else:
        say("".join(f"⟦{visible(part.text)}⟧" for part in parts))
    if ids:
        say(" ".join(str(token) for token in shown.tolist()))
    if len(shown) < len(tokens):
        note(f"... and {len(tokens) - len(shown):,} more tokens (--limit 0 shows all)")
    return 0


def stats(cache: str, /, *, plot: str | None = None, json: Flag = False) -> int:
    """Summarize a token cache: document lengths, tokens per source, and the most frequent tokens.

    Examples:
      datakit cache stats data/demo/tokenize-0123456789ab
      datakit cache stats data/demo/tokenize-0123456789ab --plot cache.png

    Parameters
    ----------
    cache
        A token cache's directory.
    plot
        Also save a plot to this file (.png, .svg or .pdf); needs `pip install '.[report]'`.
    json
        Print one JSON object.
    """
    from datakit.cache.reader import open_cache
    from datakit.cache.summary import summarize
    from datakit.errors import TokenizerError
    from datakit.storage import urls
    from datakit.tokenize.encoders.token_text import load_reference, token_text

    opened = open_cache(cache)
    summary = summarize(opened)
    try:
        tokenizer = load_reference(opened.tokenizer_url)
        names = {number: token_text(tokenizer, number) for number, _ in summary.frequent}
    except TokenizerError as error:
        note(f"warning: token texts are not shown: {error}")
        names = {}
    if plot is not None:
        from datakit.plots.cache import write_plot

        write_plot(summary, names, urls.absolute(plot))
        note(f"plot: {plot}")
    if json:
        frequent = [{"id": number, "text": names.get(number), "count": count} for number, count in summary.frequent]
        lengths = [{"from": first, "below": end, "documents": count} for first, end, count in summary.lengths]
        say_json({**asdict(summary), "lengths": lengths, "frequent": frequent, "sources": summary.sources})
        return 0
    _show_summary(summary, names)
    return 0


def _document(cache: Cache, document: str | None, position: int | None) -> dict[str, Any]:
    from datakit.errors import UsageError

    if position is not None:
        row = cache.row_at(position)
    elif document is not None and not (document.isascii() and document.isdigit() and len(document) < 32):
        found = cache.find(document)
        if found is None:
            raise UsageError(f"{cache.directory} has no document {document!r}; give an id (32 hex digits) or a row")
        row = found
    else:
        row = int(document or 0)
    chosen, place = cache.document(row), {"source": cache.source_of(row), "position": cache.position_of(row)}
    place |= {"bucket": cache.bucket_of(row)} if cache.has_buckets else {}
    return {"document": chosen.id, "row": row, **place, "tokens": chosen.tokens}


def _sequence(cache: Cache, step: int, length: int) -> dict[str, Any]:
    from datakit.errors import UsageError

    if length < 1 or not 0 <= step * length < cache.tokens:
        count = -(-cache.tokens // length) if length >= 1 else 0
        raise UsageError(
            f"--step {step}: {cache.directory} has {count:,} sequences of {length:,} tokens, numbered from 0"
        )
    tokens = cache.read(step * length, min((step + 1) * length, cache.tokens))
    return {"step": step, "position": step * length, "tokens": tokens}


def _in_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _coloured(parts: Iterable[Piece]) -> str:
    """Return the text with a background color for each piece. Each line of a piece is colored separately, so that no
    color extends to the window's edge.
    """
    shown = []
    for number, part in enumerate(parts):
        background = JOINED if len(part.ids) > 1 else BACKGROUNDS[number % len(BACKGROUNDS)]
        begin, end = f"\x1b[48;5;{background}m", "\x1b[0m"
        lines = printable(visible(part.text)).split("\n")
        shown.append("\n".join(f"{begin}{line}{end}" if line else "" for line in lines))
    return "".join(shown)


def _show_summary(summary: CacheSummary, names: dict[int, str]) -> None:
    say(
        wrapped(
            f"{summary.directory}: {counted(summary.documents, 'document')}, {counted(summary.tokens, 'token')} "
            f"({summary.dtype}) in {counted(summary.shards, 'shard')}, {bytes_text(summary.bytes)}",
            more=INDENT,
        )
        + "\n"
    )
    most = max((count for _, _, count in summary.lengths), default=1)
    rows = [
        [f"{first:,} to {end - 1:,}" if end - first > 1 else f"{first:,}", count, "#" * -(-count * BAR // most)]
        for first, end, count in summary.lengths
    ]
    say(table(("tokens", "documents", ""), rows) + "\n")
    sources = [
        [name, sums.shards, sums.documents, sums.tokens, f"{sums.tokens / max(summary.tokens, 1):7.2%}", sums.targets]
        for name, sums in summary.sources.items()
    ]
    sources += [
        [name, sums.shards, sums.rows, sums.tokens, f"{sums.tokens / max(summary.tokens, 1):7.2%}", None]
        for name, sums in summary.buckets.items()
    ]
    say(table(("source", "shards", "documents", "tokens", "share", "targets"), sources) + "\n")
    frequent = [
        [visible(repr(names[number])) if number in names else None, f"#{number}", count,
         f"{count / max(summary.tokens, 1):7.2%}"]
        for number, count in summary.frequent
    ]  # fmt: skip
    say(table(("token", "id", "times", "share"), frequent))
