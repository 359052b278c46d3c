"""Implements `datakit attributes show`, which summarizes attributes, draws their histograms, and lists samples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from datakit.cli.attributes.column_view import Drawing, Form, plain, show_column
from datakit.cli.attributes.pages import overview_page
from datakit.cli.console import note, say, say_json
from datakit.cli.parameters import Flag
from datakit.errors import UsageError

if TYPE_CHECKING:
    from datakit.pipeline.attributes.tables import Annotated as Steps

BINS = 20
MOST_BINS = 1000


def show_attributes(
    target: str,
    /,
    *,
    column: str | None = None,
    source: str | None = None,
    histogram: Flag = False,
    bins: int = BINS,
    scale: Literal["auto", "linear", "log"] = "auto",
    plot: Annotated[str | None, Parameter(name=["--plot", "--png"])] = None,
    sample: int | None = None,
    between: Annotated[tuple[float, float] | None, Parameter(negative="")] = None,
    label: str | None = None,
    seed: int = 0,
    text: Flag = False,
    json: Flag = False,
) -> int:
    """Show what annotators found: totals of all columns or, for one column, quantiles, a histogram and a sample.

    Shows no text of documents, unless you ask for it with --text. Use it to choose the thresholds of rules
    (docs/annotate/choosing-thresholds.md).

    Examples:
      datakit attributes show data/demo
      datakit attributes show data/demo --column language.score --histogram
      datakit attributes show data/demo --column score --sample 20 --between 0.4 0.5

    Parameters
    ----------
    target
        A dataset's directory, which stands for the annotate steps of its current run, the directory of a source, or an
        annotate step's directory or manifest.
    column
        A column, such as language.score. The name of the annotator or of the column suffices if it is unambiguous.
    source
        Use only the documents of this source.
    histogram
        Count the column's numbers in bins, and its labels. The numbers of a list are those of its elements.
    bins
        Maximum number of bins, and of labels.
    scale
        The scale of the bins. With auto, it is logarithmic if the largest number exceeds 20 medians and 1, so that
        scores have a linear scale.
    plot
        Also draw the histogram to this file (.png, .svg or .pdf); needs `pip install '.[report]'`.
    sample
        List this many documents. The same documents are drawn each time, whatever the order of the documents.
    between
        Sample documents whose number is in this range, bounds included. For a list: its number of elements.
    label
        Sample documents that have this label, such as de or email.
    seed
        Draw other documents.
    text
        Also show the first 300 characters of each sampled document.
    json
        Print one JSON object.
    """
    from datakit.pipeline.attributes.tables import annotated

    asked = {"histogram": histogram, "plot": plot, "sample": sample, "between": between, "label": label, "text": text}
    _check(column, asked, bins)
    found = annotated(target, source)
    if column is None:
        return _show_all(found, target, json)
    from datakit.pipeline.attributes.sample import Wanted

    drawing = Drawing(bins, scale, plot) if histogram or plot is not None else None
    wanted = None if sample is None else Wanted(sample, between, label, seed)
    return show_column(found, column, drawing, wanted, Form(text, json))


def _check(column: str | None, asked: dict[str, Any], bins: int) -> None:
    """Refuse options without the option that they belong to."""
    given = [name for name, value in asked.items() if value not in (None, False)]
    if column is None and given:
        raise UsageError(f"--{given[0]} needs a column, as in --column language.score")
    for name in ("between", "label", "text"):
        if name in given and "sample" not in given:
            raise UsageError(f"--{name} chooses what to sample; add --sample, as in --sample 20")
    if not 1 <= bins <= MOST_BINS:
        raise UsageError(f"--bins {bins}: give a number from 1 to {MOST_BINS}")


def _show_all(found: Steps, target: str, json: bool) -> int:
    from datakit.pipeline.attributes.columns import columns_of
    from datakit.pipeline.attributes.summary import summarize

    columns = columns_of(found)
    summaries = summarize(found.files, columns)
    if json:
        say_json({"documents": found.documents, "steps": found.directories, "sources": found.sources,
                  "columns": [plain(one) for one in summaries]})  # fmt: skip
        return 0
    say(overview_page(found, summaries))
    if columns:
        note(f"histogram: datakit attributes show {target} --column {columns[0]} --histogram")
    return 0
