"""Applies the rules of a recipe to finished attributes, in a scratch directory, so that rules can be tried before a run
writes anything. The texts must be normalized and annotated already, because a preview reads no text to compute facts.
"""

from __future__ import annotations

from dataclasses import replace

from datakit.engine.observe.observer import Observer
from datakit.engine.scheduler.driver import run_step
from datakit.errors import NotFoundError, UsageError, suggestion
from datakit.pipeline.fate.behind import Finished
from datakit.pipeline.graph import LocatedStep, build, check_workers, engine_step
from datakit.pipeline.lazy_executor import LazyExecutor
from datakit.pipeline.resolve_sources import ListingOptions
from datakit.pipeline.rule_effects.effects import Effects, SampleOptions, effects_of
from datakit.recipe import Recipe
from datakit.rules import stage as rules
from datakit.storage import urls
from datakit.storage.latest import current_cache
from datakit.storage.manifest import Manifest
from datakit.storage.stale_files import scratch_directory


def preview(
    recipe: Recipe, root: str, options: SampleOptions, *, workers: int | None = None, offline: bool = False
) -> Effects:
    """Return what the rules of a recipe would do. Raises UsageError if the recipe has no rules, NotFoundError if its
    texts are not normalized and annotated yet, and what a run of the stage raises.
    """
    check_workers(workers)
    root = urls.absolute(root)
    if not recipe.rules:
        raise UsageError(f"{recipe.place} has no rules; add [[rules]] tables to it (docs/rules.md)")
    names = [rule["name"] for rule in recipe.rules]
    if options.rule and options.rule not in names:
        raise UsageError(f"no rule {options.rule!r}; {suggestion(options.rule, names)}")
    graph = build(recipe, root, ListingOptions(offline=offline, dry_run=True), rules.NAME)
    located: dict[str, LocatedStep] = {}
    for node in graph.nodes:
        located[node.label] = graph.locate(node, located)
    last = next(one for one in located.values() if one.node.stage == rules.NAME)
    for above in last.node.upstream:
        if located[above.label].manifest is None:
            raise NotFoundError(
                f"{above.label} is not finished in {root}; run `datakit run {recipe.place} --root {root} --until "
                f"{above.stage}` first"
            )
    normalized = {
        str(above.source): _finished(located[above.label]) for above in last.node.upstream if above.stage == "normalize"
    }
    executor = LazyExecutor(workers, None, root)
    with scratch_directory() as folder:
        step = replace(engine_step(last, located), directory=str(folder))
        try:
            manifest = run_step(step, rules.plan(step, all_may_leave=True), executor.get, Observer())
        finally:
            executor.close()
        found = effects_of(Finished(str(folder), manifest), normalized, _cache(root, graph.dataset), options)
    return replace(found, step="")


def _finished(step: LocatedStep) -> Finished:
    assert step.manifest is not None
    return Finished(step.directory, step.manifest)


def _cache(root: str, dataset: str) -> Manifest | None:
    found = current_cache(urls.join(root, dataset))
    return found[1] if found is not None else None
