"""Describes which copies of passages a document has, how its text was edited, and why select left it out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from datakit.errors import counted
from datakit.pipeline.fate.behind import Finished
from datakit.storage import urls
from datakit.storage.parquet import find_rows
from datakit.storage.selection.buckets import bucket_path, buckets_of
from datakit.storage.selection.edits import edits_url
from datakit.storage.selection.leaving_rows import FINAL, RULE

REASONS = {
    "empty": "nothing is left of its text after editing",
    "equal_after_editing": "its edited text equals that of an earlier document",
    "unannotated": "it could not be annotated, so nobody knows what would have to be edited",
}


def explained(reasons: Sequence[str]) -> str:
    """Return why a document leaves. reasons: those that the selection lists."""
    parts = [f"by rule {reason.removeprefix(RULE)}" for reason in reasons if reason.startswith(RULE)]
    parts += [f"by final rule {reason.removeprefix(FINAL)}" for reason in reasons if reason.startswith(FINAL)]
    duplicate = [reason for reason in reasons if reason not in REASONS and not reason.startswith((RULE, FINAL))]
    parts += [f"as dedup decided ({' and '.join(duplicate)} duplicate)"] if duplicate else []
    return "; ".join([*parts, *(REASONS[reason] for reason in reasons if reason in REASONS)])


def bucket_of_document(select: Finished, source: str, normalized: Finished, identity: str) -> str:
    """Return the name of the bucket that a document is in; "" if its source is not divided."""
    buckets, place = buckets_of(select.manifest, source), normalized.row(source, identity, ["id"])
    if place is None:
        return ""
    for bucket in buckets[:-1]:
        path = bucket_path(source, bucket, urls.name(place[0]))
        if any(find_rows(select.url(path), identity, ["id"])):
            return bucket
    return buckets[-1] if buckets else ""


def edits_of_document(select: Finished, source: str, normalized: Finished, identity: str) -> str:
    """Return how a document was edited, such as "3 stretches masked by mail"; "" if it was not."""
    place = normalized.row(source, identity, ["id"])
    if place is None:
        return ""
    url = edits_url(select.directory, select.manifest, source, urls.name(place[0]))
    found = find_rows(url, identity, ["stretches"]) if url is not None else []
    changes = Counter[tuple[str, str]]()
    for _, values in found:
        for stretch in values["stretches"]:
            changes["cut" if stretch["replacement"] is None else "masked", stretch["edit"]] += 1
    return ", ".join(
        f"{counted(count, 'stretch', 'stretches')} {verb} by {edit}" for (verb, edit), count in sorted(changes.items())
    )


def copies_in_document(found: Finished, source: str, identity: str) -> str:
    """Return which copies of passages a document has, such as "3 copies found by lines"; "" if it has none."""
    searches = sorted(found.manifest.parameters["searches"])
    row = found.row(source, identity, searches)
    counts = {name: len(row[2][name]) for name in searches} if row is not None else {}
    return ", ".join(f"{counted(count, 'copy', 'copies')} found by {name}" for name, count in counts.items() if count)
