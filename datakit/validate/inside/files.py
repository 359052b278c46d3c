"""Compares files with the sizes and checksums that a manifest gives for them, and finds files that it does not mention.

Every byte is read, at the speed of the disk or the network; xxh3 takes 0.1 s of CPU time per GB. A difference does not
stop the comparison, so a single pass lists every damaged file. Other checks do not read a damaged file.

A finished step's directory holds the manifest, the files that it describes, and the ledger. Temporary files may belong
to a process that is still alive, so they are not reported.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

from datakit.errors import NotFoundError, StorageError, UnreadableError
from datakit.storage import atomic, urls
from datakit.storage.manifest import DATA_FOLDER, FILE_NAME, UNSEALED
from datakit.validate.finding import Finding, Result
from datakit.validate.inside.described import DescribedFile, described_files
from datakit.validate.subject import READERS, TRAIN, Subject

CHECK = "files"
LEDGER = "ledger"
RUN_FILES = (  # of a training run
    *(
        "caches.json",
        "run.json",
        "origin.json",
        "prediction.json",
        "prediction.set-aside.json",
        "metrics.jsonl",
        "metrics.set-aside.jsonl",
    ),
    *("histograms.jsonl", "histograms.set-aside.jsonl", "checkpoints", "profile", "tensorboard", "running.lock"),
)
LEFTOVERS = ("exchange/", "partial.json")
GC = "it is left over from the run that made the step: `datakit gc ROOT --delete` removes it"
MOVE = "if you put it there, move it out of the step's directory; otherwise restore the manifest that describes it"


def compare(step: Subject, result: Result) -> None:
    """Compare every file that the manifest describes with its size and checksum."""
    files = list(described_files(step))
    if not files and step.manifest.partitions:
        result.skip("the step holds no files: its source is read in place")
    total, found = compare_files(files)
    result.count("file", len(files))
    result.count("byte", total)
    result.findings += found
    step.broken.update(one.url for one in found)


def unlisted(step: Subject, result: Result) -> None:
    """Find files that the manifest does not describe."""
    known, found = {file.url for file in described_files(step)}, 0
    ours = (FILE_NAME, LEDGER, *(RUN_FILES if step.manifest.stage == TRAIN else ()))
    for info in _listed(step, result):
        top = info.path.partition("/")[0]
        if top in ours or urls.name(info.path).startswith(atomic.TEMPORARY_PREFIX):
            continue
        found += 1
        if info.url not in known and (top == DATA_FOLDER or step.manifest.format != UNSEALED):
            leftover = info.path.startswith(LEFTOVERS)
            result.find(info.url, "is not in the manifest", GC if leftover else MOVE)
    result.count("file", found)


def _listed(step: Subject, result: Result) -> list[urls.FileInfo]:
    try:
        return urls.listing(step.directory)
    except StorageError as error:  # for example, because a link leads to itself
        if not urls.is_local(step.directory):
            raise
        result.find(step.directory, f"cannot be listed: {error}", MOVE)
        return []


def compare_files(files: Iterable[DescribedFile]) -> tuple[int, list[Finding]]:
    """Compare files with their descriptions; return (number of bytes read, findings)."""
    total, found = 0, []
    with ThreadPoolExecutor(READERS, thread_name_prefix="datakit-validate") as pool:
        for size, finding in pool.map(_compare, list(files)):
            total += size
            found += [finding] if finding is not None else []
    return total, found


def _compare(file: DescribedFile) -> tuple[int, Finding | None]:
    """Compare one file with its description; return (number of bytes read, finding or None)."""
    try:
        if file.sha256 is not None:
            return _compare_sha256(file, file.sha256)
        found, size = atomic.hash_url(file.url)
    except NotFoundError:
        missing = "is missing" + (f"; it had {file.bytes} bytes" if file.bytes is not None else "")
        return 0, Finding(file.url, CHECK, missing, file.remedy)
    except (StorageError, UnreadableError) as error:
        if not urls.is_local(file.url):  # the store fails, which says nothing about the file
            raise
        return 0, Finding(file.url, CHECK, f"cannot be read: {error}", file.remedy)
    if size != file.bytes:
        return size, Finding(file.url, CHECK, f"has {size} bytes; the manifest says {file.bytes}", file.remedy)
    if found != file.xxh3:
        difference = f"has the same size, but xxh3 {found}; the manifest says {file.xxh3}"
        return size, Finding(file.url, CHECK, difference, file.remedy)
    return size, None


def _compare_sha256(file: DescribedFile, sha256: str) -> tuple[int, Finding | None]:
    data = urls.read_bytes(file.url)
    found = hashlib.sha256(data).hexdigest()
    difference = f"has sha256 {found}; the manifest says {sha256}"
    return len(data), None if found == sha256 else Finding(file.url, CHECK, difference, file.remedy)
