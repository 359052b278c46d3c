"""Keeps compiled functions on a disk or in a bucket, so that a resumed run starts within seconds, also on another
machine of the same kind.

JAX reads and writes the cache. It only warns about a place that it cannot use, and then compiles everything again at
every start. So the place is checked first: a file is written to it and read back.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
from etils import epath

from datakit.errors import UsageError
from datakit.redaction import redacted
from datakit.storage import urls
from datakit.trainer.config import DEFAULT_CACHE

LEAST_SECONDS = 1.0  # functions that compile faster are not kept
_PROBE = b"datakit"


def use_compilation_cache(place: str, say: Callable[[str], None]) -> None:
    """Keep compiled functions in `place`, a directory or a URL such as s3://bucket/folder; "" keeps none. Raises
    UsageError if the place cannot be written and read; the default place is then not used, and `say` gets a warning.
    """
    if not place:
        return
    folder = urls.local_path(place) if urls.is_local(place) else place
    try:
        _check(folder)
    except UsageError as error:
        if place != DEFAULT_CACHE:
            raise
        say(f"warning: {error}")
        return
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)


def _check(folder: str) -> None:
    try:
        path = epath.Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".datakit-probe"
        probe.write_bytes(_PROBE)
        found = probe.read_bytes()
    except Exception as error:
        raise UsageError(
            f"compilation_cache = {redacted(folder)!r} cannot be used ({redacted(str(error))}); give a directory or a "
            'bucket that can be written, or "" to keep no compiled functions'
        ) from error
    if found != _PROBE:
        raise UsageError(f"compilation_cache = {redacted(folder)!r}: a file reads back with other content")
