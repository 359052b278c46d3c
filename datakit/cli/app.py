"""The command `datakit`: parses, calls one function, prints; and turns every error into one line and an exit code.

Each command lives in a module of its own that imports what it calls when it is called, so that `datakit --help` loads
neither Arrow nor a stage (120 ms). Errors that datakit raises on purpose are shown without a traceback;
`DATAKIT_DEBUG=1` shows it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from types import FrameType

from cyclopts import App, CycloptsError

from datakit.cli.cache_command import show, stats
from datakit.cli.cache_files_command import export_cache, import_cache, validate
from datakit.cli.catalog_command import catalog
from datakit.cli.console import note
from datakit.cli.doctor_command import doctor
from datakit.cli.gc_command import gc
from datakit.cli.inspect_command import inspect
from datakit.cli.mixture_command import pack, preview
from datakit.cli.plan_command import plan
from datakit.cli.run_command import run
from datakit.cli.size_command import size
from datakit.cli.status_command import status
from datakit.cli.tokenizer_command import train
from datakit.cli.train_command import evaluate, plot, train_model
from datakit.errors import DatakitError

DONE, FAILURE, USAGE, PARTIAL, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 130, 143
DEBUG_VARIABLE = "DATAKIT_DEBUG"

HELP = "Raw text datasets to deduplicated, tokenized caches, shard by shard, in isolated worker processes."
EPILOGUE = """
Start here:
  datakit run demo               text that this machine has, to a token cache
  datakit inspect my-texts/      what is in there, and a draft recipe for it
  datakit plan my-recipe.toml    what a run would do; writes nothing

Exit codes:
    0  done
    1  failure of a disk, a store, a task or datakit itself
    2  usage or input error: the message says what to mend
    3  partial: some tasks failed, the rest is kept; the next run goes on
    4  a training run diverged: the loss is no number; the last good checkpoint is kept
  130  interrupted (Ctrl-C); the next run goes on

Data goes to stdout, everything else to stderr.
DATAKIT_DEBUG=1 shows tracebacks, NO_COLOR=1 switches colour off.
"""


def build() -> App:
    """The whole command line. The commands' modules are light; what they call is imported when they are."""
    app = App(
        name="datakit",
        help=HELP,
        help_epilogue=EPILOGUE,
        help_format="plaintext",
        version=_version,
        suppress_keyboard_interrupt=False,
    )
    for command in (run, plan, status, inspect, validate, catalog, gc, doctor):
        app.command(command, help_epilogue="")
    tokenizer = App(name="tokenizer", help="Train a tokenizer.", help_epilogue="")
    tokenizer.command(train, help_epilogue="")
    app.command(tokenizer)
    cache = App(name="cache", help="Look inside a token cache; import and export one.", help_epilogue="")
    for command, name in ((show, "show"), (stats, "stats"), (import_cache, "import"), (export_cache, "export")):
        cache.command(command, name=name, help_epilogue="")
    app.command(cache)
    mixture = App(name="mixture", help="Look at a mixture of caches before a run, and prepare it.", help_epilogue="")
    for command in (preview, pack):
        mixture.command(command, help_epilogue="")
    app.command(mixture)
    app.command(_training())
    app.command(evaluate, name="eval", help_epilogue="")
    app.command(size, help_epilogue="")
    return app


def _training() -> App:
    training = App(name="train", help_epilogue="")
    training.default(train_model)
    training.command(plot, help_epilogue="")
    return training


def _version() -> str:
    from importlib.metadata import version

    return version("datakit")


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script: run one command, answer its exit code."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminate)
    try:
        code = build()(sys.argv[1:] if arguments is None else list(arguments), exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except CycloptsError as error:
        note(f"error: {error}")
        return USAGE
    except KeyboardInterrupt:
        note("interrupted; nothing half-written is left, and the next run goes on from here")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the interpreter complains at exit
        return FAILURE
    except DatakitError as error:
        return _failed(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        return _failed(f"{error}; `pip install datakit`, without --no-deps, installs what all commands need", USAGE)
    except Exception as error:  # noqa: BLE001 - the last line of defence: one line for a person, never a bare traceback
        return _failed(f"{type(error).__name__}: {error} (unexpected: a bug of datakit, or of what it calls)", FAILURE)
    return code if isinstance(code, int) else DONE


def _failed(message: str, code: int) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        traceback.print_exc()
    note(f"error: {message}")
    if code == FAILURE and not os.environ.get(DEBUG_VARIABLE):
        note(f"({DEBUG_VARIABLE}=1 shows where)")
    return code


def _terminate(number: int, frame: FrameType | None) -> None:
    """A polite kill ends like Ctrl-C: children are stopped, the ledger is flushed."""
    raise SystemExit(TERMINATED)
