"""Implements `datakit rules show` and `datakit rules preview`: their options, and the tables that they print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from datakit.cli.console import Cell, bytes_cell, count_text, note, say, say_json, table, visible, wrapped
from datakit.cli.parameters import Flag, Settings
from datakit.cli.rules.sets import is_set, print_set, refuse_options
from datakit.errors import UsageError, counted

if TYPE_CHECKING:
    from datakit.pipeline.rule_effects.effects import Effects, RuleEffect

HEADERS = ("rule", "source", "applies", "decides", "missing", "removes", "tokens")
BY_SOURCE = ("source", "documents", "by rules", "otherwise", "retained", "text", "tokens")
EXCERPT = 300  # characters of a sample's text


def show(
    dataset: str,
    /,
    *,
    part: str | None = None,
    samples: int = 0,
    rule: str = "",
    show_text: Flag = False,
    json: Flag = False,
) -> int:
    """Show what each rule and each document bucket did to each source of a dataset, or print a rule set.

    "applies" counts the documents to which a rule applies, "decides" those to which no earlier rule applies, and
    "missing" those for which it cannot be decided. "removes" is the text that leaves because of the rule. Rules of
    [[select.rules]] are marked as final. The tokens of removed documents are an estimate (~): their bytes, times the
    tokens per byte of the retained documents of the source. What each source retains is counted in the token cache.

    Examples:
      datakit rules show data/demo-curated
      datakit rules show data/demo-curated --samples 5 --rule short --show-text
      datakit rules show gopher_quality
      datakit rules show fineweb2 --part deu_Latn

    Parameters
    ----------
    dataset
        A dataset's directory, which stands for its current run, or a step's directory. The name of a rule set
        (`datakit rules sets`) or its file, which ends with .toml, prints its rules as TOML.
    part
        Print this part of a rule set that has several.
    samples
        Also list this many of the documents that each rule removes, chosen at random.
    rule
        List only documents that this rule removes.
    show_text
        Show the beginnings of their texts.
    json
        Print one JSON object; with --show-text, samples have their whole texts.
    """
    from datakit.pipeline.rule_effects.effects import SampleOptions, effects

    if is_set(dataset):
        refuse_options({"samples": samples, "rule": rule, "show-text": show_text})
        print_set(dataset, part, json=bool(json))
        return 0
    if part is not None:
        raise UsageError(f"--part is for rule sets, and {dataset} is none; `datakit rules sets` lists them")
    found = effects(dataset, SampleOptions(samples, rule, bool(show_text)))
    _print(found, json=bool(json))
    if not json:
        note(f"according to {found.step}")
    return 0


def preview(
    recipe: str,
    /,
    *,
    root: str = "./data",
    workers: int | None = None,
    set_: Settings = (),
    offline: Flag = False,
    samples: int = 0,
    rule: str = "",
    show_text: Flag = False,
    json: Flag = False,
) -> int:
    """Show what the rules of a recipe would do, before a run writes anything.

    The texts must be normalized and annotated already: `datakit run RECIPE --until annotate`. The meaning of the
    columns is that of `datakit rules show`.

    Examples:
      datakit rules preview books.toml --samples 5
      datakit rules preview books.toml --set rules.short.where="heuristics.words < 40" --rule short --show-text

    Parameters
    ----------
    recipe
        A recipe file (TOML) or a name from `datakit catalog list`.
    root
        The directory or URL that holds the annotated texts.
    workers
        Number of tasks to run at a time; by default one per usable CPU.
    set_
        Override a value of the recipe, for example rules.short.where="...". Can be repeated.
    offline
        Do not list remote sources; use the last download of each.
    samples
        Also list this many of the documents that each rule would remove, chosen at random.
    rule
        List only documents that this rule would remove.
    show_text
        Show the beginnings of their texts.
    json
        Print one JSON object; with --show-text, samples have their whole texts.
    """
    from datakit.pipeline.rule_effects.effects import SampleOptions
    from datakit.pipeline.rule_effects.preview import preview as apply
    from datakit.recipe import load_recipe

    options = SampleOptions(samples, rule, bool(show_text))
    chosen = load_recipe(recipe).with_overrides(set_)
    found = apply(chosen, root, options, workers=workers, offline=bool(offline))
    _print(found, json=bool(json))
    if json:
        return 0
    if found.leaving == found.documents:
        note("nothing was written; the rules remove all documents, so a run would stop: correct the rules")
    else:
        note(f"nothing was written; next: datakit run {recipe} --root {root}, with the same options")
    return 0


def _name(one: RuleEffect) -> str:
    """Return the name of a rule; "final" and an action other than `drop` follow in parentheses."""
    about = [*(["final"] if one.final else []), *([one.action] if one.action != "drop" else [])]
    return f"{one.rule} ({', '.join(about)})" if about else one.rule


def _print(found: Effects, *, json: bool) -> None:
    if json:
        return say_json(found)
    rows = [
        [_name(one), one.source, one.applies, one.decides,
         one.missing, bytes_cell(one.text_bytes), None if one.tokens is None else f"~{count_text(one.tokens)}"]
        for one in found.rules
    ]  # fmt: skip
    say(table(HEADERS, rows))
    if found.buckets:
        buckets = [[one.bucket, one.source, one.applies, one.documents, one.missing] for one in found.buckets]
        say("\n" + table(("bucket", "source", "applies", "documents", "missing"), buckets))
    if found.retained:
        say("\n" + table(BY_SOURCE, _by_source(found)))
    for source, documents in {} if found.retained else found.documents.items():
        leaving = found.leaving[source]
        say(f"{source}: {leaving:,} of {counted(documents, 'document')} leave ({leaving / max(1, documents):.1%})")
    for sample in found.samples:
        others = [name for name in sample.reasons if name != sample.rule]
        say(
            wrapped(
                f"{sample.id} of {sample.source}: {sample.rule}" + (f" (also {', '.join(others)})" if others else "")
            )
        )
        if sample.text is not None:
            say(wrapped(visible(sample.text[:EXCERPT]), "  "))
    return None


def _by_source(found: Effects) -> list[list[Cell]]:
    """Return a row for each source: its documents, those that leave for other reasons than rules, and the rest."""
    rows: list[list[Cell]] = []
    for source, kept in found.retained.items():
        documents, leaving = found.documents[source], found.leaving[source]
        others = documents - leaving - kept.documents
        rows.append([source, documents, leaving, others, kept.documents, bytes_cell(kept.text_bytes), kept.tokens])
    return rows
