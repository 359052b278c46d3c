"""Checks that a step's counters, totals and rows add up, together with those of its inputs.

Every record that a stage reads is either in its output or counted under the reason for which it was left out. The two
sides of each equation below are computed from different values in manifests and files, so if one of these values was
edited, at least one equation does not hold. The reasons that dedup and signatures give are counted in their rows.

Cost: reading manifests, and one small column of the signatures and of the removals.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pyarrow.compute as pc

from datakit.cache.layout import TOKENIZER_FILE
from datakit.normalize.origins import duplicates_path, lists_of_duplicates, origins_path
from datakit.normalize.record_counts import ADDED, IN, OUT, left_out
from datakit.storage import urls
from datakit.storage.manifest import UNSEALED, Manifest, Partition
from datakit.storage.parquet import iterate_shard
from datakit.storage.selection.leaving_rows import RULE
from datakit.validate.between.edit_counts import (
    Equation,
    edit_equations,
    edited_size_equations,
    growths,
    is_edited,
)
from datakit.validate.between.final.counts import final_equations
from datakit.validate.between.final.encoded_parts import encoded_parts
from datakit.validate.between.passages import equations as passage_equations
from datakit.validate.finding import Result
from datakit.validate.subject import Subject, in_parallel

REASONS = ("exact", "fuzzy")
SKIPPED = ("too_short", "saturated", "quarantined")


def check(step: Subject, result: Result) -> None:
    """Compare both sides of each equation of the step's stage."""
    equations = equations_of(step.manifest.stage)
    if equations is None:
        return result.skip("the stage has no counters")
    if step.manifest.format == UNSEALED or not step.manifest.counters:
        return result.skip("the manifest lacks some counters, as those of earlier versions do")
    with result.reading(step.manifest_url):
        for left, one, right, other in equations(step, result):
            result.count("equation")
            if one != other:
                result.find(step.manifest_url, f"does not add up: {left} is {one}, but {right} is {other}")
    return None


def _download(step: Subject, result: Result) -> Iterator[Equation]:
    manifest = step.manifest
    yield "download/files", manifest.counters.get("download/files"), "the number of files", len(manifest.partitions)
    if "download/bytes" in manifest.counters:
        yield "download/bytes", manifest.counters["download/bytes"], "the size of the files", manifest.totals.bytes
    yield "the size of all files", manifest.totals.bytes, "their sum", sum(part.bytes for part in manifest.partitions)


def _normalize(step: Subject, result: Result) -> Iterator[Equation]:
    manifest, counters = step.manifest, step.manifest.counters
    yield (
        "records read and added",
        counters[IN] + counters[ADDED],
        "records written and left out",
        counters[OUT] + left_out(counters),
    )
    yield OUT, counters[OUT], "the number of documents", manifest.totals.rows
    yield "normalize/quarantined", counters["normalize/quarantined"], "the list's length", manifest.quarantine.records
    rows = {file.path: file.rows for file in manifest.files}
    duplicates = sum(rows[path] for path in lists_of_duplicates(manifest))
    yield "normalize/duplicates", counters["normalize/duplicates"], f"the length of {duplicates_path('')}", duplicates
    records = sum(count for path, count in rows.items() if path.startswith(origins_path("part-")))
    kept = counters[OUT] + counters["normalize/duplicates"]
    yield "documents and duplicates", kept, f"the length of {origins_path('')}", records


def _signatures(step: Subject, result: Result) -> Iterator[Equation]:
    manifest, counters = step.manifest, step.manifest.counters
    yield "signatures/documents", counters["signatures/documents"], "the number of rows", manifest.totals.rows
    left_out = counters["signatures/quarantined"]
    yield "signatures/quarantined", left_out, "the list's length", manifest.quarantine.records
    found = _values(step, result, "skipped")
    if found is not None:
        for name in SKIPPED:
            yield f"signatures/{name}", counters[f"signatures/{name}"], "the number of such rows", found[name]
    for entry, above in step.inputs_of("normalize"):
        for part, ours in zip(above.partitions, manifest.partitions, strict=True):
            rows = f"the rows of {urls.name(entry.directory)}/{part.path}"
            yield f"the rows of {ours.path}", ours.rows, rows, part.rows


def _annotate(step: Subject, result: Result) -> Iterator[Equation]:
    manifest, counters = step.manifest, step.manifest.counters
    left_out = counters["annotate/quarantined"]
    yield "annotate/quarantined", left_out, "the list's length", manifest.quarantine.records
    for _, above in step.inputs_of("normalize"):
        documents = counters["annotate/documents"] + left_out
        yield "documents and those left out", documents, "the documents of normalize", above.totals.rows
    for table in manifest.details["tables"]:
        rows = sum(part.rows for part in manifest.partitions if f"/{table}/" in part.path)
        yield f"annotate/{table}", counters[f"annotate/{table}"], "the rows of its files", rows


def _dedup(step: Subject, result: Result) -> Iterator[Equation]:
    manifest, counters = step.manifest, step.manifest.counters
    removed = counters["dedup/exact_removed"] + counters["dedup/fuzzy_removed"]
    documents = counters["dedup/documents_in"]
    yield "dedup/documents_in", documents, "the sum of removed and retained", removed + counters["dedup/retained"]
    yield "the number of removed documents", removed, "the number of rows", manifest.totals.rows
    found, report = _values(step, result, "reason"), manifest.details["sources"]
    for reason in REASONS:
        name = f"dedup/{reason}_removed"
        if found is not None:
            yield name, counters[name], "the number of such rows", found[reason]
        yield name, counters[name], "the sum over the sources", sum(entry[reason] for entry in report.values())
    for source, entry in report.items():
        rows = sum(part.rows for part in manifest.partitions_of(source))
        yield f"what {source!r} lost", entry["exact"] + entry["fuzzy"], "the number of its rows", rows
        kept = entry["documents"] - rows
        yield f"what {source!r} retained", entry["retained"], "the rest of its documents", kept
    clusters = sum(count for _, count in manifest.details["clusters"]["histogram"])
    yield "dedup/clusters", counters["dedup/clusters"], "the sum of the histogram of clusters", clusters
    if not step.missing("normalize"):
        totals = _rows(manifest for _, manifest in step.inputs_of("normalize"))
        yield "dedup/documents_in", documents, "the number of normalized documents", totals.total()
        for source, entry in report.items():
            yield f"the documents of {source!r}", entry["documents"], "those that normalize wrote", totals[source]


def _rows(manifests: Iterator[Manifest]) -> Counter[str]:
    found = Counter[str]()
    for manifest in manifests:
        for part in manifest.partitions:
            found[part.source] += part.rows
    return found


def _values(step: Subject, result: Result, column: str) -> Counter[str] | None:
    """Return how often each value occurs in a column of strings of all partitions; None if a partition is damaged."""
    found, parts = Counter[str](), step.manifest.partitions
    if not step.sound(*(step.place(part) for part in parts)):
        return result.skip("damaged partitions are not counted")
    for counts in in_parallel(partial(_values_of, step, result, column), parts):
        found.update(counts)
    return found


def _values_of(step: Subject, result: Result, column: str, part: Partition) -> Counter[str]:
    found = Counter[str]()
    with result.reading(step.place(part)):
        for table in iterate_shard(step.place(part), [column]):
            for entry in pc.call_function("value_counts", [table[column].combine_chunks()]).to_pylist():
                found[entry["values"]] += entry["counts"]
    return found


def _select(step: Subject, result: Result) -> Iterator[Equation]:
    manifest, counters, details = step.manifest, step.manifest.counters, step.manifest.details["sources"]
    leaving = sum(count for name, count in counters.items() if name.startswith("select/dropped_"))
    kept = counters["select/records_out"]
    yield "select/records_in", counters["select/records_in"], "those that stay and leave", kept + leaving
    yield "the number of documents that leave", leaving, "the number of rows", manifest.totals.rows
    yield "select/records_out", kept, "the sum over the sources", sum(one["records_out"] for one in details.values())
    rows = _rows(iter([manifest]))
    for source, entry in details.items():
        left = sum(entry["combinations"].values())
        yield f"the number of documents that leave {source!r}", left, "the number of its rows", rows[source]
        yield f"what stays in {source!r}", entry["records_out"], "the rest of its documents", entry["records_in"] - left
        reasons = Counter[str]()
        for combination, number in entry["combinations"].items():
            reasons.update(dict.fromkeys(combination.split("+"), number))
        yield f"the count by reason of {source!r}", entry["leaving"], "the sum of combinations", dict(reasons)
    yield from edit_equations(manifest)
    yield from final_equations(manifest)
    if not step.missing("normalize"):
        totals = _rows(above for _, above in step.inputs_of("normalize"))
        for source, entry in details.items():
            yield f"the documents read of {source!r}", entry["records_in"], "those normalized", totals[source]
    for _, rules in step.inputs_of("rules"):
        for source, entry in details.items():
            leaves = sum(count for reason, count in entry["leaving"].items() if reason.startswith(RULE))
            listed = rules.details["sources"][source]["leaving"]
            yield f"what leaves {source!r} because of rules", leaves, "those that the rules list", listed
    for _, dedup in step.inputs_of("dedup"):
        for source, entry in details.items():
            for reason in (one for one in manifest.details["drop"] if one in REASONS):
                marked = dedup.details["sources"][source][reason]
                leaves = entry["leaving"].get(reason, 0)
                yield f"the {reason} duplicates that leave {source!r}", leaves, "those that dedup marked", marked


def _rules(step: Subject, result: Result) -> Iterator[Equation]:
    manifest, counters, details = step.manifest, step.manifest.counters, step.manifest.details["sources"]
    leaving, read = sum(entry["leaving"] for entry in details.values()), counters["rules/records_in"]
    yield "rules/records_in", read, "those that stay and leave", counters["rules/records_out"] + leaving
    yield "the number of documents that leave", leaving, "the number of rows", manifest.totals.rows
    rows = _rows(iter([manifest]))
    for source, entry in details.items():
        yield f"the number of documents that leave {source!r}", entry["leaving"], "the number of its rows", rows[source]
    for rule in manifest.parameters["rules"]:
        name = rule["name"]
        decided = sum(entry["rules"][name]["decides"] for entry in details.values())
        yield f"what rule {name!r} decides", counters[f"rules/{rule['action']}_{name}"], "that of all sources", decided
    if not step.missing("normalize"):
        totals = _rows(above for _, above in step.inputs_of("normalize"))
        for source, entry in details.items():
            yield f"the documents read of {source!r}", entry["records_in"], "those normalized", totals[source]


def _consolidate(step: Subject, result: Result) -> Iterator[Equation]:
    manifest, counters = step.manifest, step.manifest.counters
    reasons = [name for name in counters if name.startswith("consolidate/dropped_")]
    written = counters["consolidate/records_out"] + sum(counters[name] for name in reasons)
    yield "consolidate/records_in", counters["consolidate/records_in"], "documents written and left out", written
    yield "consolidate/records_out", counters["consolidate/records_out"], "the number of rows", manifest.totals.rows
    left_out = counters["consolidate/dropped_quarantined"]
    yield "consolidate/dropped_quarantined", left_out, "the list's length", manifest.quarantine.records
    rows, text = _rows(iter([manifest])), Counter[str]()
    for part in manifest.partitions:
        text[part.source] += part.text_bytes or 0
    for source, entry in manifest.details["sources"].items():
        left = entry["records_in"] - sum(entry["dropped"].values())
        yield f"what {source!r} kept", entry["records_out"], "what was read without what was left out", left
        yield f"what {source!r} kept", entry["records_out"], "the number of its rows", rows[source]
        yield f"the bytes of text of {source!r}", entry["text_bytes"], "the sum over its partitions", text[source]
    yield from _consolidate_inputs(step)


def _consolidate_inputs(step: Subject) -> Iterator[Equation]:
    details = step.manifest.details
    if not step.missing("normalize"):
        totals = _rows(manifest for _, manifest in step.inputs_of("normalize"))
        for source, entry in details["sources"].items():
            yield f"the documents read of {source!r}", entry["records_in"], "those normalized", totals[source]
    for _, select in step.inputs_of("select"):
        stay = sum(entry["records_out"] for entry in select.details["sources"].values())
        yield (
            "consolidate/records_in",
            step.manifest.counters["consolidate/records_in"],
            "the documents that stay",
            stay,
        )
        for source, entry in details["sources"].items():
            dropped = {reason: count for reason, count in entry["dropped"].items() if reason != "quarantined"}
            leaving = select.details["sources"][source]["combinations"]
            yield f"what was dropped from {source!r}", dropped, "what the selection lists", leaving
    for _, dedup in step.inputs_of("dedup"):  # a step of an earlier version
        for source, entry in details["sources"].items():
            for reason in details["drop"]:
                marked = dedup.details["sources"][source][reason]
                dropped = entry["dropped"].get(reason, 0)
                yield f"the {reason} duplicates dropped from {source!r}", dropped, "those that dedup marked", marked


def _train_tokenizer(step: Subject, result: Result) -> Iterator[Equation]:
    manifest = step.manifest
    text = manifest.counters["train-tokenizer/text_bytes"]
    yield "train-tokenizer/text_bytes", text, "the size of the sample", manifest.details["sampled_bytes"]
    above = step.inputs_of("consolidate") or step.inputs_of("normalize")
    size = sum(texts.totals.text_bytes or 0 for _, texts in above)
    size += sum(max(0, growth) for _, select in step.inputs_of("select") for growth in growths(select).values())
    if above and not step.missing("normalize"):
        most = min(manifest.parameters["sample_bytes"], size)
        yield "the size of the sample at most", min(text, most), "its size", text


def _contract(step: Subject, result: Result) -> Iterator[Equation]:
    counted, stated = step.manifest.counters["contract/vocabulary"], step.manifest.details["contract"]
    yield "contract/vocabulary", counted, "the contract's vocabulary_size", stated["vocabulary_size"]
    yield "contract/vocabulary", counted, "the total of rows", step.manifest.totals.rows
    yield from _trained_tokenizer(step)


def _trained_tokenizer(step: Subject) -> Iterator[Equation]:
    for trained, _ in step.inputs_of("train-tokenizer"):
        place = urls.join(trained.directory, TOKENIZER_FILE)
        if step.sound(place):
            found = hashlib.sha256(urls.read_bytes(place)).hexdigest()
            stated = step.manifest.details["contract"]["tokenizer_sha256"]
            yield "the sha256 of the tokenizer", stated, f"that of {place}", found


def _tokenize(step: Subject, result: Result) -> Iterator[Equation]:
    manifest, counters = step.manifest, step.manifest.counters
    if "imported" in manifest.parameters:
        result.skip("an imported cache counts no documents of a source")
        return
    totals, left_out = manifest.totals, counters["tokenize/quarantined"]
    yield "tokenize/documents", counters["tokenize/documents"], "the number of documents", totals.rows
    yield "tokenize/tokens", counters["tokenize/tokens"], "the number of tokens", totals.tokens
    yield "tokenize/text_bytes", counters["tokenize/text_bytes"], "the bytes of text", totals.text_bytes
    yield "tokenize/quarantined", left_out, "the list's length", manifest.quarantine.records
    for _, settled in step.inputs_of("contract"):
        stated = manifest.details["contract"]  # made with another version of the library, perhaps
        made = {**settled.details["contract"], "encoder_version": stated["encoder_version"]}
        for name in sorted({*stated, *made}):
            yield f"the contract's {name}", stated.get(name), "that of the contract step", made.get(name)
    yield from _trained_tokenizer(step)  # a step of an earlier version
    yield from _tokenize_inputs(step)
    for _, above in step.inputs_of("consolidate"):  # a step of an earlier version
        read = above.totals.rows
        yield "documents encoded and left out", totals.rows + left_out, "the number of consolidated documents", read
        filled = [part.source for part in above.partitions if part.rows]
        shards = [part.source for part in manifest.partitions]
        yield "the sources of the shards", shards, "those of the partitions with documents", filled
        if not left_out:
            ours, theirs = ([part.text_bytes for part in one.partitions if part.rows] for one in (manifest, above))
            yield "the bytes of text of the shards", ours, "those of the partitions", theirs


def _tokenize_inputs(step: Subject) -> Iterator[Equation]:
    if step.missing("normalize") or step.missing("select"):
        return
    for _, select in step.inputs_of("select"):
        manifest, leaving = step.manifest, {part.path: part.rows for part in select.partitions}
        parts = [part for _, above in step.inputs_of("normalize") for part in above.partitions]
        encoded = list(encoded_parts(parts, select))
        filled, stay = [one.partition for one in encoded], sum(one.rows for one in encoded)
        read = manifest.totals.rows + manifest.quarantine.records
        yield "documents encoded and left out", read, "the number of documents that stay", stay
        shards = [part.source for part in manifest.partitions]
        yield "the sources of the shards", shards, "those of the partitions", [part.source for part in filled]
        buckets = [part.bucket for part in manifest.partitions]
        yield "the buckets of the shards", buckets, "those of the partitions", [one.bucket for one in encoded]
        if len(shards) == len(filled):
            yield from edited_size_equations(manifest, select, list({part.path: part for part in filled}.values()))
            for ours, one in zip(manifest.partitions, encoded, strict=True):
                theirs = one.partition
                if is_edited(select, theirs) or one.bucket is not None:
                    continue
                size, most, gone = ours.text_bytes or 0, theirs.text_bytes or 0, leaving.get(theirs.path, 0)
                least = most if not gone and not manifest.quarantine.records else 0
                yield f"the bytes of text of {ours.path}", size, f"those of {theirs.path}", min(max(size, least), most)


def _packing(step: Subject, result: Result) -> Iterator[Equation]:
    from datakit.loader.mixture.packing_counts import decode_counts  # a fifth of a second to import

    counters, parameters = step.manifest.counters, step.manifest.parameters
    yield "packing/tokens", counters["packing/tokens"], "the tokens of the source", parameters["tokens"]
    for part in step.manifest.partitions:
        if step.sound(step.place(part)):
            counts = decode_counts(urls.read_bytes(step.place(part)))
            yield "the number of blocks", part.rows, f"the length of {part.path}", len(counts)
            sequences = step.manifest.details["sequences"]
            yield "the number of sequences", sequences, "the sum of the counts", int(counts.sum())


def _train(step: Subject, result: Result) -> Iterator[Equation]:
    totals, counters = step.manifest.totals, step.manifest.counters
    yield "train/sequences", counters["train/sequences"], "the total of rows", totals.rows
    yield "train/tokens", counters["train/tokens"], "the total of tokens", totals.tokens


def equations_of(stage: str) -> Callable[[Subject, Result], Iterator[Equation]] | None:
    """Return the function that yields the equations of a stage, or None."""
    return _packing if stage.startswith("packing-") else EQUATIONS.get(stage)


EQUATIONS: dict[str, Callable[[Subject, Result], Iterator[Any]]] = {
    "download": _download,
    "normalize": _normalize,
    "signatures": _signatures,
    "annotate": _annotate,
    "rules": _rules,
    "dedup": _dedup,
    "passages": passage_equations,
    "select": _select,
    "consolidate": _consolidate,
    "train-tokenizer": _train_tokenizer,
    "contract": _contract,
    "tokenize": _tokenize,
    "train": _train,
}
