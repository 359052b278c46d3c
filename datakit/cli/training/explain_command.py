"""Implements `datakit explain`, which traces a training step's loss and gradient to documents and their raw files."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

from datakit.cli.console import note, progress_note, say, say_json, table, visible, wrapped
from datakit.cli.parameters import Flag, Settings
from datakit.errors import DatakitError, counted

if TYPE_CHECKING:
    from datakit.pipeline.fate.origin import Origin
    from datakit.trainer.explain.explain import Document, Explanation

EXCERPT_TOKENS, EXCERPT_CHARACTERS = 100, 300
SUGGESTED = 3  # number of documents in the command that is shown last


def explain(
    run: str,
    /,
    *,
    step: int,
    root: str = "./data",
    set_: Settings = (),
    top: int = 20,
    by: Literal["loss", "gradient"] = "loss",
    estimate: Flag = False,
    loss_only: Flag = False,
    excerpt: Flag = False,
    json: Flag = False,
) -> int:
    """Explain a training step: which documents were in its batch, and how each affected the loss and the gradient.

    Repeats the run from the checkpoint before the step, bit for bit, and computes each document's mean loss and the
    norm of its gradient. Then follows each document to its source, its cluster of duplicates and its raw file. Text is
    shown only with --excerpt.

    Examples:
      datakit explain demo --step 120
      datakit explain data/demo-train/train-0123456789ab --step 120 --excerpt
      datakit explain my-run.toml --root /big/disk --step 9000 --estimate --json

    Parameters
    ----------
    run
        The run file (TOML), the name of a built-in run, or the directory of a run.
    step
        The training step, counted from 1 as in metrics.jsonl.
    root
        The directory that holds the runs, as for `datakit train`.
    set_
        The values of the run file that were overridden when the run was trained. Can be repeated.
    top
        Show this many documents.
    by
        Order of the documents: by how much their losses exceed the batch's mean, in total, or by the norm of their
        gradient.
    estimate
        Use the weights of the nearest checkpoint, and repeat no steps. The result is labelled as an estimate.
    loss_only
        Compute no gradients, which takes much less time. The result is labelled as an estimate.
    excerpt
        Show the beginning of each document's tokens in the batch as text.
    json
        Print one JSON object.
    """
    from datakit.trainer import require_jax

    require_jax()
    from datakit.trainer.explain.explain import Options, explain

    options = Options(top, by, estimate=estimate, gradients=not loss_only)
    found = explain(run, step, root, options, set_, report=progress_note("computed"))
    origins = _origins(found)
    texts = [_excerpt(document) for document in found.documents] if excerpt else []
    if json:
        say_json(_plain(found, origins, texts))
        return 0
    _show(found, origins, texts)
    for line in _endings(run, root, found):
        note(line)
    return 0


def _origins(found: Explanation) -> list[Origin]:
    """Return the origin of each document, from the steps from which its cache was made."""
    from datakit.pipeline.fate.origin import origins_of

    by_cache: dict[str, dict[tuple[str, str], Origin]] = {}
    for cache in dict.fromkeys(document.cache for document in found.documents):
        wanted = [(document.source, document.id) for document in found.documents if document.cache == cache]
        by_cache[cache] = origins_of(cache, wanted, progress_note("searched"))
    return [by_cache[document.cache][document.source, document.id] for document in found.documents]


def _excerpt(document: Document) -> str:
    """Return the beginning of the document's first part in the batch as text; an error message if it has none."""
    from datakit.cache.reader import open_cache

    cache = open_cache(document.cache)
    start = cache.position_of(document.row) + document.offset
    _, first, stop = document.parts[0]
    try:
        tokens = cache.read(start, start + min(stop - first, EXCERPT_TOKENS)).tolist()
        return cache.tokenizer.decode(tokens, skip_special_tokens=False)[:EXCERPT_CHARACTERS]
    except (DatakitError, ImportError) as error:
        return f"(no text: {error})"


def _plain(found: Explanation, origins: list[Origin], texts: list[str]) -> dict[str, Any]:
    documents = [
        {**asdict(document), "origin": asdict(origin), **({"excerpt": texts[i]} if texts else {})}
        for i, (document, origin) in enumerate(zip(found.documents, origins, strict=True))
    ]
    return {**asdict(found), "documents": documents}


def _endings(run: str, root: str, found: Explanation) -> Iterator[str]:
    """Yield the commands that may come next."""
    from datakit.trainer.run_directory.run_code import has_own_code
    from datakit.trainer.run_directory.run_record import is_recorded, read_run_record

    if not found.documents:
        return
    first = found.documents[0]
    yield f"what each stage did with it:  datakit why {shlex.quote(first.cache)} --id {first.id}"
    # An earlier version recorded no settings, and recorded code is not run.
    whole = is_recorded(found.run) and not has_own_code(read_run_record(found.run)[1].run)
    target = shlex.quote(found.run) if whole else f"{shlex.quote(run)} --root {shlex.quote(root)}"
    ids = " ".join(f"--without {document.id}" for document in found.documents[:SUGGESTED])
    yield f"train without them:  datakit train {target} --step {found.step} {ids}"


def _show(found: Explanation, origins: list[Origin], texts: list[str]) -> None:
    label = "replayed bit for bit" if found.kind == "replay" else "ESTIMATE"
    loss = "NaN or infinite" if found.logged_loss is None else f"{found.logged_loss:.4f}"
    say(f"step {found.step:,}: loss {loss}, {counted(found.total, 'document')}; {label}")
    for reason in found.why_estimate:
        say(wrapped(f"estimate: {reason}", more="  "))
    proof = "is the one trained on (same digest)" if found.batch_proven else "cannot be compared: no digest was logged"
    say(f"batch {found.batch_digest} {proof}")
    say()
    rows = [
        [document.id, document.source, document.tokens, *map(_number, _measures(document))]
        for document in found.documents
    ]
    unknown = dict.fromkeys(origin.unknown for origin in origins if origin.unknown)
    below = [
        "; ".join([*_remarks(document, origin, len(unknown) > 1), *([f"text: {visible(texts[i])}"] if texts else [])])
        for i, (document, origin) in enumerate(zip(found.documents, origins, strict=True))
    ]
    say(table(["document", "source", "tokens", "loss", "excess", "gradient"], rows, below))
    if len(unknown) == 1:
        note(wrapped(f"raw files unknown: {next(iter(unknown))}", more="  "))


def _measures(document: Document) -> tuple[float | None, float | None, float | None]:
    return document.loss, document.excess, document.gradient_norm


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _remarks(document: Document, origin: Origin, explained: bool) -> list[str]:
    """Return what else is known about a document, in short phrases. explained: say why a raw file is not known."""
    lines = []
    if origin.file is not None:
        where = f"{origin.unit} {origin.position}" if origin.position is not None else "position unknown"
        lines.append(f"{origin.file}, {where}")
    elif explained:
        lines.append(f"raw file unknown: {origin.unknown}")
    if origin.source_id is not None:
        lines.append(f"source id {origin.source_id}")
    if origin.cluster is not None:
        lines.append(
            f"cluster {origin.cluster}: dedup removed {counted(origin.removed or 0, 'document')} in favor of this one"
        )
    if origin.equal_texts:
        lines.append(f"{counted(origin.equal_texts, 'more record')} with this text")
    if len(document.parts) > 1:
        lines.append(f"in {counted(len(document.parts), 'part')}")
    if document.excluded:
        lines.append("excluded: it does not count toward the loss")
    if not document.finite:
        lines.append("its loss or gradient is NaN or infinite")
    return lines
