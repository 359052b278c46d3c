"""Finds the license of a source: in the front matter of its dataset card (README.md), and in files such as LICENSE.

A file's license is recognized by a sentence that only this license has. What is found is evidence, not a proof: the
draft states where it was found, and leaves the key out if the places disagree. Only known license identifiers, and
names that have the form of one, are written to a recipe. The text of a license file is never copied into it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from datakit.errors import DatakitError
from datakit.printable import one_line
from datakit.regular_files import open_regular
from datakit.storage import urls
from datakit.storage.globs import Place
from datakit.storage.urls import FileInfo

CARD = re.compile(r"readme\.md", re.IGNORECASE)
FILE = re.compile(r"(licen[sc]e|copying)([._-]\w+)*", re.IGNORECASE)
READ_BYTES = 256 << 10  # of each file
MOST_FILES = 8
FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*(?:\n|\Z)", re.DOTALL)
NAMED = re.compile(r"^license:[ \t]*(?:\n((?:[ \t]*-[ \t]*\S+[ \t]*\n?)+)|([^\n]*))", re.MULTILINE)
LINKED = re.compile(r"^license_link:[ \t]*(https://[\w./%~-]+)[ \t]*$", re.MULTILINE)
IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{1,60}")
TAGGED = re.compile(r"SPDX-License-Identifier:[ \t]*([A-Za-z0-9.+-]+)")
UNKNOWN = ("other", "unknown")  # values of a card that name no license
SPDX = {  # a dataset hub's identifier -> the SPDX identifier
    "apache-2.0": "Apache-2.0", "bsd-2-clause": "BSD-2-Clause", "bsd-3-clause": "BSD-3-Clause", "mit": "MIT",
    "cc0-1.0": "CC0-1.0", "cc-by-2.0": "CC-BY-2.0", "cc-by-2.5": "CC-BY-2.5", "cc-by-3.0": "CC-BY-3.0",
    "cc-by-4.0": "CC-BY-4.0", "cc-by-sa-3.0": "CC-BY-SA-3.0", "cc-by-sa-4.0": "CC-BY-SA-4.0",
    "cc-by-nc-4.0": "CC-BY-NC-4.0", "cc-by-nc-sa-4.0": "CC-BY-NC-SA-4.0", "cc-by-nd-4.0": "CC-BY-ND-4.0",
    "gfdl": "GFDL-1.3-or-later", "gpl-2.0": "GPL-2.0-only", "gpl-3.0": "GPL-3.0-only", "mpl-2.0": "MPL-2.0",
    "odbl": "ODbL-1.0", "odc-by": "ODC-By-1.0", "pddl": "PDDL-1.0", "unlicense": "Unlicense",
}  # fmt: skip
SENTENCES = (  # a sentence or a heading, and the license that it belongs to; the first that occurs counts
    ("attribution-noncommercial-sharealike 4.0 international", "CC-BY-NC-SA-4.0"),
    ("attribution-noncommercial-noderivatives 4.0 international", "CC-BY-NC-ND-4.0"),
    ("attribution-noncommercial 4.0 international", "CC-BY-NC-4.0"),
    ("attribution-noderivatives 4.0 international", "CC-BY-ND-4.0"),
    ("attribution-sharealike 4.0 international", "CC-BY-SA-4.0"),
    ("attribution-sharealike 3.0 unported", "CC-BY-SA-3.0"),
    ("attribution 4.0 international", "CC-BY-4.0"),
    ("attribution 3.0 unported", "CC-BY-3.0"),
    ("cc0 1.0 universal", "CC0-1.0"),
    ("odc attribution license (odc-by)", "ODC-By-1.0"),
    ("odc open database license (odbl)", "ODbL-1.0"),
    ("odc public domain dedication and license", "PDDL-1.0"),
    ("apache license version 2.0", "Apache-2.0"),
    ("mozilla public license version 2.0", "MPL-2.0"),
    ("permission is hereby granted, free of charge, to any person obtaining a copy", "MIT"),
    ("neither the name of the copyright holder nor the names of its contributors", "BSD-3-Clause"),
    ("this is free and unencumbered software released into the public domain", "Unlicense"),
)


@dataclass(frozen=True)
class LicenseEvidence:
    """A file that states a license. license: an SPDX identifier or a URL; None if it is not recognized."""

    file: str
    license: str | None


def find_licenses(place: Place, files: Sequence[FileInfo]) -> tuple[LicenseEvidence, ...]:
    """Return what the files beside the data state about the license, the dataset card first. files: the listing of the
    place.
    """
    found = [_evidence(name, text) for name, text in _texts(_candidates(place, files))]
    return tuple(one for one in found if one is not None)


def agreed(evidence: tuple[LicenseEvidence, ...]) -> str | None:
    """Return the license on which all files agree that state one; None if there is none."""
    stated = {one.license for one in evidence if one.license is not None}
    return stated.pop() if len(stated) == 1 else None


def _evidence(name: str, text: str) -> LicenseEvidence | None:
    """Return the evidence in a file; None if a card states no license."""
    if not CARD.fullmatch(name):
        return LicenseEvidence(one_line(name), _recognized(text))
    matter = FRONT_MATTER.match(text.replace("\r\n", "\n"))
    named = NAMED.search(matter[1] + "\n") if matter else None
    if matter is None or named is None:
        return None
    values = [value.strip("-'\" \t") for value in (named[1] or named[2]).splitlines() if value.strip("-'\" \t")]
    linked = LINKED.search(matter[1])
    if len(values) != 1 or values[0].lower() in UNKNOWN or not IDENTIFIER.fullmatch(values[0]):
        return LicenseEvidence(one_line(name), linked[1] if linked else None)
    return LicenseEvidence(one_line(name), SPDX.get(values[0].lower(), values[0]))


def _recognized(text: str) -> str | None:
    if tagged := TAGGED.search(text):
        return tagged[1]
    plain = " ".join(text.lower().split()).replace("apache license, version", "apache license version")
    return next((identifier for sentence, identifier in SENTENCES if sentence in plain), None)


def _texts(candidates: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the files that may state the license. One that cannot be read is left out: a
    license is only evidence.
    """
    for name, url in candidates[:MOST_FILES]:
        try:
            if urls.is_local(url):
                with open_regular(url) as file:
                    data = file.read(READ_BYTES)
            else:
                data = urls.read_range(url, 0, READ_BYTES)
        except (DatakitError, OSError):
            continue
        yield name, data.decode("utf-8", "replace")


def _candidates(place: Place, files: Sequence[FileInfo]) -> list[tuple[str, str]]:
    """Return the names and URLs of cards and license files, cards first. Links are left out: they may lead anywhere."""
    base = place.base
    if urls.is_local(base):
        folder = urls.local_path(base)
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        named = [(name, os.path.join(folder, name)) for name in names]
        named = [(name, path) for name, path in named if not os.path.islink(path)]
    elif urls.protocol(base) == "hf":
        named = [(name, urls.child(_repository(base), name)) for name in ("README.md", "LICENSE", "LICENSE.md")]
    else:
        named = [(info.path, info.url) for info in files if "/" not in info.path and not info.special]
    chosen = [(name, url) for name, url in named if CARD.fullmatch(name) or FILE.fullmatch(name)]
    return sorted(chosen, key=lambda one: (not CARD.fullmatch(one[0]), one[0]))


def _repository(url: str) -> str:
    """Return the root of a Hub repository, in which its card lies.

    >>> _repository("hf://datasets/org/name@main/data/en")
    'hf://datasets/org/name@main'
    """
    scheme, _, rest = url.partition("://")
    parts = rest.split("/")
    return f"{scheme}://" + "/".join(parts[: 3 if parts[0] in ("datasets", "spaces") else 2])
