"""Checks a single step, and raises an error if anything about it is wrong."""

from __future__ import annotations

from datakit.cache.reader import Cache
from datakit.errors import CorruptError
from datakit.storage.manifest import Manifest
from datakit.validate.checks import checks_of
from datakit.validate.finding import Finding, Result
from datakit.validate.subject import Subject, open_subject

CONTRADICTION = "contradicts itself: "


def results_of(step: Subject, problem: str) -> list[Result]:
    """Make all checks of a step. problem: the contradiction in the manifest of a cache, or ""."""
    results = [check.run(step) for check in checks_of(step.manifest.stage)]
    if problem:
        results[0].find(step.manifest_url, f"{CONTRADICTION}{problem}")
    return results


def findings_of(directory: str, manifest: Manifest) -> list[Finding]:
    """Make all checks of a step, and return what they found."""
    return [one for result in results_of(*open_subject(directory, manifest)) for one in result.findings]


def require_intact(cache: Cache) -> int:
    """Make all checks of an open cache, and return the number of bytes compared. Raises CorruptError if a check finds a
    difference; the message names the first file that differs.
    """
    results = results_of(*open_subject(cache.directory, cache.manifest))
    found = [one for result in results for one in result.findings]
    if found:
        more = f" (and {len(found) - 1} more: `datakit validate` lists them)" if len(found) > 1 else ""
        raise CorruptError(f"{found[0]}{more}")
    return sum(result.amounts["byte"] for result in results)
