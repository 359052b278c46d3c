"""Compares the manifests of a step's inputs with the identities and checksums that the step's manifest records, and the
order of the sources with that of the inputs.

A step may be moved without its inputs. So a missing input is a difference only if a whole dataset or root is checked.
"""

from __future__ import annotations

from datakit.storage import urls
from datakit.storage.manifest import manifest_url
from datakit.validate.finding import Result
from datakit.validate.inside.manifest_claims import PARTITIONED
from datakit.validate.subject import Input, Subject

TEXTS = ("normalize", "consolidate")  # stages whose order of sources is kept by later stages
RESTORE = "restore the input's directory from a copy, or run the recipe again (`datakit run`)"


def check(step: Subject, result: Result) -> None:
    """Compare each input with what the manifest says about it, and then the order of the sources."""
    for one in step.inputs:
        if one.manifest is None:
            _missing(step, one, result)
        else:
            result.count("input")
            _compare(one, result)
    if all(one.manifest for one in step.inputs) and step.manifest.stage in PARTITIONED:
        _check_order(step, result)


def _missing(step: Subject, one: Input, result: Result) -> None:
    url = manifest_url(one.directory)
    if one.outside:
        result.skip(f"{url} is compared only with --deep or --training-step")
    elif one.problem:
        result.find(url, f"cannot be used: {one.problem}")
    elif step.whole:
        result.find(url, f"is missing; {urls.name(step.directory)} was made from this step", RESTORE)
    else:
        result.skip(f"{url} is missing")


def _compare(one: Input, result: Result) -> None:
    assert one.manifest is not None
    for what, is_now, was in (
        ("stage", one.manifest.stage, one.reference.stage),
        ("identity", one.manifest.identity, one.reference.identity),
        ("checksum", one.manifest.checksum, one.reference.checksum or one.manifest.checksum),
    ):
        if is_now != was:
            result.find(manifest_url(one.directory), f"has the {what} {is_now}; the step was made from {was}")


def _check_order(step: Subject, result: Result) -> None:
    """Find sources that are not in the order of the inputs; sources without documents may be missing."""
    texts = [one.manifest for one in step.inputs if one.manifest is not None and one.manifest.stage in TEXTS]
    above = dict.fromkeys(part.source for manifest in texts for part in manifest.partitions)
    ours = dict.fromkeys(part.source for part in step.manifest.partitions)
    expected = [source for source in above if source in ours]
    if above and list(ours) != expected:
        difference = (
            f"says that the order of the sources is {', '.join(ours)}, but its inputs give {', '.join(expected)}"
        )
        result.find(step.manifest_url, difference)
