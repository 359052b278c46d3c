"""Finds the rule with the action `keep` that protects a document, and the rules that would otherwise have removed it.

The steps rules and select list only documents that leave. So the rules, as the step's manifest states them, are applied
again to the one document, with the attributes that the step read and, for final rules, with its edits. Only the end of
a share (`lowest`, `highest`) cannot be found again without reading all documents; where it matters, the explanation
says so.

Cost: reading the document's partition and its tables up to the document, with texts only if a final rule reads the
sizes of edited texts; nothing if no rule keeps documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from datakit.conditions.applying import applying
from datakit.conditions.config import DROP, KEEP, Rule
from datakit.conditions.expressions import Conditions
from datakit.conditions.phase_data import Shared, Work
from datakit.conditions.records import RowGroup, read_records
from datakit.conditions.works import column_types, works_of
from datakit.engine.task import Step, StepInput
from datakit.errors import CorruptError
from datakit.pipeline.fate.behind import Behind, Finished
from datakit.rules.config import Config
from datakit.select.plan_edits import EDITS
from datakit.select.stage import Config as SelectConfig
from datakit.storage.fingerprint import config_of
from datakit.storage.selection.leaving_rows import Selected, selected

NOTHING = "no rule removes it"


@dataclass(frozen=True)
class Found:
    """The knowledge about one rule and one document. applies: the rule certainly applies. may: the condition is true,
    but whether the document belongs to the rule's share is unknown.
    """

    rule: Rule
    applies: bool
    may: bool


def protection(behind: Behind, rules: Finished, source: str, identity: str) -> str:
    """Return why no rule removed a document that a rules step read."""
    config = config_of(rules.manifest.parameters, Config)
    if all(rule.action != KEEP for rule in config.rules):
        return NOTHING
    return explained_protection(_judged(behind, rules, config.rules, source, identity))


def final_protection(behind: Behind, select: Finished, source: str, identity: str) -> str:
    """Return why no final rule removed a document that a select step kept; "" if no final rule could protect it."""
    rules = config_of(select.manifest.parameters, SelectConfig).rules
    if all(rule.action != KEEP for rule in rules):
        return ""
    explanation = explained_protection(_judged(behind, select, rules, source, identity), "final rule")
    return "" if explanation == NOTHING else explanation


def _judged(behind: Behind, step: Finished, rules: Sequence[Rule], source: str, identity: str) -> list[Found]:
    """Apply the rules of a step to one document of its sources, which no rule has removed."""
    normalized = behind.normalized[source]
    inputs = tuple(
        StepInput(stage, one.manifest.dataset, one.directory, one.manifest)
        for one in behind.steps
        if (stage := one.manifest.stage) in ("normalize", "annotate")
    )
    made = Step(step.manifest.stage, step.manifest.dataset, step.directory, "", {}, inputs)
    conditions = Conditions(rules, sorted(step.manifest.parameters.get(EDITS, ())))
    shared = Shared(tuple(rules), column_types(made), cuts=_no_cuts(rules))
    place = normalized.row(source, identity, ["id"])
    assert place is not None, "the document was found in this step"
    (entry,) = [one for one in made.inputs_of("normalize") if one.source == source]
    works = works_of(entry, made.inputs_of("annotate"), conditions)
    (number,) = [number for number, one in enumerate(works) if one.part.dataset == normalized.url(place[0])]
    lists = Selected(None, 0)
    if step.manifest.stage == "select":
        lists = selected(step.directory, step.manifest, source, entry.manifest.partitions_of(source))[number]
    part = replace(works[number].part, leaving=lists.leaving, edits=lists.edits)
    return _found(replace(works[number], part=part), shared, conditions, identity)


def _no_cuts(rules: Sequence[Rule]) -> dict[str, str]:
    return {str(number): "" for number, rule in enumerate(rules) if rule.ranks}  # "": the share contains no document


def _found(work: Work, shared: Shared, conditions: Conditions, identity: str) -> list[Found]:
    """Apply the rules to one document of a partition."""
    for group in read_records(work.part, conditions.wanted, shared.types):
        chosen = np.asarray(group.ids.to_numpy() == identity)
        if chosen.any():
            return _applied(group.only(chosen), work, shared, conditions)
    raise CorruptError(f"{work.part.dataset} had document {identity}, but lacks it now; run `datakit validate`")


def _applied(one: RowGroup, work: Work, shared: Shared, conditions: Conditions) -> list[Found]:
    answers = conditions.answers(one.records, work.part.dataset)
    applies, _ = applying(one, answers, work, shared)
    reads = [not rule.sources or work.part.source in rule.sources for rule in shared.rules]
    return [
        Found(rule, bool(applies[number, 0]), rule.ranks and reads[number] and bool(answers[number].where[0]))
        for number, rule in enumerate(shared.rules)
    ]


def explained_protection(found: Sequence[Found], kind: str = "rule") -> str:
    """Return which rule keeps a document that no rule removed, and which rules would otherwise have removed it. found:
    what is known about all rules, in order. kind: the name of such rules.
    """
    first = next((number for number, one in enumerate(found) if one.applies), len(found))
    keepers = [one for one in found[: first + 1] if one.rule.action == KEEP and (one.applies or one.may)]
    if not keepers and first < len(found):
        return f"{NOTHING}, although {kind} {found[first].rule.name} applies to it; was a directory changed?"
    if not keepers:
        return NOTHING
    after = found[found.index(keepers[0]) + 1 :]
    certain = [one.rule.name for one in after if one.rule.action == DROP and one.applies]
    possible = [one.rule.name for one in after if one.rule.action == DROP and one.may and not one.applies]
    surely = keepers[-1].applies or bool(certain)  # a document that a rule would remove has been protected
    if not surely:
        return f"{NOTHING}; {_names(keepers)} protects it if it is in this rule's share, which is not recorded"
    parts = [f"by {kind} {_names(keepers)}, which protects it"]
    parts += [f"{', '.join(certain)} would otherwise have removed it"] if certain else []
    if possible:
        parts.append(f"so would {', '.join(possible)}, if it is in the rule's share, which is not recorded")
    return "; ".join(parts if certain or possible else [*parts, "no other rule would have removed it"])


def _names(keepers: Sequence[Found]) -> str:
    return " or ".join(one.rule.name for one in keepers)
