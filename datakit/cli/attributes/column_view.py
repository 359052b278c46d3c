"""Shows one column of attributes, as text, as JSON and as a figure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from datakit.cli.attributes.pages import histogram_page, labels_page, sample_page, summary_page
from datakit.cli.console import note, say, say_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from datakit.pipeline.attributes.histogram import Histogram
    from datakit.pipeline.attributes.sample import Sampled, Wanted
    from datakit.pipeline.attributes.summary import ColumnSummary
    from datakit.pipeline.attributes.tables import Annotated


@dataclass(frozen=True)
class Drawing:
    """Options of a histogram. plot: the file of the figure; None for no figure."""

    bins: int
    scale: str
    plot: str | None


@dataclass(frozen=True)
class Form:
    """The form of the output. text: show the starts of documents. json: print JSON."""

    text: bool
    json: bool


def show_column(found: Annotated, name: str, drawing: Drawing | None, wanted: Wanted | None, form: Form) -> int:
    """Print a column's summary, its histogram (unless `drawing` is None) and a sample (unless `wanted` is None)."""
    from datakit.pipeline.attributes.columns import columns_of, find_column
    from datakit.pipeline.attributes.sample import sample, with_excerpts
    from datakit.pipeline.attributes.summary import histogram, summarize

    column = find_column(name, columns_of(found))
    if wanted is not None:
        wanted.check(column)
    if drawing is not None and drawing.plot is not None:
        _check_plot(drawing.plot)
    files = found.select(lambda file: file.annotator == column.annotator)
    (summary,) = summarize(files, [column])
    bins = None
    if drawing is not None:
        summary.require_countable()
        if summary.numbers is not None:
            bins = histogram(files, column, summary.numbers, drawing.scale, drawing.bins)
    drawn, matching = ([], 0) if wanted is None else sample(files, column, wanted)
    drawn = with_excerpts(drawn) if form.text else drawn
    if drawing is not None and drawing.plot is not None:
        _plot(summary, bins, drawing)
    if form.json:
        say_json(_json(summary, bins, drawing, None if wanted is None else (drawn, matching)))
        return 0
    say(summary_page(summary, found.documents))
    if drawing is not None:
        _say_histogram(summary, bins, drawing)
    if wanted is not None:
        say("\n" + sample_page(drawn, matching, summary))
    return 0


def plain(summary: ColumnSummary) -> dict[str, Any]:
    """Return a summary as JSON values. `labels` maps labels to counts, and is null if there are too many of them."""
    counts = None if summary.labels is None or summary.labels.counts is None else dict(summary.labels.counts)
    return {**asdict(summary), "labels": counts}


def _json(
    summary: ColumnSummary, bins: Histogram | None, drawing: Drawing | None,
    drawn: tuple[Sequence[Sampled], int] | None,
) -> dict[str, Any]:  # fmt: skip
    found = plain(summary)
    if drawing is not None:
        found["histogram"] = None if bins is None else asdict(bins)
    if drawn is not None:
        found |= {"sample": [asdict(one) for one in drawn[0]], "matching": drawn[1]}
    return found


def _say_histogram(summary: ColumnSummary, bins: Histogram | None, drawing: Drawing) -> None:
    if bins is not None:
        say("\n" + histogram_page(summary, bins))
    if summary.labels is not None and summary.labels.total:
        say("\n" + labels_page(summary, drawing.bins))


def _check_plot(plot: str) -> None:
    from datakit.plots.files import check_target
    from datakit.storage import urls

    check_target(urls.absolute(plot))


def _plot(summary: ColumnSummary, bins: Histogram | None, drawing: Drawing) -> None:
    from datakit.plots.attributes import write_plot
    from datakit.storage import urls

    assert drawing.plot is not None
    write_plot(summary, bins, drawing.bins, urls.absolute(drawing.plot))
    note(f"plot: {drawing.plot}")
