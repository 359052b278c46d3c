"""Says what is known about personal data in the texts of a dataset: for each source, whether the annotator `personal`
searched for them, for which kinds, in how many documents it found any, and what became of each kind.

A kind is masked or cut if an edit of the recipe covers it in the source, and kept otherwise. All of this is read from
the manifests of the annotate, rules and select steps; no text is read. Other annotators, such as the user's own, may
find personal data as well, but only the user knows this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from datakit.storage.manifest import Manifest, table_path

PERSONAL = "personal"  # the annotator's name
SPANS = f"{PERSONAL}.spans"
WORDS = {"mask": "masked", "cut": "cut"}


@dataclass(frozen=True)
class PersonalData:
    """The status of one source. kinds: what was searched for; None if nothing was. found: the number of documents in
    which something was found, before any document was removed. edited: what became of each kind that an edit covers
    ("masked" or "cut"). rules: the names of the rules that read what was found.
    """

    source: str
    kinds: tuple[str, ...] | None
    found: int = 0
    edited: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[str, ...] = ()

    @property
    def kept(self) -> tuple[str, ...]:
        """The kinds that were found and left in the texts."""
        return tuple(kind for kind in self.kinds or () if kind not in self.edited)

    def describe(self) -> str:
        """Return the status as a sentence without a full stop."""
        if self.kinds is None:
            return "not searched for"
        fates = [f"{', '.join(kinds)} {fate}" for fate, kinds in self._by_fate().items()]
        rules = f"; documents may leave by {', '.join(self.rules)}" if self.rules else ""
        return f"found in {self.found:,} documents as read: {'; '.join(fates)}{rules}"

    def _by_fate(self) -> dict[str, list[str]]:
        fates: dict[str, list[str]] = {}
        for kind in self.kinds or ():
            fates.setdefault(self.edited.get(kind, "kept"), []).append(kind)
        return fates


def personal_data(
    sources: Sequence[str], annotations: Sequence[Manifest], steps: Sequence[Manifest]
) -> list[PersonalData]:
    """Return the status of each source. annotations: the manifests of all annotate steps. steps: those of the rules and
    select steps from which the documents were made.
    """
    searched = {one.dataset: one for one in annotations if PERSONAL in one.parameters.get("annotators", {})}
    return [_status(source, searched.get(source), steps) for source in sources]


def _status(source: str, annotation: Manifest | None, steps: Sequence[Manifest]) -> PersonalData:
    if annotation is None:
        return PersonalData(source, None)
    kinds = tuple(annotation.parameters["annotators"][PERSONAL]["kinds"])
    prefix = table_path(source, PERSONAL, "")
    found = sum(part.rows for part in annotation.partitions if part.path.startswith(prefix))
    edited = {
        kind: WORDS[edit["action"]]
        for step in steps
        for edit in _applied(step.parameters.get("edits", {}), source)
        for kind in edit.get("kinds") or kinds
        if kind in kinds
    }
    rules = tuple(name for step in steps for name in _readers(step.parameters.get("rules", []), source))
    return PersonalData(source, kinds, found, edited, tuple(dict.fromkeys(rules)))


def _applied(edits: Mapping[str, dict[str, Any]], source: str) -> Iterator[dict[str, Any]]:
    for edit in edits.values():
        if edit["spans"] == SPANS and (edit.get("sources") is None or source in edit["sources"]):
            yield edit


def _readers(rules: Sequence[dict[str, Any]], source: str) -> Iterator[str]:
    for rule in rules:
        reads = any(f"{PERSONAL}." in str(rule.get(key) or "") for key in ("where", "by"))
        if reads and (rule.get("sources") is None or source in rule["sources"]):
            yield rule["name"]
