"""Registers all subcommands of `datakit`, defines the main help text, and turns errors into messages and exit codes.
The modules of the commands import what a command needs only when that command runs. As a result, `datakit --help` loads
neither Arrow nor any stage, and takes only 120 ms. Errors are shown without a traceback unless `DATAKIT_DEBUG=1` is
set.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from inspect import getdoc
from types import FrameType
from typing import Any

from cyclopts import App, CycloptsError

from datakit.cli.cache_command import show, stats
from datakit.cli.cache_files_command import export_cache, import_cache, validate
from datakit.cli.compare.diff_command import diff
from datakit.cli.compare.ls_command import ls
from datakit.cli.console import note
from datakit.cli.doctor_command import doctor
from datakit.cli.gc_command import gc
from datakit.cli.inspect_command import inspect
from datakit.cli.mixture_command import pack, preview
from datakit.cli.plan_command import plan
from datakit.cli.recipe_command import catalog, keys, schema
from datakit.cli.run_command import run
from datakit.cli.size_command import size
from datakit.cli.status_command import status
from datakit.cli.tokenizer_command import train
from datakit.cli.train_command import evaluate, plot, train_model
from datakit.cli.why.command import why
from datakit.errors import INTERRUPTED, TERMINATED, DatakitError, NoSpaceError, exit_code_of

DONE, FAILURE, USAGE, PARTIAL = 0, 1, 2, 3
DEBUG_VARIABLE = "DATAKIT_DEBUG"
_INDENTED = re.compile(r"(?m)(?:^ {4}\S.*\n?)+")  # the description of one parameter

GROUPS: dict[str, tuple[str, dict[str, Callable[..., Any]]]] = {  # a group's name: (help text, commands by name)
    "recipe": ("Describe what a recipe may contain.", {"keys": keys, "schema": schema}),
    "tokenizer": ("Train a tokenizer.", {"train": train}),
    "cache": (
        "Inspect, import and export token caches.",
        {"show": show, "stats": stats, "import": import_cache, "export": export_cache},
    ),
    "mixture": (
        "Preview a mixture of caches before a training run, and prepare it.",
        {"preview": preview, "pack": pack},
    ),
}
HELP = "Turn raw text into deduplicated, tokenized caches, shard by shard, in isolated worker processes."
EPILOGUE = """
Start here:
  datakit run demo               build a token cache from text on this machine
  datakit inspect my-texts/      show what files contain, and draft a recipe for them
  datakit plan my-recipe.toml    show what a run would do; writes nothing

Exit codes:
    0  done
    1  failure: a disk, a store, a task or datakit itself
    2  usage or input error; the message says what to fix
    3  partial: some tasks failed; the results of the others are kept; run again to continue
    4  a training run diverged: its loss, a gradient or a weight is NaN or infinite; the last good checkpoint is kept
  130  interrupted (Ctrl-C); run again to continue
  143  terminated (SIGTERM); run again to continue

Data goes to stdout, everything else to stderr.
DATAKIT_DEBUG=1 shows tracebacks; NO_COLOR=1 disables color.
"""


def build() -> App:
    """Return the command line: an App with all commands and groups of commands."""
    app = App(
        name="datakit",
        help=HELP,
        help_epilogue=EPILOGUE,
        help_format="plaintext",
        version=_version,
        suppress_keyboard_interrupt=False,
    )
    for command in (run, plan, status, ls, inspect, why, diff, validate, catalog, gc, doctor):
        app.command(_unwrapped(command), help_epilogue="")
    for group, (text, commands) in GROUPS.items():
        app.command(subcommands := App(name=group, help=text, help_epilogue=""))
        for name, command in commands.items():
            subcommands.command(_unwrapped(command), name=name, help_epilogue="")
    app.command(training := App(name="train", help_epilogue=""))
    training.default(_unwrapped(train_model))
    training.command(_unwrapped(plot), help_epilogue="")
    app.command(_unwrapped(evaluate), name="eval", help_epilogue="")
    app.command(_unwrapped(size), help_epilogue="")
    return app


def _unwrapped(command: Callable[..., int]) -> Callable[..., int]:
    """Join the lines of each paragraph in the command's docstring, from which its help is made; return the command.

    Cyclopts wraps the help to the terminal's width but keeps line breaks inside paragraphs.
    """
    text, heading, parameters = (getdoc(command) or "").partition("\n\nParameters\n----------\n")
    paragraphs = [part if "\n " in part else part.replace("\n", " ") for part in text.split("\n\n")]
    command.__doc__ = "\n\n".join(paragraphs) + heading + _INDENTED.sub(_one_line, parameters)
    return command


def _one_line(lines: re.Match[str]) -> str:
    return f"    {' '.join(lines[0].split())}\n"


def _version() -> str:
    from importlib.metadata import version

    return version("datakit")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        code = build()(sys.argv[1:] if arguments is None else list(arguments), exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        note(f"error: {error}")
        return USAGE
    except KeyboardInterrupt as error:
        return _stopped("interrupted", INTERRUPTED, error)
    except SystemExit as end:
        if end.code != TERMINATED:
            raise
        return _stopped("terminated", TERMINATED, end)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise, Python would print an error at exit
        return FAILURE
    except NoSpaceError as error:
        _show_notes(error)
        note(f"error: {error}")  # a traceback would add nothing
        return error.exit_code
    except DatakitError as error:
        return _failed(str(error), error)
    except ModuleNotFoundError as error:
        return _failed(f"{error}; run `pip install datakit` without --no-deps to install every dependency", error)
    except Exception as error:  # noqa: BLE001 - last resort: one readable line, never a bare traceback
        return _failed(f"{type(error).__name__}: {error} (unexpected: a bug in datakit or a library it calls)", error)
    return code if isinstance(code, int) else DONE


def _stopped(how: str, code: int, error: BaseException) -> int:
    _show_notes(error)
    note(f"{how}; no partial output is left; run the same command again to continue")
    return code


def _failed(message: str, error: Exception) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        note(traceback.format_exc().rstrip("\n"))
    code = exit_code_of(error)
    _show_notes(error)
    note(f"error: {message}")
    if code == FAILURE and not os.environ.get(DEBUG_VARIABLE):
        note(f"({DEBUG_VARIABLE}=1 shows the traceback)")
    return code


def _show_notes(error: BaseException) -> None:
    """Show what was added to the error on its way, such as the id of the run that it ended."""
    for text in getattr(error, "__notes__", ()):
        note(text)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM by raising SystemExit, so that child processes are stopped and the ledger is flushed."""
    raise SystemExit(TERMINATED)
