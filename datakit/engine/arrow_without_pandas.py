"""Keeps Arrow from importing pandas, except where a user's code may pass pandas objects to Arrow.

If pandas is installed, Arrow imports it to convert the first Python value. In every process, this takes 0.25 to 0.5 s
of CPU time and 40 MB of memory (measured). datakit itself never uses pandas.
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
    """An import finder that refuses pandas and leaves all other modules to the other finders."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Raise ModuleNotFoundError for pandas."""
        if name == PANDAS:
            raise ModuleNotFoundError(name)
        return None


def leave_out_pandas() -> None:
    """Let Arrow look for pandas now and fail. Arrow does not look again in this process or in its forks until
    `find_pandas_again` is called. Other code can still import pandas. Does nothing if pandas has already been imported.
    """
    if PANDAS in sys.modules:
        return
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.scalar(0)
    except ModuleNotFoundError:  # pyarrow is missing, so nothing here imports pandas
        return
    finally:
        sys.meta_path.remove(finder)
    _left_out.append(True)


def find_pandas_again() -> None:
    """Undo `leave_out_pandas`: import pandas, if it is installed, so that Arrow can convert pandas objects. Does
    nothing if `leave_out_pandas` had no effect.
    """
    if not _left_out:
        return
    import pyarrow as pa

    _left_out.clear()
    with contextlib.suppress(ImportError):
        pa.lib._pandas_api.pd  # pyright: ignore[reportAttributeAccessIssue] # noqa: B018 - imports pandas
