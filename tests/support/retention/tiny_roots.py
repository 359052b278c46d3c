"""Writes tiny finished steps, with real manifests, and the records that refer to them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec
import xxhash

from datakit.leases.training_record import write_record
from datakit.storage import atomic, urls
from datakit.storage.latest import Current, record_latest
from datakit.storage.manifest import (
    InputReference,
    Manifest,
    Partition,
    Quarantine,
    find_manifest,
    read_manifest,
    totals_of,
    write_manifest,
)

DATA = "data/all/part"


def step_path(home: str, stage: str, key: str) -> str:
    """Return the path of the step of a stage; different keys stand for different parameters."""
    return f"{home}/{stage}-{number(home, stage, key)[:12]}"


def number(*parts: str) -> str:
    """Return a fingerprint of some words."""
    return xxhash.xxh3_128_hexdigest(" ".join(parts).encode())


def begin_step(root: str, path: str) -> None:
    """Write what an unfinished step has: a ledger and its output."""
    atomic.commit_bytes(b'{"kind": "driver", "driver": "x", "time": 0.0, "versions": {}}\n', f"{root}/{path}/ledger/x")
    atomic.commit_bytes(path.encode(), f"{root}/{path}/{DATA}")


def write_step(root: str, path: str, inputs: Iterable[str] = (), **more: object) -> str:
    """Write a finished step whose inputs are the steps at these paths; return its path."""
    begin_step(root, path)
    manifest = described(root, path, inputs)
    write_manifest(msgspec.structs.replace(manifest, **more), f"{root}/{path}")
    return path


def described(root: str, path: str, inputs: Iterable[str] = ()) -> Manifest:
    """Return the manifest of such a step."""
    directory, fingerprint = f"{root}/{path}", number(path)
    data = path.encode()
    part = Partition(DATA, "all", 1, len(data), xxhash.xxh3_128_hexdigest(data))
    references = []
    for above in inputs:
        found = read_manifest(f"{root}/{above}")
        place = urls.relative(f"{root}/{above}/manifest.json", directory)
        references.append(InputReference(found.stage, place, found.identity, found.checksum))
    stage = path.rpartition("/")[2].rpartition("-")[0]
    return Manifest(
        stage=stage, dataset=path.split("/")[-2], fingerprint=fingerprint, identity=fingerprint, parameters={},
        inputs=references, schema=[], partitions=[part], totals=totals_of([part]), counters={},
        quarantine=Quarantine(0), version=1,
    )  # fmt: skip


def is_whole(root: str, path: str) -> bool:
    """Return True if a step is finished and has its output."""
    manifest = find_manifest(f"{root}/{path}")
    return manifest is not None and urls.read_bytes(f"{root}/{path}/{DATA}").decode() in (path, path.partition("+")[0])


def set_latest(root: str, path: str) -> None:
    """Record a token cache as the current step and cache of its dataset."""
    current = Current(urls.name(path), number(path))
    assert record_latest(urls.parent(f"{root}/{path}"), current, current) == ""


def write_training_run(root: str, name: str, caches: Iterable[str]) -> None:
    """Write what an unfinished training run has: the record of the caches that it reads."""
    record = {f"../../{path}": (f"../../{path}", number(path)) for path in caches}
    write_record(training_run(root, name), record)


def training_run(root: str, name: str) -> str:
    """Return the directory of a training run."""
    return f"{root}/{name}/train-{number(name)[:12]}"


def write_dataset(root: str, dataset: str, key: str = "0", sources: Iterable[str] = ("web",)) -> str:
    """Write all steps of a dataset, as a run would, and record its cache; return the cache's path."""
    of_sources = []
    for source in sources:
        download = step_path(f"sources/{source}", "download", "0")
        normalize = step_path(f"sources/{source}", "normalize", key)
        for path, inputs in ((download, []), (normalize, [download])):
            if find_manifest(f"{root}/{path}") is None:
                write_step(root, path, inputs)
        of_sources.append(normalize)
    dedup = write_step(root, step_path(dataset, "dedup", key), of_sources)
    cache = write_step(root, step_path(dataset, "tokenize", key), [*of_sources, dedup])
    set_latest(root, cache)
    return cache


def steps_of(root: str) -> set[str]:
    """Return the paths of all finished steps of a local root, without those in the trash."""
    found = {str(path.parent.relative_to(root)) for path in Path(root).rglob("manifest.json")}
    return {path for path in found if not path.startswith(".")}


def trashed(root: str) -> set[str]:
    """Return the paths that the steps in the trash of a local root had."""
    places = {path.parent.relative_to(f"{root}/.trash") for path in Path(root, ".trash").rglob("manifest.json")}
    return {str(Path(*place.parts[1:])) for place in places}


def age(root: str, folder: str, seconds: float, start: str = "") -> None:
    """Set back the times of the files in one of datakit's own folders. start: the start of the files' names."""
    for path in Path(root, folder).glob(f"{start}*"):
        moment = path.stat().st_mtime - seconds
        os.utime(path, (moment, moment))
