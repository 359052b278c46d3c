"""Matches the files of a source in Dolma's form: each file below `documents/` has a file of the same path below each
folder of `attributes/`.

    v1/documents/c4/0000.json.gz
    v1/attributes/toxicity/c4/0000.json.gz
    v1/attributes/pii/c4/0000.json.gz

A source may hold several such trees. A missing or an additional file is an error, found before anything is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from datakit.errors import UnreadableError, counted
from datakit.printable import one_line

DOCUMENTS, ATTRIBUTES = "documents", "attributes"
SHOWN = 5


def documents_only(files: Sequence[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the files that hold documents, given all files of a source as (path, size in bytes) pairs."""
    found = attribute_files(path for path, _ in files)
    return [file for file in files if file[0] in found]


def attribute_files(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the attribute files of each file of documents, in order of their paths. Raises UnreadableError if a file
    is neither, or if one is missing.
    """
    documents: dict[tuple[str, str], str] = {}  # (tree, path below documents/) -> path
    attributes: dict[tuple[str, str], dict[str, str]] = {}  # (tree, name of the attributes) -> path below it -> path
    for path in sorted(paths):
        tree, kind, rest = _split(path)
        if kind == DOCUMENTS:
            documents[tree, rest] = path
        else:
            name, _, below = rest.partition("/")
            attributes.setdefault((tree, name), {})[below] = path
    _check_matched(documents, attributes)
    return {
        path: tuple(files[rest] for (owner, _), files in attributes.items() if owner == tree)
        for (tree, rest), path in documents.items()
    }


def joined_attributes(paths: Iterable[str]) -> set[str]:
    """Return the paths of the attribute files that belong to a file of documents among `paths`.

    >>> sorted(joined_attributes(["v1/documents/a.json", "v1/attributes/q/a.json", "attributes/q/a.json", "b.json"]))
    ['v1/attributes/q/a.json']
    """
    found = [(path, *parts) for path in paths if (parts := _parts(path)) is not None]
    documents = {(tree, rest) for _, tree, kind, rest in found if kind == DOCUMENTS}
    attributes = [(path, tree, rest.partition("/")[2]) for path, tree, kind, rest in found if kind == ATTRIBUTES]
    return {path for path, tree, rest in attributes if (tree, rest) in documents}


def _split(path: str) -> tuple[str, str, str]:
    """Return the folder of the tree, `documents` or `attributes`, and the path below it. Raises UnreadableError."""
    found = _parts(path)
    if found is None:
        raise UnreadableError(
            f"{one_line(path)} is neither below documents/ nor below a folder of attributes/, as the format `dolma` "
            "requires; exclude it, or correct the source's `url`"
        )
    return found


def _parts(path: str) -> tuple[str, str, str] | None:
    """Return what `_split` returns, or None if a path is neither one of documents nor one of attributes."""
    parts = path.split("/")
    place = next((number for number, part in enumerate(parts[:-1]) if part in (DOCUMENTS, ATTRIBUTES)), None)
    if place is None or (parts[place] == ATTRIBUTES and place + 2 >= len(parts)):
        return None
    return "/".join(parts[:place]), parts[place], "/".join(parts[place + 1 :])


def _check_matched(documents: dict[tuple[str, str], str], attributes: dict[tuple[str, str], dict[str, str]]) -> None:
    problems = []
    for (tree, name), files in attributes.items():
        rests = {rest for owner, rest in documents if owner == tree}
        problems += [
            f"{one_line(documents[tree, rest])} has no attributes of {one_line(name)}"
            for rest in sorted(rests - files.keys())
        ]
        problems += [f"{one_line(files[rest])} belongs to no documents" for rest in sorted(files.keys() - rests)]
    if problems:
        more = "" if len(problems) <= SHOWN else f" (and {counted(len(problems) - SHOWN, 'other file')})"
        raise UnreadableError(
            "; ".join(problems[:SHOWN]) + more + "; each file below documents/ needs a file of the same path below "
            "each folder of attributes/: complete the source, or exclude the folder of attributes"
        )
