"""Refuses manifests whose files lie outside their step, or whose inputs are not manifests. A cache or a step may have
been made by a stranger, and whatever its manifest names is opened, hashed and compared: a path such as
`../../etc/passwd` would make `datakit validate` read a file that does not belong to the step.

The path of a file must be relative and stay inside the step's directory. The path of an input leads to another step's
`manifest.json`: it may start with one or more `..`, but contains none after them. The manifest of a training run names
caches in another store by their URLs. Such caches are not part of the run's fingerprint, and datakit never opens them
when it reads the manifest. The checks take about a microsecond per file of the step.
"""

from __future__ import annotations

from collections.abc import Iterable

from datakit.errors import CorruptError
from datakit.storage import urls


def check_paths(url: str, files: Iterable[str]) -> None:
    """Raise CorruptError if the manifest at `url` names a file that is not below the step's directory."""
    wrong = next((path for path in files if not urls.is_below(path)), None)
    if wrong is not None:
        raise CorruptError(
            f"{url} names the file {wrong!r}, which is not below the step's directory, so datakit did not write this "
            "manifest; do not use the step"
        )


def check_input(url: str, path: str, covered: bool, file_name: str) -> None:
    """Raise CorruptError if the path of an input does not lead to a manifest. file_name: the file name of every
    manifest. covered: False if the input is not part of the step's fingerprint.
    """
    if not covered and (path.startswith("/") or urls.SPLITTER in path):
        leads_to_a_manifest = urls.name(path) == file_name
    else:
        below = path
        while below.startswith("../"):
            below = below.removeprefix("../")
        leads_to_a_manifest = urls.is_below(below) and urls.name(below) == file_name
    if not leads_to_a_manifest:
        raise CorruptError(
            f"{url} names the input {path!r}, which is not the relative path of a {file_name}, so datakit did "
            "not write "
            "this manifest; do not use the step"
        )
