"""Implements `datakit classifier train`, which trains a linear classifier and prints how well it does."""

from __future__ import annotations

import hashlib
import json as json_module
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from datakit.cli.classifier.training_texts import Inputs, read_texts
from datakit.cli.console import bytes_text, note, say, say_json, table
from datakit.cli.parameters import Flag
from datakit.errors import UsageError, counted

if TYPE_CHECKING:
    from datakit.annotate.classifier.linear_model import LinearModel

Places = Annotated[tuple[str, ...], Parameter(negative="")]
BITS, STRENGTH, ITERATIONS = 18, 1.0, 200


def train_classifier(
    *,
    positive: Places,
    negative: Places,
    out: Annotated[str, Parameter(name=["--out", "--output"])],
    text: str | None = None,
    bits: int = BITS,
    strength: float = STRENGTH,
    iterations: int = ITERATIONS,
    workers: int | None = None,
    json: Flag = False,
) -> int:
    """Train a linear classifier that tells two kinds of documents apart, and measure it on held-out documents.

    The annotator classifier_linear gives documents like the positive ones scores near 1, and documents like the
    negative ones scores near 0. The same documents always give the same file, whatever their order. Needs `pip install
    '.[classifier]'`.

    Examples:
      datakit classifier train --positive good.jsonl --negative bad.jsonl --out quality.linear
      datakit classifier train --positive books/ --negative a.txt --negative b.parquet --out books.linear

    Parameters
    ----------
    positive
        Documents that shall have high scores: a file of any supported format, a folder, a glob or a URL. Can be
        repeated.
    negative
        Documents that shall have low scores. Can be repeated.
    out
        The file to write. An existing file is never overwritten.
    text
        The column that holds the texts; by default, it is found as in a recipe.
    bits
        The model has 2^bits weights of 4 bytes, from 8 to 26.
    strength
        The inverse of the regularization. Smaller values give smaller weights.
    iterations
        The optimizer stops after this many iterations.
    workers
        Number of tasks to run at a time; by default one per usable CPU.
    json
        Print one JSON object.
    """
    from datakit.annotate.classifier.train import TrainSettings, require_sklearn, train
    from datakit.storage import atomic, urls

    if not positive or not negative:
        raise UsageError("give documents of both kinds, with --positive and --negative")
    place = urls.absolute(out)
    if urls.exists(place):
        raise UsageError(f"{out} already exists and is never overwritten; choose another --out")
    try:
        settings = TrainSettings(bits, strength, iterations)
    except ValueError as error:
        raise UsageError(str(error)) from error
    require_sklearn()
    texts = read_texts(Inputs(positive, negative, text), workers)
    if texts.both:
        note(f"warning: {counted(texts.both, 'document')} in both kinds; remove them from one")
    model = train(texts.positive, texts.negative, settings)
    data = model.encoded()
    atomic.commit_bytes(data, place)
    sha256, documents = hashlib.sha256(data).hexdigest(), (len(texts.positive), len(texts.negative))
    if json:
        say_json(_json(model, place, sha256, documents))
        return 0
    _show(model, place, sha256, documents)
    return 0


def _json(model: LinearModel, place: str, sha256: str, documents: tuple[int, int]) -> dict[str, object]:
    import msgspec

    return {
        "model": place, "sha256": sha256, "positive": documents[0], "negative": documents[1], "bits": model.bits,
        "trained_on": model.trained_on, "converged": model.converged, "quality": msgspec.to_builtins(model.quality),
    }  # fmt: skip


def _show(model: LinearModel, place: str, sha256: str, documents: tuple[int, int]) -> None:
    quality, size = model.quality, bytes_text(len(model.weights))
    say(f"{documents[0]:,} positive and {counted(documents[1], 'negative document')}; 2^{model.bits} weights ({size})")
    say(f"fitted to {counted(model.trained_on, 'document')}, measured on {quality.documents:,} others:")
    say(f"  ROC AUC      {quality.roc_auc:.5f}")
    say(f"  Brier score  {quality.brier:.5f}\n")
    rows = [[one.documents, f"{one.mean_score:10.3f}", f"{one.positive:14.1%}"] for one in quality.calibration]
    say(table(("documents", "mean score", "share positive"), rows))
    if not model.converged:
        note("warning: the optimizer did not converge; a higher --iterations could give a better model")
    say(f"\nsha256 {sha256}  {place}")
    note("next: add this table to a recipe, run it, and look at the scores with `datakit attributes show`")
    say(f"\n[annotate.classifier_linear]\nmodel = {json_module.dumps(place)}\nsha256 = {json_module.dumps(sha256)}")
