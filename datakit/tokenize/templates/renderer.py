"""Starts the process that renders conversations with a chat template, and turns its answers and its exit into results.

A conversation that cannot be rendered, or whose rendering exceeds a limit, is left out; the others are not affected.
If a template exceeds a limit MOST_EXCEEDED times in a task, the template is at fault, and the step ends with an error.
If the process ends, the next conversation gets a new one.

Cost: 0.15 s of CPU time to start the process, once per task that has conversations, and 50 MB of memory. A conversation
of a few messages takes 0.1 to 0.5 ms. The process gets one conversation at a time, so that neither side waits for the
other to read. If the process ends, it is known which conversation was being rendered.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any

import msgspec

from datakit.cache.contract import ChatTemplate
from datakit.engine.interpreter import command
from datakit.errors import TokenizerError
from datakit.tokenize.templates.limits import Limits
from datakit.tokenize.templates.marks import Span

CHILD = "datakit.tokenize.templates.child"
OF_CONVERSATIONS = (
    "failed",
    "inconsistent",
    "unclear",
)  # errors that depend on the conversation; all others exceed a limit
MOST_EXCEEDED = 3  # if this many renderings of a task exceed a limit, the step fails
ANSWER_BYTES = 6  # per character of the text, at most: a control character is escaped
LONGEST_SPANS = 16 << 20  # bytes for the spans of all turns and for the reason of an error
DEATH_SECONDS = 30.0  # from the end of the output to the end of the process, at most
KEPT = ("LD_LIBRARY_PATH",)  # environment variables without which some interpreters do not start


@dataclass(frozen=True)
class Rendered:
    """The text of a conversation, the spans of its characters that are targets, and the spans that are ordinary text
    although they look like special tokens.
    """

    text: str
    spans: list[Span]
    quoted: list[Span] = field(default_factory=list)


@dataclass(frozen=True)
class Lost:
    """The reason why a conversation could not be rendered. It quotes nothing from the conversation."""

    reason: str


class _Answer(msgspec.Struct, frozen=True):
    error: str = ""
    reason: str = ""
    text: str = ""
    spans: list[Span] = []
    quoted: list[Span] = []
    has_spans: bool = False
    needs_date: bool = False


class Renderer:
    """Renders conversations with one template. Close it to end its process. special: the strings of special tokens.

    has_spans, needs_date: see `environment.Template`; known once the process has started.
    """

    def __init__(self, template: ChatTemplate, limits: Limits | None = None, special: Sequence[str] = ()) -> None:
        self._template, self._limits, self._special = template, limits or Limits(), list(special)
        self._process: subprocess.Popen[bytes] | None = None
        self._exceeded = 0
        self.has_spans = self.needs_date = False

    def start(self) -> None:
        """Start the process, and let it compile the template. Raises TokenizerError if the template is not valid, and
        if jinja2 is not installed.
        """
        if find_spec("jinja2") is None:
            raise TokenizerError(
                "tokenize.chat_format = 'template' needs jinja2; run pip install '.[chat]' in datakit's checkout"
            )
        kept = {name: os.environ[name] for name in KEPT if name in os.environ}
        self._process = subprocess.Popen(
            command(f"from {CHILD} import main; main()"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a traceback could quote the conversation
            cwd="/",
            env={"LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "0", **kept},
        )
        names = ("template", "tool_use", "variables", "date")
        asked = {name: getattr(self._template, name) for name in names}
        answer = self._ask({**asked, "limits": asdict(self._limits), "special": self._special})
        if answer.error:
            self.close()
            raise TokenizerError(f"the chat template {self._what(answer)}")
        self.has_spans, self.needs_date = answer.has_spans, answer.needs_date

    def try_out(self, messages: list[Any]) -> None:
        """Render a conversation, and discard the result. Raises TokenizerError if this exceeds a limit."""
        answer = self._ask({"messages": messages, "tools": None})
        if answer.error and answer.error not in OF_CONVERSATIONS:
            raise TokenizerError(f"the chat template {self._what(answer)}, even for two short messages")

    def render(self, messages: list[Any], tools: list[Any] | None) -> Rendered | Lost:
        """Render a conversation. Raises TokenizerError if the template has exceeded its limits too often."""
        if self._process is None:
            self.start()
        answer = self._ask({"messages": messages, "tools": tools})
        if not answer.error:
            return Rendered(answer.text, answer.spans, answer.quoted)
        reason = f"the chat template {self._what(answer)}"
        if answer.error not in OF_CONVERSATIONS:
            self._exceeded += 1
            self.close()  # what is left of the rendering must not reach the next one
            if self._exceeded >= MOST_EXCEEDED:
                raise TokenizerError(f"{reason}, for {self._exceeded} conversations; the template itself is at fault")
        return Lost(reason)

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()

    def _what(self, answer: _Answer) -> str:
        """Complete the sentence that begins with "the chat template"."""
        if answer.error == "failed":
            return f"fails: {answer.reason}"
        if answer.error == "inconsistent":
            return f"has no {{% generation %}} tags, and it {answer.reason}"
        return answer.reason or self._limits.exceeded(answer.error)

    def _ask(self, request: dict[str, Any]) -> _Answer:
        """Send a request, and return the answer or, if the process dies or writes too much, an answer that says so."""
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        most = self._limits.characters * ANSWER_BYTES + LONGEST_SPANS
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(msgspec.json.encode(request) + b"\n")
            process.stdin.flush()
        line = process.stdout.readline(most)
        if line.endswith(b"\n"):
            with contextlib.suppress(msgspec.DecodeError):
                return msgspec.json.decode(line, type=_Answer)
        if line:
            return _Answer("characters")
        try:
            code = process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL  # it has closed its output, but goes on; `close` kills it
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return _Answer("seconds" if code == -signal.SIGXCPU else "memory")
        return _Answer("died", f"makes its process end with exit code {code}")
