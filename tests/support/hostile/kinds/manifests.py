"""Finished steps with crafted manifests, and crafted `latest.json` files: paths that lead out, contradictions, huge
numbers, cycles, and JSON that no version wrote. Checksums are right wherever the case is about something else.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from datakit.storage import manifest as manifests
from datakit.storage.manifest import InputReference, Manifest, Partition, Quarantine, StepFile, Totals
from tests.support.hostile.case import Case, Expectation, Place, refused

UP = "../../../outside/secret.jsonl"
UNSAFE = "\x1b]0;owned\x07\u202e"
Change = Callable[[Manifest, Place], Manifest]
SHELF = "data/shelf"


def copy_finished(place: Place) -> None:
    """Copy the finished root to `work/data`."""
    shutil.copytree(place.finished() / "root", place.work / "data")


def step(place: Place, stage: str) -> Path:
    """Return the directory of a stage's step (of the source `novels`, if it is one of several)."""
    data = place.work / "data"
    return next(path for pattern in (f"shelf/{stage}-*", f"sources/novels/{stage}-*") for path in data.glob(pattern))


def write(directory: Path, manifest: Manifest) -> None:
    """Write a manifest with a right checksum."""
    (directory / "manifest.json").write_bytes(b"".join(manifests.pieces(manifests.sealed(manifest))))


def changed(stage: str, change: Change) -> Callable[[Place], None]:
    """Return a function that copies the finished root and changes a step's manifest. The identity stays."""

    def build(place: Place) -> None:
        copy_finished(place)
        directory = step(place, stage)
        write(directory, change(manifests.read_manifest(str(directory)), place))

    return build


def replaced(**changes: Any) -> Change:
    """Return a change of fields."""
    return lambda manifest, place: msgspec.structs.replace(manifest, **changes)


def first_partition(**changes: Any) -> Change:
    """Return a change of the first partition's fields."""

    def change(manifest: Manifest, place: Place) -> Manifest:
        first, *rest = manifest.partitions
        return msgspec.structs.replace(manifest, partitions=[msgspec.structs.replace(first, **changes), *rest])

    return change


def absolute(manifest: Manifest, place: Place) -> Manifest:
    """Name the file outside by its absolute path."""
    return first_partition(path=str(place.secret))(manifest, place)


def raw(stage: str, change: Callable[[bytes], bytes]) -> Callable[[Place], None]:
    """Return a function that copies the finished root and changes the bytes of a manifest."""

    def build(place: Place) -> None:
        copy_finished(place)
        file = step(place, stage) / "manifest.json"
        file.write_bytes(change(file.read_bytes()))

    return build


def latest(content: bytes | Callable[[dict[str, Any]], Any]) -> Callable[[Place], None]:
    """Return a function that copies the finished root and replaces `latest.json`."""

    def build(place: Place) -> None:
        copy_finished(place)
        file = place.work / SHELF / "latest.json"
        found = content if isinstance(content, bytes) else json.dumps(content(json.loads(file.read_bytes()))).encode()
        file.write_bytes(found)

    return build


def itself(manifest: Manifest, place: Place) -> Manifest:
    """Name the step as its own input."""
    directory = step(place, manifest.stage)
    own = InputReference(manifest.stage, f"../{directory.name}/manifest.json", manifest.identity)
    return msgspec.structs.replace(manifest, inputs=[own])


def each_other(place: Place) -> None:
    """Let two steps name each other as inputs."""
    copy_finished(place)
    one, other = step(place, "consolidate"), step(place, "tokenize")
    for directory, upstream in ((one, other), (other, one)):
        manifest, above = (manifests.read_manifest(str(folder)) for folder in (directory, upstream))
        reference = InputReference(above.stage, f"../{upstream.name}/manifest.json", above.identity)
        write(directory, msgspec.structs.replace(manifest, inputs=[reference]))


def many_inputs(place: Place) -> None:
    """Make a chain of 40 steps that each name the next step twice: 2^40 ways to the last."""
    copy_finished(place)
    base = manifests.read_manifest(str(step(place, "consolidate")))
    for number in range(40):
        directory = place.work / SHELF / f"dedup-{number:012d}"
        directory.mkdir()
        inputs = [InputReference("dedup", f"../dedup-{number + 1:012d}/manifest.json", base.identity)] * 2
        write(directory, msgspec.structs.replace(base, stage="dedup", partitions=[], files=[], inputs=inputs))


ID = "0" * 32
READERS: dict[str, tuple[str, ...]] = {
    "validate": ("validate", "{step}"),
    "inspect": ("inspect", "{step}"),
    "why": ("why", "{step}", "--id", ID),
    "diff": ("diff", "{step}", "{step}"),
    "ls": ("ls", "data"),
    "status": ("status", "data"),
    "gc": ("gc", "data", "--delete", "--unreachable", "--older-than", "0"),
}
CACHE_READERS: dict[str, tuple[str, ...]] = {
    "show": ("cache", "show", SHELF),
    "stats": ("cache", "stats", SHELF),
    "export": ("cache", "export", SHELF, "{root}/exported"),
}
OUTSIDE = refused("is not below the step's directory", code=(1, 2, 4))
CLAIMS: dict[str, Change] = {
    "path-up": first_partition(path=UP),
    "path-absolute": absolute,
    "copy-up": first_partition(path="a//b", copy=UP),
    "file-up": replaced(files=[StepFile(UP, 1, "0" * 32)]),
    "quarantine-up": replaced(quarantine=Quarantine(1, "../../../outside/")),
    "path-with-nul": first_partition(path="data/\0"),
}


def words(command: tuple[str, ...]) -> tuple[str, ...]:
    """Name the dataset where a command takes a step."""
    return tuple(word.replace("{step}", SHELF) for word in command)


def reads(name: str, stage: str, change: Change, command: str, ends: Expectation, **more: Any) -> Case:
    """Return a case of a changed manifest and a command that reads it."""
    used = words((READERS | CACHE_READERS)[command])
    more |= {"alters": command == "gc", "shows_text": command == "show"}
    return Case(f"manifest-{name}-{command}", changed(stage, change), ends, words=used, **more)


TOLERATES = ("ls", "status")  # commands that go on without the step
CASES = (
    *(
        reads(
            "path-up",
            "tokenize",
            CLAIMS["path-up"],
            command,
            refused(code=(0, 1)) if command in TOLERATES else OUTSIDE,
        )
        for command in READERS
    ),
    *(reads("path-up", "tokenize", CLAIMS["path-up"], command, OUTSIDE) for command in CACHE_READERS),
    *(reads(name, "tokenize", change, "validate", OUTSIDE) for name, change in CLAIMS.items() if name != "path-up"),
    reads(
        "input-up",
        "tokenize",
        replaced(inputs=[InputReference("consolidate", "../../../outside/manifest.json/../x", "f" * 32)]),
        "validate",
        refused("names the input", code=(1, 2, 4)),
    ),
    reads(
        "input-url",
        "tokenize",
        replaced(inputs=[InputReference("consolidate", "http://127.0.0.1:9/manifest.json", "f" * 32)]),
        "inspect",
        refused("names the input", code=(1, 2, 4)),
    ),
    reads(
        "input-in-another-place",
        "tokenize",
        replaced(inputs=[InputReference("consolidate", "../../../../outside/manifest.json", "f" * 32)]),
        "inspect",
        refused(code=(0, 2)),
    ),
    reads("input-itself", "tokenize", itself, "inspect", refused(code=(0, 1, 2, 4))),
    reads("input-itself", "tokenize", itself, "why", refused(code=(0, 1, 2, 4))),
    reads("input-itself", "tokenize", itself, "ls", refused(code=(0, 1, 2, 4))),
    reads("input-itself", "tokenize", itself, "gc", refused(code=0)),
    reads(
        "input-in-another-place",
        "tokenize",
        replaced(inputs=[InputReference("consolidate", "../../../../outside/manifest.json", "f" * 32)]),
        "gc",
        refused(code=0),
    ),
    Case("manifest-cycle-of-two-gc", each_other, refused(code=0), words=READERS["gc"], alters=True),
    Case("manifest-chain-of-double-inputs-gc", many_inputs, refused(code=0), words=READERS["gc"], alters=True),
    *(
        Case(f"manifest-cycle-of-two-{command}", each_other, refused(code=(0, 1, 2, 4)), words=words(READERS[command]))
        for command in ("inspect", "why", "diff", "ls", "validate")
    ),
    *(
        Case(
            f"manifest-chain-of-double-inputs-{command}",
            many_inputs,
            refused(code=(0, 1, 2, 4)),
            words=tuple(word.replace("{step}", f"{SHELF}/dedup-{0:012d}") for word in READERS[command]),
        )
        for command in ("inspect", "ls", "why", "validate")
    ),
    *(
        reads("negative-rows", "tokenize", first_partition(rows=-1), command, refused(code=(1, 2, 4)))
        for command in ("validate", "show", "stats")
    ),
    *(
        reads("rows-2^62", "tokenize", first_partition(rows=1 << 62), command, refused(code=(1, 2, 4)))
        for command in ("validate", "show")
    ),
    *(
        reads(
            "tokens-2^60-everywhere",
            "tokenize",
            replaced(totals=Totals(1, 1, 1, 1 << 60)),
            command,
            refused(code=(1, 2, 4)),
        )
        for command in ("validate", "show")
    ),
    reads("negative-bytes", "consolidate", first_partition(bytes=-1), "validate", refused(code=(1, 2, 4))),
    reads(
        "negative-counters",
        "consolidate",
        replaced(counters={"consolidate/documents": -5}),
        "inspect",
        refused(code=(0, 1, 2, 4)),
    ),
    reads(
        "unsafe-names",
        "consolidate",
        replaced(dataset=UNSAFE, stage=UNSAFE, counters={UNSAFE: 1}, parameters={UNSAFE: UNSAFE}),
        "inspect",
        refused(code=(0, 1, 2, 4)),
    ),
    reads(
        "unsafe-names",
        "consolidate",
        replaced(dataset=UNSAFE, counters={UNSAFE: 1}, parameters={UNSAFE: UNSAFE}),
        "ls",
        refused(code=(0, 1, 2, 4)),
    ),
    reads("unsafe-source", "tokenize", first_partition(source=UNSAFE), "stats", refused(code=(1, 2, 4))),
    reads("unsafe-path", "consolidate", first_partition(path=f"data/{UNSAFE}"), "validate", refused(code=(1, 2, 4))),
    reads("html-names", "consolidate", replaced(dataset="<script>"), "validate", refused(code=(1, 2, 4))),
    reads("no-such-stage", "consolidate", replaced(stage="../../outside"), "status", refused(code=(0, 1, 2, 4))),
    reads(
        "same-partition-1000-times",
        "consolidate",
        lambda manifest, place: msgspec.structs.replace(manifest, partitions=manifest.partitions[:1] * 1000),
        "validate",
        refused(code=(1, 2, 4)),
    ),
    reads(
        "100000-missing-partitions",
        "consolidate",
        lambda manifest, place: msgspec.structs.replace(
            manifest, partitions=[Partition(f"data/x/{n}", "x", 1, 1, "0" * 32) for n in range(100_000)]
        ),
        "validate",
        refused(code=(1, 2, 4)),
    ),
    Case(
        "manifest-empty",
        raw("tokenize", lambda data: b""),
        refused("not a manifest", code=(1, 2, 4)),
        words=("validate", SHELF),
    ),
    Case(
        "manifest-of-nul-bytes",
        raw("tokenize", lambda data: bytes(4096)),
        refused("not a manifest", code=(1, 2, 4)),
        words=("validate", SHELF),
    ),
    Case(
        "manifest-nested-deep",
        raw("tokenize", lambda data: b'{"a":' * 200_000),
        refused("not a manifest", code=(1, 2, 4)),
        words=("inspect", SHELF),
    ),
    Case(
        "manifest-parameters-nested-deep",
        raw(
            "tokenize",
            lambda data: data.replace(
                b'"parameters": {', b'"parameters": {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b",", 1
            ),
        ),
        refused(code=(1, 2, 4)),
        words=("validate", SHELF),
    ),
    Case(
        "manifest-number-2^70",
        raw("tokenize", lambda data: data.replace(b'"rows": ', b'"rows": 1180591620717411303424', 1)),
        refused("manifest.json", code=(1, 2, 4)),
        words=("validate", SHELF),
    ),
    Case(
        "manifest-altered",
        raw("tokenize", lambda data: data.replace(b'"rows": ', b'"rows": 1', 1)),
        refused("was altered", code=(1, 2, 4)),
        words=("cache", "show", SHELF),
    ),
    Case(
        "manifest-altered-below-a-run",
        raw("consolidate", lambda data: data.replace(b'"rows": ', b'"rows": 1', 1)),
        refused("was altered", code=(1, 2, 4)),
        words=("diff", SHELF, SHELF),
    ),
    Case(
        "manifest-without-its-checksum",
        raw("tokenize", lambda data: data.replace(b'"checksum"', b'"checksun"')),
        refused("was altered", code=(1, 2, 4)),
        words=("validate", SHELF),
    ),
    Case(
        "manifest-of-format-999",
        raw("tokenize", lambda data: data.replace(b"datakit.manifest/2", b"datakit.manifest/999")),
        refused("newer version", code=(1, 2, 4)),
        words=("validate", SHELF),
    ),
    Case(
        "manifest-repeated-keys",
        raw("tokenize", lambda data: data.replace(b'"dataset":', b'"dataset": "x",\n "dataset":')),
        refused("was altered", code=(1, 2, 4)),
        words=("validate", SHELF),
    ),
    Case(
        "manifest-that-is-a-folder",
        lambda place: (
            copy_finished(place),
            (step(place, "tokenize") / "manifest.json").unlink(),
            (step(place, "tokenize") / "manifest.json").mkdir(),
        )[0],
        refused(code=(1, 2, 4)),
        words=("validate", SHELF),
    ),
    *(
        Case(
            f"latest-{name}",
            latest(content),
            refused(code=(1, 2, 4)),
            words=("inspect", SHELF),
        )
        for name, content in {
            "path-up": lambda found: found | {"step": found["step"] | {"directory": "../../outside"}},
            "path-absolute": lambda found: found | {"step": found["step"] | {"directory": "/etc"}},
            "path-unsafe": lambda found: found | {"step": found["step"] | {"directory": UNSAFE}},
            "empty": b"",
            "nested-deep": b"[" * 100_000,
            "of-a-newer-version": b'{"format": "datakit.latest/9"}',
            "of-nothing": b"null",
            "other-identity": lambda found: found | {"step": found["step"] | {"identity": UNSAFE}},
        }.items()
    ),
)
