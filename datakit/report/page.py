"""Gathers the content of a report, and writes the page: one HTML file that loads nothing from anywhere.

The page is a Jinja2 template in which every value is escaped. Style, scripts and the data of the charts are inside of
it. The page's content security policy allows only this style and these scripts (by their hashes), so nothing else could
run or be loaded even if a name of a source got into the page unescaped. Charts are drawn by Apache ECharts, which is in
`vendor/`.

Cost: one read of each manifest and ledger of the report's steps. The page takes 1.2 MB, of which ECharts is 1.1 MB. Its
size depends on the number of sources (up to a limit), but not on the number of partitions, tasks or documents.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

from datakit.errors import UsageError
from datakit.lineage.graph import Lineage, lineage_of, upstream_first
from datakit.printable import printable
from datakit.report.attempts import read_work
from datakit.report.content import content_sections
from datakit.report.counts import source_counts
from datakit.report.evaluation import evaluation_section
from datakit.report.figures import Page
from datakit.report.overview import about, facts, lead
from datakit.report.pairs import pairs_section
from datakit.report.performance import performance_sections
from datakit.report.provenance import lineage_section
from datakit.report.rules import rules_section
from datakit.report.subject import Subject, subject_of
from datakit.report.templates import asset, environment
from datakit.report.training import training_sections
from datakit.storage import atomic, urls

FOLDER = "report"
PACKAGE = "datakit.report"
VENDOR = files("datakit.report") / "vendor"
LIBRARY = "echarts/echarts.min.js"


def write_report(target: str, output: str = ".", show_text: bool = False) -> str:
    """Write the report about a dataset, a step, a run or a training run to a file in `<output>/report/`, and return its
    path. An earlier report of the same name is replaced. With `show_text`, the report shows texts of removed documents.

    Raises UsageError if Jinja2 is missing or if there is nothing to report on at `target`.
    """
    require_jinja()
    subject = subject_of(target)
    url = urls.join(urls.absolute(output), FOLDER, f"{_file_name(subject)}.html")
    atomic.replace_bytes(render(page_of(subject, show_text)).encode(), url)
    return url


def require_jinja() -> None:
    """Raise UsageError if Jinja2 is missing."""
    try:
        import jinja2  # noqa: F401
    except ImportError as error:
        raise UsageError("reports need Jinja2; run pip install '.[report]' in datakit's checkout") from error


def _file_name(subject: Subject) -> str:
    last = urls.name(subject.directory)
    return subject.name if subject.kind == "dataset" else f"{subject.name}-{last}"


def page_of(subject: Subject, show_text: bool) -> Page:
    """Return the content of the report."""
    sources = source_counts(subject)
    work = read_work(subject.steps, subject.run.run if subject.run else None)
    lineage = _lineage(subject)
    sections = [
        *training_sections(subject),
        *content_sections(subject, sources),
        *evaluation_section(subject),
        *rules_section(subject),
        *([pairs_section(subject)] if show_text else []),
        *performance_sections(subject, work),
        *([described] if (described := lineage_section(lineage)) else []),
    ]
    return Page(
        title=subject.name,
        kind=subject.kind,
        lead=lead(subject, work),
        facts=tuple(facts(subject, sources, work)),
        sections=tuple(sections),
        about=tuple(about(subject, lineage)),
    )


def _lineage(subject: Subject) -> Lineage | None:
    finished = [step for step in subject.steps if step.manifest is not None or step.identity]
    if subject.manifest is not None:
        finished = upstream_first(subject.directory, subject.manifest)
    return lineage_of(finished, subject.name) if finished else None


def render(page: Page) -> str:
    """Return the page as HTML."""
    from markupsafe import Markup

    figures = [figure for section in page.sections for figure in section.figures]
    charts = {figure.id: asdict(figure.chart) for figure in figures if figure.chart}
    style, script, library = asset(PACKAGE, "report.css"), asset(PACKAGE, "charts.js"), _vendored(LIBRARY)
    return environment(PACKAGE).get_template("report.html.jinja").render(
        page=page,
        policy=policy([style], [library, script]),
        style=Markup(style),
        script=Markup(script),
        library=Markup(library),
        data=Markup(script_json(charts)),
    )  # fmt: skip


def policy(styles: list[str], scripts: list[str]) -> str:
    """Return a content security policy that allows only these inline styles and scripts."""
    allowed = {"style-src": styles, "script-src": scripts}
    rules = [f"{name} {' '.join(map(_source, texts))}" for name, texts in allowed.items()]
    return "; ".join(["default-src 'none'", *rules, "img-src data:", "base-uri 'none'", "form-action 'none'"])


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def script_json(value: Any) -> str:
    """Return JSON that can stand in a script element: no character in it can end the element or a line of the script.

    >>> script_json({"name": "</script>&"})
    '{"name": "\\\\u003c/script\\\\u003e\\\\u0026"}'
    """
    text = json.dumps(_printable(value), ensure_ascii=True, allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _printable(value: Any) -> Any:
    """Return the value with unsafe characters in its texts escaped (see `datakit.printable`)."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {key: _printable(entry) for key, entry in value.items()}
    return [_printable(entry) for entry in value] if isinstance(value, list | tuple) else value


@cache
def _vendored(name: str) -> str:
    return (VENDOR / name).read_text("utf-8")
