"""Keeps Arrow from importing pandas, and lets Arrow find pandas again where a user's code may pass it a pandas object.

If pandas is installed, Arrow imports it when it converts the first Python value. This takes 0.25 to 0.5 s of CPU time
and 40 MB of memory (measured), in every process. datakit itself never uses pandas.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

PANDAS = "pandas"
_left_out: list[bool] = []  # not empty if pandas was left out; forked processes inherit it


class _WithoutPandas:
    """Finds no pandas; other finders find everything else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for pandas."""
        if name == PANDAS:
            raise ModuleNotFoundError(name)
        return None


def leave_out_pandas() -> None:
    """Make Arrow look for pandas now, and not find it. Arrow does not look again in this process, or in processes that
    are forked from it, until `find_pandas_again` is called; other code can still import pandas. Does nothing if pandas
    has been imported.
    """
    if PANDAS in sys.modules:
        return
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.scalar(0)
    except ModuleNotFoundError:  # without pyarrow, the checks that need it are skipped
        return
    finally:
        sys.meta_path.remove(finder)
    _left_out.append(True)


def find_pandas_again() -> None:
    """Undo `leave_out_pandas`: import pandas, if it is installed, so that Arrow converts pandas objects. Does nothing
    in a process where pandas was not left out.
    """
    if not _left_out:
        return
    import pyarrow as pa

    _left_out.clear()
    with contextlib.suppress(ImportError):
        pa.lib._pandas_api.pd  # pyright: ignore[reportAttributeAccessIssue] # noqa: B018 - imports pandas
