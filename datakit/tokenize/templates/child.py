"""Implements the process that renders conversations. It reads requests from standard input, one line of JSON each, and
answers each with a line. The first line holds the template and the limits. The parent process is `renderer.py`.

A chat template is a program, and Jinja2's sandbox has had security holes. So this process has no environment
variables. Before it compiles the template, it limits its memory and the CPU time and output of each rendering, and
disables writing to files and core dumps. It cannot open a file or a socket, because its limit on open files equals the
number that are already open. A timer's handler in Python ends a rendering that takes too long. The handler cannot
interrupt a single operation of the interpreter, such as the power of two huge numbers; in this case, the kernel ends
the process at a later limit.

An answer about an error gives its type and the line of the template. It gives the error's message only if the template
contains this message, because other messages may quote the conversation.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import Any

import jinja2

from datakit.tokenize.templates.environment import MisplacedError, OutputError, Template
from datakit.tokenize.templates.limits import Limits
from datakit.tokenize.templates.marks import Span
from datakit.tokenize.templates.second_look import SecondLook, UnclearError
from datakit.tokenize.templates.special_strings import SpecialStrings

TARGET = "assistant"  # the role of the messages that are targets if a template has no `generation` tags
OWN_FILE = "<template>"  # Jinja2's name for a template that was not read from a file
INCONSISTENT = (
    "writes the beginning of this conversation differently, or fails, if the conversation ends there, so the "
    "assistant's turns cannot be found; use a template with these tags"
)
MISPLACED = (
    "the text inside a {% generation %} tag is not written where the tag stands, so the assistant's turns cannot be "
    "found; move the tag out of macros and assignments"
)


class _TooLongError(BaseException):
    """A rendering takes too long. Not an Exception, so that no handler in Jinja2 catches it."""


def main() -> None:
    """Answer requests until the standard input ends."""
    first = json.loads(sys.stdin.readline())
    limits = Limits(**first["limits"])
    _lock(limits)
    answer, made = guarded(limits, lambda: compiled(first, limits), first["template"])
    _write(answer)
    while made is not None and (line := sys.stdin.readline()):
        _write(guarded(limits, lambda: rendered(made, json.loads(line)), first["template"])[0])


def _lock(limits: Limits) -> None:
    """Set the limits of this process."""
    signal.signal(signal.SIGPROF, _stop)
    with open("/proc/self/statm", "rb") as file:
        reserved = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    _set(resource.RLIMIT_AS, reserved + limits.memory)
    _set(resource.RLIMIT_CORE, 0)
    _set(resource.RLIMIT_FSIZE, 0)
    _warm_up()
    _set(resource.RLIMIT_NOFILE, 3)


def _set(kind: int, value: int) -> None:
    resource.setrlimit(kind, (value, value))


def _warm_up() -> None:
    """Import what renderings and their errors need, while files can still be opened."""
    for source in ("{% generation %}{{ messages|tojson }}{% endgeneration %}", "{{ raise_exception('x') }}", "{{ 1/0"):
        guarded(None, lambda source=source: ({}, Template(source, {}, "", 99).written([{}], None)), source)


def _stop(number: int, frame: object) -> None:
    raise _TooLongError


Look = tuple[Template, SecondLook]
Templates = tuple[Look, Look]  # for conversations without and with tools


def compiled(first: dict[str, Any], limits: Limits) -> tuple[dict[str, Any], Templates]:
    """Return the answer to the first request, and the compiled templates."""
    sources = (first["template"], first["tool_use"] or first["template"])
    made = [Template(source, first["variables"], first["date"], limits.characters) for source in dict.fromkeys(sources)]
    answer = {"has_spans": made[0].has_spans, "needs_date": any(one.needs_date for one in made)}
    special = SpecialStrings(first["special"])
    looks = [(one, SecondLook(one, special)) for one in made]
    return answer, (looks[0], looks[-1])


def rendered(made: Templates, request: dict[str, Any]) -> tuple[dict[str, Any], None]:
    """Return the answer to a request for a conversation."""
    messages, tools = request["messages"], request["tools"]
    template, look = made[tools is not None]
    first, spans = template.written(messages, tools)
    text = first.text
    text.encode()  # raises UnicodeEncodeError for half of a surrogate pair
    if not template.has_spans:
        found = turns(lambda count, prompt: template.render(messages[:count], tools, prompt), messages, text)
        if found is None:
            return {"error": "inconsistent", "reason": INCONSISTENT}, None
        spans = found
    return {"text": text, "spans": spans, "quoted": look.foreign(first, messages, tools)}, None


def turns(render: Callable[[int, bool], str], messages: list[dict[str, Any]], text: str) -> list[Span] | None:
    """Return the spans of the assistant's turns in the text of a conversation; None if they cannot be found.

    A turn begins where the text of the messages before it ends, with the head of an answer, and ends where the text of
    the messages up to it ends. Both texts must be beginnings of the whole text. render(count, prompt) returns the text
    of the first `count` messages.
    """
    spans: list[Span] = []
    for number, message in enumerate(messages):
        if message.get("role") != TARGET:
            continue
        try:
            before = render(number, True)
            after = text if number + 1 == len(messages) else render(number + 1, False)
        except (MemoryError, OutputError):
            raise
        except Exception:  # noqa: BLE001 - whatever a template raises for the beginning of a conversation
            return None
        if not (after.startswith(before) and text.startswith(after)):
            return None
        spans.append((len(before), len(after)))
    return spans


def guarded(limits: Limits | None, work: Callable[[], tuple[dict[str, Any], Any]], source: str) -> Any:
    """Return what `work` returns. If it fails, return a description of the error, and None."""
    try:
        if limits is not None:
            limits.begin()
        return work()
    except _TooLongError:
        return {"error": "seconds"}, None
    except MemoryError:
        return {"error": "memory"}, None
    except OutputError:
        return {"error": "characters"}, None
    except MisplacedError:
        return {"error": "failed", "reason": MISPLACED}, None
    except UnclearError as error:
        return {"error": "unclear", "reason": str(error)}, None
    except Exception as error:  # noqa: BLE001 - a template can raise any; the description goes to the parent
        return {"error": "failed", "reason": _described(error, source)}, None
    finally:
        if limits is not None:
            limits.end()


def _described(error: Exception, source: str) -> str:
    lines, trace = [], error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == OWN_FILE:
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    in_template = isinstance(error, jinja2.TemplateSyntaxError)  # found before any conversation was seen
    line = lines[-1] if lines else getattr(error, "lineno", None)
    place = f" in line {line}" if line is not None else ""
    message = str(error).strip()
    return f"{type(error).__name__}{place}" + (f": {message}" if message and (in_template or message in source) else "")


def _write(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
    sys.stdout.flush()
