"""Prints every message for the user on stderr: as text or, with `--log json`, as one JSON object per line.

All commands, the progress lines of runs and the trainer print through `show`, so this is the one place where messages
are redacted and escaped, and where those below the chosen level are dropped. stdout holds only data and is not
affected. A JSON object has the fields `time` (in seconds since 1970, as in `events.jsonl`), `level`, `event` and
`message`, and the event's own fields. While a command runs, messages of Python's `logging` are printed in the same way:
those of datakit and, with JSON, those of all libraries, so that programs can parse every line.

Cost: 20 us per message. The settings apply to the whole process, because it has only one stderr.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, TextIO

from datakit.printable import escaped_json, printable
from datakit.redaction import redacted

Format = Literal["text", "json"]
LevelName = Literal["debug", "info", "warning", "error"]


class Level(IntEnum):
    """The importance of a message, with the numbers of Python's `logging`."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


PREFIXES = {"warning: ": Level.WARNING, "error: ": Level.ERROR}  # beginning of a text -> level

WRAPPED = re.compile(r"\n {4,}(?=\S)")  # a line break that only fits a text into the width of a terminal
VERBATIM = ("traceback", "log")  # events whose messages keep all line breaks


@dataclass(frozen=True)
class Settings:
    """The format of messages, and the lowest level that is shown."""

    format: Format = "text"
    level: Level = Level.INFO


_settings = Settings()


def settings() -> Settings:
    """Return the settings of this process."""
    return _settings


def configure(format: Format, level: LevelName) -> None:
    """Set the format and the lowest level of all further messages."""
    global _settings  # noqa: PLW0603 - one stderr, one format
    _settings = Settings(format, Level[level.upper()])
    _handle_logging()


@contextmanager
def command() -> Iterator[None]:
    """During the `with` block, print messages of `logging` like all others; restore the settings at its end."""
    global _settings  # noqa: PLW0603
    before = _settings
    try:
        _handle_logging()
        yield
    finally:
        _settings = before
        _release_logging()


def show(
    text: str, level: Level | None = None, *, event: str = "note", stream: TextIO | None = None, **fields: Any
) -> None:
    """Print a message of one or more lines on stderr (or `stream`), unless its level is too low. The name of the event
    and the fields appear only in JSON. If `level` is None, the text's prefix, "warning: " or "error: ", determines the
    level; a text with neither prefix has the level INFO.
    """
    prefix = next((one for one in PREFIXES if text.startswith(one)), "")
    level = PREFIXES.get(prefix, Level.INFO) if level is None else level
    if level < _settings.level:
        return
    if _settings.format == "json":
        message = text.removeprefix(prefix)
        message = message if event in VERBATIM else WRAPPED.sub(" ", message)
        facts = {"time": time.time(), "level": level.name.lower(), "event": event, "message": message}
        line = escaped_json(json.dumps(_redacted(facts | fields), ensure_ascii=False))
    else:
        line = printable(redacted(text))
    print(line, file=stream or sys.stderr, flush=True)


def _redacted(value: Any) -> Any:
    """Return `value` (of types that JSON can represent) with all strings redacted, except keys."""
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {key: _redacted(one) for key, one in value.items()}
    return [_redacted(one) for one in value] if isinstance(value, list | tuple) else value


class _Handler(logging.Handler):
    """Shows the messages of `logging`."""

    def emit(self, record: logging.LogRecord) -> None:
        level = max((one for one in Level if one <= record.levelno), default=Level.DEBUG)
        show(self.format(record), level, event="log", logger=record.name)


_handler = _Handler()


def _handle_logging() -> None:
    """Install the handler for datakit's own loggers or, with JSON, for all loggers and Python's warnings."""
    _release_logging()
    everything = _settings.format == "json"
    logging.getLogger(None if everything else "datakit").addHandler(_handler)
    logging.captureWarnings(everything)


def _release_logging() -> None:
    for name in ("datakit", None):  # None: the root logger
        logging.getLogger(name).removeHandler(_handler)
    logging.captureWarnings(False)
