"""Registers all subcommands of `datakit`, defines the main help text, and turns errors into messages and exit codes.
The modules of the commands import what a command needs only when that command runs. As a result, `datakit --help` loads
neither Arrow nor any stage, and takes only 120 ms. Errors are shown without a traceback unless `DATAKIT_DEBUG=1` is
set.
"""

from __future__ import annotations

import gc as gc_module  # `gc` is the function of `datakit gc`
import os
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from inspect import getdoc
from types import FrameType
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter

from datakit import messages
from datakit.cli.attributes.show_command import show_attributes
from datakit.cli.cache_command import show, stats
from datakit.cli.cache_files_command import export_cache, import_cache
from datakit.cli.classifier.train_command import train_classifier
from datakit.cli.compare.diff_command import diff
from datakit.cli.compare.ls_command import ls
from datakit.cli.console import ENDED, note
from datakit.cli.doctor_command import doctor
from datakit.cli.ferry import ferry_command as ferry
from datakit.cli.inspect_command import inspect
from datakit.cli.mixture_command import pack, preview
from datakit.cli.plan_command import plan
from datakit.cli.published.lineage_command import lineage
from datakit.cli.published.publish_command import publish
from datakit.cli.published.report_command import report
from datakit.cli.published.serve_command import serve
from datakit.cli.recipes.catalog_command import list_catalog, recipe
from datakit.cli.recipes.catalog_command import show as show_dataset
from datakit.cli.recipes.init_command import init
from datakit.cli.recipes.recipe_command import keys, schema
from datakit.cli.retention.du_command import du
from datakit.cli.retention.gc_command import gc
from datakit.cli.retention.pin_command import pin, unpin
from datakit.cli.rules import command as rules
from datakit.cli.rules.sets import list_sets
from datakit.cli.run_command import run
from datakit.cli.status_command import status
from datakit.cli.tokenizer_command import train
from datakit.cli.training.bench_command import bench_moe
from datakit.cli.training.explain_command import explain
from datakit.cli.training.export_command import export_hf
from datakit.cli.training.generate_command import generate
from datakit.cli.training.profile_command import profile
from datakit.cli.training.size_command import size
from datakit.cli.training.train_command import evaluate, plot, train_model
from datakit.cli.validate.command import validate
from datakit.cli.why.command import why
from datakit.errors import DatakitError, NoSpaceError
from datakit.exit_codes import ExitCode
from datakit.messages import Level

STOPPED = {ExitCode.TERMINATED: "terminated", ExitCode.TIMED_OUT: "timed out; finished work is kept"}
GARBAGE_THRESHOLD = 50_000  # objects
DEBUG_VARIABLE = "DATAKIT_DEBUG"
_INDENTED = re.compile(r"(?m)(?:^ {4}\S.*\n?)+")  # the description of one parameter

GROUPS: dict[str, tuple[str, dict[str, Callable[..., Any]]]] = {  # a group's name: (help text, commands by name)
    "catalog": (
        "List the recipes that come with datakit, and public datasets that recipes can read by name.",
        {"list": list_catalog, "show": show_dataset, "recipe": recipe},
    ),
    "recipe": ("Describe what a recipe may contain.", {"keys": keys, "schema": schema}),
    "rules": (
        "Show what rules remove, and try them.",
        {"show": rules.show, "preview": rules.preview, "sets": list_sets},
    ),
    "tokenizer": ("Train a tokenizer.", {"train": train}),
    "cache": (
        "Inspect, import and export token caches.",
        {"show": show, "stats": stats, "import": import_cache, "export": export_cache},
    ),
    "export": ("Write a trained model in the format of other programs.", {"hf": export_hf}),
    "classifier": ("Train a classifier of documents.", {"train": train_classifier}),
    "attributes": ("Look at the attributes that annotators have computed.", {"show": show_attributes}),
    "mixture": (
        "Preview a mixture of caches before a training run, and prepare it.",
        {"preview": preview, "pack": pack},
    ),
    "bench": ("Measure parts of the trainer on this machine.", {"moe": bench_moe}),
    "ferry": (
        "Prove that this version works: run everything on known text, and compare with earlier runs.",
        {"run": ferry.run, "list": ferry.list_ferries, "history": ferry.history},
    ),
}
HELP = "Turn raw text into deduplicated, tokenized caches, shard by shard, in isolated worker processes."
CODES = "\n".join(f"  {code:>3}  {code.meaning}" for code in ExitCode)
EPILOGUE = f"""
Start here:
  datakit run demo               build a token cache from text on this machine
  datakit init my-texts/         write a recipe for the files in a folder
  datakit plan recipe.toml       show what a run would do; writes nothing

Exit codes:
{CODES}

Data goes to stdout, everything else to stderr.
DATAKIT_DEBUG=1 shows tracebacks; NO_COLOR=1 disables color.
"""
MESSAGES = Group("Messages on stderr", sort_key=100)


def build() -> App:
    """Return the command-line interface: an App with all commands and groups of commands."""
    app = App(
        name="datakit",
        help=HELP,
        help_epilogue=EPILOGUE,
        help_format="plaintext",
        version=_version,
        suppress_keyboard_interrupt=False,
    )
    for command in (
        run, plan, status, ls, init, inspect, why, diff, lineage, report, publish, serve, validate,
        gc, du, pin, unpin, doctor,
    ):  # fmt: skip
        app.command(_unwrapped(command), help_epilogue="")
    for group, (text, commands) in GROUPS.items():
        app.command(subcommands := App(name=group, help=text, help_epilogue=""))
        for name, command in commands.items():
            subcommands.command(_unwrapped(command), name=name, help_epilogue="")
    app.command(training := App(name="train", help_epilogue=""))
    training.default(_unwrapped(train_model))
    training.command(_unwrapped(plot), help_epilogue="")
    training.command(_unwrapped(profile), help_epilogue="")
    app.command(_unwrapped(evaluate), name="eval", help_epilogue="")
    app.command(_unwrapped(generate), help_epilogue="")
    app.command(_unwrapped(explain), help_epilogue="")
    app.command(_unwrapped(size), help_epilogue="")
    app.meta.suppress_keyboard_interrupt = False
    app.meta.default(_launcher(app))
    return app


def _launcher(app: App) -> Callable[..., Any]:
    """Return the function that reads the options common to all commands, and runs the command that the remaining words
    specify."""

    def launch(
        *words: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
        log: Annotated[messages.Format, Parameter(group=MESSAGES)] = "text",
        log_level: Annotated[messages.LevelName, Parameter(group=MESSAGES)] = "info",
    ) -> Any:
        """Run a command.

        Parameters
        ----------
        log
            Format of messages: text, or one JSON object per line.
        log_level
            Print only messages of this level and above.
        """
        messages.configure(log, log_level)
        return app(words, exit_on_error=False, print_error=False, result_action="return_value")

    return launch


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
    if arguments is None:
        _reduce_start_time()
    with messages.command():
        code = _run(sys.argv[1:] if arguments is None else list(arguments))
    if arguments is None:
        gc_module.freeze()  # otherwise, the interpreter would search all objects for garbage at exit, which takes 30 ms
    return code


def _reduce_start_time() -> None:
    """Save CPU time while the command imports what it needs. These settings apply to the whole process.

    OpenBLAS would start one thread per CPU, each of which runs in a loop for 50 to 100 ms; no command multiplies large
    matrices with numpy. With Python's default threshold (700 objects), garbage collections during the imports would
    take 70 ms and find almost nothing.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc_module.set_threshold(GARBAGE_THRESHOLD, 10, 10)


def _run(arguments: list[str]) -> int:
    try:
        code = build().meta(arguments, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        return _failed(error, ExitCode.USAGE, explained=True)
    except KeyboardInterrupt as error:
        return _stopped("interrupted", ExitCode.INTERRUPTED, error)
    except SystemExit as end:
        for code, how in STOPPED.items():
            if end.code == code:
                return _stopped(how, code, end)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise, Python would print an error at exit
        return ExitCode.FAILURE
    except DatakitError as error:
        return _failed(error, error.exit_code, explained=isinstance(error, NoSpaceError))
    except ModuleNotFoundError as error:
        advice = "; run `pip install datakit` without --no-deps to install every dependency"
        return _failed(error, ExitCode.USAGE, f"{error}{advice}")
    except Exception as error:  # noqa: BLE001 - last resort: one readable line, never a bare traceback
        message = f"{type(error).__name__}: {error} (unexpected: a bug in datakit or a library it calls)"
        return _failed(error, ExitCode.FAILURE, message)
    return code if isinstance(code, int) else ExitCode.DONE


def _stopped(how: str, code: ExitCode, error: BaseException) -> ExitCode:
    _show_notes(error)
    ending = getattr(error, ENDED, "no partial output is left; run the same command again to continue")
    message = f"{how}; {ending}"
    note(message, Level.ERROR, event="error", error=code.name, exit_code=code)
    return code


def _failed(error: Exception, code: ExitCode, message: str = "", explained: bool = False) -> ExitCode:
    """Print an error, and return its exit code. With `DATAKIT_DEBUG=1`, the traceback is printed first. Otherwise, a
    failure is followed by a hint on how to see the traceback. explained: print neither the traceback nor the hint.
    """
    debug = bool(os.environ.get(DEBUG_VARIABLE))
    if debug and not explained:
        note(traceback.format_exc().rstrip("\n"), Level.ERROR, event="traceback")
    _show_notes(error)
    note(f"error: {message or error}", event="error", error=type(error).__name__, exit_code=code)
    if code == ExitCode.FAILURE and not debug and not explained:
        note(f"({DEBUG_VARIABLE}=1 shows the traceback)")
    return code


def _show_notes(error: BaseException) -> None:
    """Print the notes that were added to an exception, such as the id of the run that it ended."""
    for text in getattr(error, "__notes__", ()):
        note(text)


def _terminate(number: int, frame: FrameType | None) -> None:
    """Handle SIGTERM by raising SystemExit, so that child processes are stopped and the ledger is flushed."""
    raise SystemExit(ExitCode.TERMINATED)
