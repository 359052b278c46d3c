"""Decides which licenses a published dataset states, and refuses a dataset whose licenses cannot be stated.

A source's license is the value of `license` in its recipe: an SPDX identifier, several of them joined by AND, OR or
WITH, or the URL of a license. The Hub has identifiers of its own, which are mostly those of SPDX in lowercase. A
license without such an identifier is published as `other`, with a name and a link, as the Hub requires.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from datakit.errors import LicenseError

# The identifiers that the Hub accepts: https://huggingface.co/docs/hub/repositories-licenses
HUB_LICENSES = frozenset((
    "afl-3.0", "agpl-3.0", "apache-2.0", "apple-amlr", "apple-ascl", "artistic-2.0", "bigcode-openrail-m",
    "bigscience-bloom-rail-1.0", "bigscience-openrail-m", "bsd", "bsd-2-clause", "bsd-3-clause", "bsd-3-clause-clear",
    "bsl-1.0", "c-uda", "cc", "cc-by-2.0", "cc-by-2.5", "cc-by-3.0", "cc-by-4.0", "cc-by-nc-2.0", "cc-by-nc-3.0",
    "cc-by-nc-4.0", "cc-by-nc-nd-3.0", "cc-by-nc-nd-4.0", "cc-by-nc-sa-2.0", "cc-by-nc-sa-3.0", "cc-by-nc-sa-4.0",
    "cc-by-nd-4.0", "cc-by-sa-3.0", "cc-by-sa-4.0", "cc0-1.0", "cdla-permissive-1.0", "cdla-permissive-2.0",
    "cdla-sharing-1.0", "creativeml-openrail-m", "ecl-2.0", "epl-1.0", "epl-2.0", "etalab-2.0", "eupl-1.1",
    "eupl-1.2", "gfdl", "gpl", "gpl-2.0", "gpl-3.0", "isc", "lgpl", "lgpl-2.1", "lgpl-3.0", "lgpl-lr", "lppl-1.3c",
    "mit", "mpl-2.0", "ms-pl", "ncsa", "odbl", "odc-by", "ofl-1.1", "openrail", "openrail++", "osl-3.0", "pddl",
    "postgresql", "unlicense", "wtfpl", "zlib",
))  # fmt: skip
HUB_NAMES = {"odc-by-1.0": "odc-by", "odbl-1.0": "odbl", "pddl-1.0": "pddl", "gfdl-1.2": "gfdl", "gfdl-1.3": "gfdl"}
# Identifiers of SPDX that texts have and the Hub lacks. Any other license can be given by its URL.
OTHERS = (
    "PSF-2.0", "Python-2.0", "OGL-UK-2.0", "OGL-UK-3.0", "CC-PDDC", "CC-BY-SA-2.0", "CC-BY-SA-2.5", "CC-BY-ND-3.0",
)  # fmt: skip
SPDX_PAGE = "https://spdx.org/licenses/{}.html"
SUFFIXES = ("-only", "-or-later")
URL = re.compile(r"https?://[^\s\"'<>]+")
EXPRESSION = re.compile(r"\s+(?:AND|OR|WITH)\s+|[()]")
REMEDY = (
    'set `license = "..."` in its [[sources]] table of the recipe, to an SPDX identifier such as CC-BY-4.0 or to the '
    "license's URL, and run the recipe again (finished steps are kept)"
)


def require_licenses(sources: Sequence[str], licenses: Mapping[str, str | None]) -> dict[str, str]:
    """Return the license of each source. Raises LicenseError, which names each source without a license, or with one
    that cannot be stated.
    """
    faults = {name: fault for name in sources if (fault := _fault(licenses.get(name)))}
    if faults:
        listed = "; ".join(f"the license of source {name!r} is {fault}" for name, fault in faults.items())
        raise LicenseError(f"nothing is published: {listed}. For each of them, {REMEDY}")
    return {name: str(licenses[name]) for name in sources}


def _fault(license_: str | None) -> str:
    """Return what is wrong with a license, or "" if it can be stated."""
    if not license_ or not license_.strip():
        return "not known"
    if URL.fullmatch(license_):
        return ""
    parts = _parts(license_)
    known = [part for part in parts if _hub_name(part) is not None or part in OTHERS]
    return (
        "" if parts and parts == known else f"{license_!r}, which is neither an identifier that can be stated nor a URL"
    )


def _parts(license_: str) -> list[str]:
    return [part for part in EXPRESSION.split(license_.strip()) if part.strip()]


def _hub_name(identifier: str) -> str | None:
    """Return the Hub's identifier of a license; None if it has none."""
    name = identifier.strip().lower()
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    name = HUB_NAMES.get(name, name)
    return name if name in HUB_LICENSES else None


def front_matter(licenses: Mapping[str, str]) -> list[str]:
    """Return the lines of a dataset card that state these licenses, which are given by source.

    >>> front_matter({"web": "ODC-By-1.0"})
    ['license: odc-by']
    >>> front_matter({"a": "MIT", "b": "CC-BY-4.0", "c": "MIT"})
    ['license:', '- mit', '- cc-by-4.0']
    >>> front_matter({"a": "MIT", "b": "https://host/terms"})
    ['license: other', 'license_name: mixed', 'license_link: README.md']
    """
    parts = list(dict.fromkeys(part for license_ in licenses.values() for part in _split(license_)))
    names = list(dict.fromkeys(_hub_name(part) for part in parts))
    if None not in names:
        return [f"license: {names[0]}"] if len(names) == 1 else ["license:", *(f"- {name}" for name in names)]
    if len(parts) > 1:
        return ["license: other", "license_name: mixed", "license_link: README.md"]
    (only,) = parts
    name = "custom" if URL.fullmatch(only) else only.lower()
    return ["license: other", f"license_name: {name}", f"license_link: {link(only)}"]


def _split(license_: str) -> Iterator[str]:
    yield from [license_] if URL.fullmatch(license_) else _parts(license_)


def link(license_: str) -> str:
    """Return the URL of a license: itself, or the page of SPDX about a single identifier; "" for an expression."""
    if URL.fullmatch(license_):
        return license_
    parts = _parts(license_)
    return SPDX_PAGE.format(parts[0]) if len(parts) == 1 and parts[0] in OTHERS else ""
