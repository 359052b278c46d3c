"""Answers requests: pages, their event streams, reports, assets, and the sign-in.

    /                                    datasets and runs
    /datasets/<name>                     a dataset; /report: its report
    /runs/<dataset>/<run>                a run; /events: the same page as an event stream; /report: its report
    /trainings/<dataset>/<run>           likewise for a training run
    /sign-in                             exchanges the token for a session

A report can take seconds, so only one is made at a time, and the newest MOST_REPORTS are kept. A kept report about a
run or a training run is shown again until the run changes. Files and stores are read in threads, never in the event
loop.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from datakit import messages
from datakit.errors import DatakitError, NotFoundError
from datakit.report.page import page_of
from datakit.report.page import render as render_report
from datakit.report.subject import subject_of
from datakit.report.templates import asset, environment
from datakit.serve.access import COOKIE, SESSION_SECONDS, SIGN_IN, Access, Gate
from datakit.serve.followers import Followers
from datakit.serve.report_reach import require_dataset, require_entry, require_steps
from datakit.serve.root import ServedRoot
from datakit.serve.root_pages import RootPages
from datakit.serve.run_lines import RunLines
from datakit.serve.run_page import moment_text, run_page
from datakit.serve.streams import MOST_STREAMS, PageStream, StreamLimits
from datakit.serve.training_page import training_page
from datakit.storage import urls

PACKAGE = "datakit.serve"
ASSETS = {
    "/assets/report.css": ("datakit.report", "report.css", "text/css"),
    "/assets/serve.css": (PACKAGE, "serve.css", "text/css"),
    "/assets/live.js": (PACKAGE, "live.js", "text/javascript"),
}
MOST_REPORTS = 4
MOST_FORM_BYTES = 4096
KINDS = {"runs": "run", "trainings": "training"}


@dataclass(frozen=True)
class Page:
    """A page that can change. look: returns its version and the age of the newest event. content: makes its data."""

    template: str
    look: Callable[[], tuple[tuple[object, ...], float | None]]
    content: Callable[[], Any]

    def live(self) -> str:
        """Return the part of the page that changes, as HTML."""
        return environment(PACKAGE).get_template(self.template).render(page=self.content(), moment=moment_text)


@dataclass
class Server:
    """Holds everything from which answers are made: the root, the token, the followers and the newest reports."""

    root: ServedRoot
    access: Access
    show_text: bool = False
    limits: StreamLimits = field(default_factory=StreamLimits)
    _reports: OrderedDict[str, tuple[object, str]] = field(default_factory=OrderedDict)
    _reporting: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.followers = Followers(self.root)
        self.pages = RootPages(self.root, RunLines(self.root), self.followers)

    def page(self, parameters: Mapping[str, str], query: Mapping[str, str]) -> Page:
        """Return the page that an address names. Raises NotFoundError."""
        if "run" not in parameters:
            dataset = parameters.get("dataset", "")
            if dataset:
                self.root.dataset(dataset)
            return Page("root.html.jinja", self._changing, lambda: self.pages.page(query, dataset))
        entry = self.root.entry(KINDS[parameters["kind"]], parameters["dataset"], parameters["run"])

        def look() -> tuple[tuple[object, ...], float | None]:
            follower = self.followers.of(entry)
            health = follower.health()
            return follower.version(), None if health == "ended" else follower.silent()

        if entry.kind == "training":
            return Page("training.html.jinja", look, lambda: self.followers.of(entry).composed(training_page))
        return Page("run.html.jinja", look, lambda: self.followers.of(entry).composed(lambda one: run_page(one, query)))

    def _changing(self) -> tuple[tuple[object, ...], float | None]:
        return (object(),), None  # a list is made again at each look; it is sent only if it differs

    def report(self, parameters: Mapping[str, str]) -> str:
        """Return the report about a dataset, a run or a training run. Raises DatakitError."""
        if "run" in parameters:
            entry = self.root.entry(KINDS[parameters["kind"]], parameters["dataset"], parameters["run"])
            place, version = entry.url, self.followers.of(entry).version()
        else:
            entry, place, version = None, self.root.dataset(parameters["dataset"]), None
        with self._reporting:
            kept = self._reports.get(place)
            if kept is None or kept[0] != version or version is None:
                require_dataset(self.root, place) if entry is None else require_entry(self.root, entry)
                subject = subject_of(place, self.root.readable)
                require_steps(self.root, subject)
                kept = (version, render_report(page_of(subject, self.show_text)))
                self._reports[place] = kept
                while len(self._reports) > MOST_REPORTS:
                    self._reports.popitem(last=False)
        return kept[1]


def application(server: Server, hosts: frozenset[str]) -> Gate:
    """Return the ASGI application. hosts: the host names under which the server may be addressed."""
    routes = [Route(path, _asset) for path in ASSETS]
    routes.append(Route(SIGN_IN, _sign_in, methods=["GET", "POST"]))
    for path in ("", "/datasets/{dataset}", "/{kind}/{dataset}/{run}"):  # in this order: the last also matches others
        routes += [Route(path or "/", _page), Route(f"{path}/events", _events)]
        routes += [Route(f"{path}/report", _report)] if path else []
    handlers: dict[Any, Any] = {HTTPException: _http_problem, DatakitError: _problem, Exception: _unexpected}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    app.state.server = server
    return Gate(app, server.access, hosts, _refusal)


async def _page(request: Request) -> Response:
    return HTMLResponse(await run_in_threadpool(_whole_page, request))


def _whole_page(request: Request) -> str:
    server: Server = request.app.state.server
    _require_kind(request)
    page = server.page(request.path_params, request.query_params)
    _, age = page.look()
    layout = environment(PACKAGE).get_template("layout.html.jinja")
    dataset = request.path_params.get("dataset", "")
    events = f"{request.url.path.rstrip('/')}/events"
    return layout.render(
        title=dataset or "datasets and runs", dataset=dataset, content=_markup(page.live()), age=age, events=events,
        root=server.root.url,
    )  # fmt: skip


async def _events(request: Request) -> Response | PageStream:
    server: Server = request.app.state.server
    _require_kind(request)
    if server.limits.open >= MOST_STREAMS:
        return PlainTextResponse("Too many pages are open; close some.", 503, {"Retry-After": "10"})
    page = await run_in_threadpool(server.page, request.path_params, request.query_params)
    last = request.headers.get("last-event-id", "")[:64]
    return PageStream(page.look, page.live, server.root.pause, last, server.limits)


async def _report(request: Request) -> Response:
    _require_kind(request)
    html = await run_in_threadpool(request.app.state.server.report, request.path_params)
    # The page's own policy allows its style and scripts by their hashes.
    return HTMLResponse(html, headers={"Content-Security-Policy": "frame-ancestors 'none'"})


def _require_kind(request: Request) -> None:
    if request.path_params.get("kind", "runs") not in KINDS:
        raise HTTPException(404)


async def _asset(request: Request) -> Response:
    package, name, kind = ASSETS[request.url.path]
    return Response(asset(package, name), media_type=kind)


async def _sign_in(request: Request) -> Response:
    server: Server = request.app.state.server
    if request.method != "POST":
        return HTMLResponse(_message_page("Sign in", "", sign_in=True))
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_FORM_BYTES:
            return HTMLResponse(_message_page("Sign in", "The form is too large.", sign_in=True), 413)
    token = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0].strip()
    try:
        session = server.access.exchange(token)
    except TimeoutError as error:
        page = _message_page("Sign in", f"{error}.", sign_in=True)
        return HTMLResponse(page, 429, {"Retry-After": "60"})
    if session is None:
        return HTMLResponse(_message_page("Sign in", "This token is wrong, or has been used.", sign_in=True), 401)
    if server.access.once:
        messages.show("the token has been used; for another browser, start again or use --token-file")
    answer = RedirectResponse("/", 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, session, SESSION_SECONDS, httponly=True, samesite="strict", secure=secure)
    return answer


def _refusal(status: int, text: str) -> HTMLResponse:
    return HTMLResponse(_message_page("Sign in" if status == 401 else "Refused", text, sign_in=status == 401), status)


def _message_page(title: str, text: str, sign_in: bool = False) -> str:
    template = environment(PACKAGE).get_template("message.html.jinja")
    return template.render(title=title, text=text, sign_in=sign_in, address=SIGN_IN)


def _markup(html: str) -> Any:
    from markupsafe import Markup

    return Markup(html)


def _http_problem(request: Request, error: HTTPException) -> Response:
    text = "There is no such page." if error.status_code == 404 else str(error.detail)
    return HTMLResponse(_message_page("Not found", text), error.status_code)


def _problem(request: Request, error: DatakitError) -> Response:
    missing = isinstance(error, NotFoundError)
    title = "Not found" if missing else "This cannot be shown"
    return HTMLResponse(_message_page(title, str(error)), 404 if missing else 500)


def _unexpected(request: Request, error: Exception) -> Response:
    messages.show(f"error: {urls.name(request.url.path)}: {type(error).__name__} (unexpected: a bug in datakit)")
    return HTMLResponse(_message_page("This cannot be shown", "An unexpected error; the server's log names it."), 500)
