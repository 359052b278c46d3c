"""Keeps Arrow from importing pandas in processes that are datakit's own.

Arrow imports pandas, if it is installed, when it converts the first Python value, in order to recognize objects of
pandas. This takes 0.25 to 0.5 s of CPU time and 40 MB of memory (measured). Without this module, the driver, every fork
server that converts a value, and each child of every other fork server would do so. Arrow looks for pandas only once,
so it is enough that it finds none then. A user's own code may use pandas: before it is loaded, `admit_pandas` lets
Arrow recognize objects of pandas again. (Conversions to pandas work in any case, since they look for it again.)
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

PANDAS = "pandas"


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
    """Make Arrow look for pandas now, and not find it. Arrow does not look again in this process; other code can still
    import pandas. Not for a user's program, which may pass objects of pandas to Arrow.
    """
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        import pyarrow as pa

        pa.scalar(0)
    except ModuleNotFoundError:  # without pyarrow, nothing needs this
        return
    finally:
        sys.meta_path.remove(finder)


def admit_pandas() -> None:
    """Let Arrow recognize objects of pandas, if pandas is installed."""
    with contextlib.suppress(ImportError):
        import pyarrow as pa

        pa.schema([]).empty_table().to_pandas()
