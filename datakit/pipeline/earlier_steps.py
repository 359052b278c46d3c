"""Finds the steps in a root that an earlier version of datakit finished or began and that this version makes again, and
gives the reason for each.

A step of an earlier version has a different fingerprint, so the search for finished steps does not find it. Such a step
counts as the predecessor of a planned step if it belongs to the same stage and the same source or dataset, if all
parameters that both steps have are equal, and if each of its inputs is a step upstream of the planned step or the
predecessor of such a step. The predecessor of a select step is a consolidate step, because that stage used to decide
which documents leave. An unfinished step, which records no parameters, counts as a predecessor if it belongs to the
same stage and source or dataset and its ledger shows that an earlier version began it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from datakit.engine.ledger.ledger import drivers
from datakit.errors import NewerFormatError
from datakit.pipeline.root_layout import steps_in
from datakit.storage import urls
from datakit.storage.manifest import Manifest, find_manifest

LAYOUT = "outputs now lie below data/<source>/"
WHY = {  # (stage, format version) -> what changed in that version
    ("normalize", 2): f"{LAYOUT}; origins are now recorded; the handling of where, sample, large integers, "
    "quotes in CSV files and damaged streams changed, and so did the size of partitions",
    ("normalize", 3): "documents now have the column edited_id",
    ("normalize", 4): "documents are now compressed with zstd-1",
    ("passages", 2): "passages that are not copies were marked in large row groups",
    ("signatures", 2): LAYOUT,
    ("dedup", 2): LAYOUT,
    ("select", 1): "a separate step now lists the documents that leave",
    ("consolidate", 2): LAYOUT,
    ("consolidate", 3): "it now reads the selection",
    ("train-tokenizer", 2): "it now reads the normalized documents and the selection",
    ("tokenize", 4): f"{LAYOUT}; the handling of chats, loss masks of prebuilt tokens and long documents changed",
    ("tokenize", 5): "it now reads the normalized documents and the selection",
    ("tokenize", 6): "a step of its own now makes the contract",
}
FORMERLY = {"select": ("consolidate", 3)}  # stage -> the stage that did its work before that stage's format version
INPUTS = "its inputs are made again"


@dataclass(frozen=True)
class EarlierStep:
    """A step of an earlier version. version: the format version that the step recorded; None if it recorded none.

    now: the stage's current format version. why: the reason for making the step again. documents: the number of
    documents that the step read. bytes: the size of the step's output. text_bytes: the number of bytes of text in this
    output. `documents`, `bytes` and `text_bytes` are None if the step is unfinished.
    """

    directory: str
    finished: bool
    version: int | None
    now: int
    why: str
    documents: int | None = None
    bytes: int | None = None
    text_bytes: int | None = None
    identity: str | None = None

    def message(self, label: str) -> str:
        """Return the message in which a run reports that it makes this step again. Only `datakit plan` shows the
        reason.
        """
        place = urls.name(self.directory)
        if self.finished:
            return f"{label}: made again; {place} was made by an earlier version"
        return (
            f"{label}: {place} was begun by an earlier version\n"
            "  It cannot be continued, so the step starts anew; `datakit gc` lists it."
        )


def find_earlier(
    directory: str,
    stage: str,
    version: int,
    parameters: dict[str, Any],
    *,
    inputs: Collection[str],
    remade: Collection[str],
) -> list[EarlierStep]:
    """Return the predecessors of the planned step whose directory is `directory`.

    version: the stage's current format version. parameters: the parameters that determine the planned step's output.
    inputs: the identities of all steps upstream of that step. remade: the identities of the predecessors of these.
    """
    home, found = urls.parent(directory), []
    former, limit = FORMERLY.get(stage, (stage, version))
    for place in steps_in(home):
        if place == directory or urls.name(place).rpartition("-")[0] != former:
            continue
        try:
            manifest = find_manifest(place)
        except NewerFormatError:  # not an earlier version's step
            continue
        if manifest is None:
            begun = [line.version for line in drivers(place)] if former == stage else []
            if begun and not any(one is not None and one >= version for one in begun):
                found.append(EarlierStep(place, False, begun[0], version, _why(stage, begun[0], version)))
        elif _precedes(manifest, limit, parameters, inputs, remade):
            found.append(_finished(place, manifest, stage, version))
    return found


def _why(stage: str, before: int | None, now: int) -> str:
    """Return what changed between two format versions of a stage."""
    changes = [WHY[stage, version] for version in range((before or 0) + 1, now + 1) if (stage, version) in WHY]
    return "; ".join(changes) or INPUTS


def _precedes(
    manifest: Manifest, version: int, parameters: dict[str, Any], inputs: Collection[str], remade: Collection[str]
) -> bool:
    read = [entry.identity for entry in manifest.inputs]
    changed = manifest.version is None or manifest.version < version or any(one in remade for one in read)
    same = all(parameters[name] == value for name, value in manifest.parameters.items() if name in parameters)
    return changed and same and all(one in inputs or one in remade for one in read)


def _finished(directory: str, manifest: Manifest, stage: str, version: int) -> EarlierStep:
    before = 0 if manifest.stage != stage else manifest.version
    return EarlierStep(
        directory,
        True,
        manifest.version,
        version,
        _why(stage, before, version),
        documents_read(manifest),
        manifest.totals.bytes,
        manifest.totals.text_bytes,
        manifest.identity,
    )


def documents_read(manifest: Manifest) -> int:
    """Return the number of records or documents that the step with this manifest read."""
    names = ("/records_in", "/documents", "/documents_in")
    return max((n for name, n in manifest.counters.items() if name.endswith(names)), default=manifest.totals.rows)
