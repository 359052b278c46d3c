"""Compares every file of a checkpoint with the checksums in the checkpoint's marker, and the markers with the run.

Only checkpoints in the run's own directory are compared. A checkpoint without a marker was never finished, and a
resumed run ignores it. The check names such a checkpoint, but does not report a difference.

Cost: reads every byte once.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from etils import epath

from datakit.storage import urls
from datakit.storage.manifest import manifest_url
from datakit.trainer.checkpoints.candidates import MARKER, SET_ASIDE, Candidate, candidate_at, step_folders
from datakit.validate.finding import Result
from datakit.validate.inside.described import DescribedFile
from datakit.validate.inside.files import compare_files
from datakit.validate.subject import Subject

FOLDER = "checkpoints"
REMEDY = "remove this checkpoint's directory; `datakit train` resumes from an earlier one"


def check(step: Subject, result: Result) -> None:
    """Compare the files of all checkpoints, and then the markers with one another and with the run."""
    found = []
    for _, path in step_folders(step.url(FOLDER)):
        if not (path / MARKER).exists():
            if not (path / SET_ASIDE).exists():
                result.skip(f"{path} was never finished")
            continue
        said: list[str] = []
        candidate = candidate_at(path, said.append)
        if candidate is None:
            result.find(str(path / MARKER), f"cannot be used: {said[0] if said else 'it is not valid'}", REMEDY)
        else:
            found.append(candidate)
            _compare(candidate, result)
    for difference, path in _contradictions(step, found):
        result.find(str(path / MARKER), difference, REMEDY)
    if step.finished and not found and not result.findings:
        result.find(step.url(FOLDER), "holds no checkpoint, although the run is finished", REMEDY)


def _compare(candidate: Candidate, result: Result) -> None:
    place = str(candidate.path)
    files = [
        DescribedFile(urls.join(place, name), size, xxh3, remedy=REMEDY)
        for name, (size, xxh3) in candidate.marker.files.items()
    ]
    total, damaged = compare_files(files)
    for one in damaged:
        result.find(one.url, one.difference.replace("the manifest says", "the marker says"), REMEDY)
    known = {file.url for file in files} | {urls.join(place, MARKER)}
    for info in urls.listing(place):
        if info.url not in known:
            result.find(info.url, f"is not in {MARKER}", REMEDY)
    result.count("checkpoint")
    result.count("byte", total)


def _contradictions(step: Subject, found: list[Candidate]) -> Iterator[tuple[str, epath.Path]]:
    """Yield how markers contradict one another or the run's manifest."""
    for one in found:
        run, here = one.marker.run, step.manifest.fingerprint
        if here and run != here:
            yield f"belongs to the run {run}; {urls.name(manifest_url(step.directory))} says {here}", one.path
    for before, after in pairwise(sorted(found, key=lambda one: one.marker.step)):
        for name, count in before.marker.counts.items():
            if after.marker.counts.get(name, 0) <= count:
                yield (
                    f"counts {after.marker.counts.get(name)} {name}; the checkpoint before it counts {count}",
                    after.path,
                )
    if step.finished and found:
        last = max(found, key=lambda one: one.marker.step)
        for name, count in last.marker.counts.items():
            stated = step.manifest.counters.get(f"train/{name}")
            if stated != count:
                yield f"counts {count} {name}; the manifest says {stated}", last.path
        if last.marker.step != step.manifest.parameters["steps"]:
            yield f"is the last one; the manifest says {step.manifest.parameters['steps']} steps", last.path
