"""datakit turns raw text into deduplicated, tokenized caches, shard by shard, in isolated worker processes.

    import datakit

    result = datakit.run("recipe.toml", root="./data")
    cache = datakit.open_cache(result.cache)
    cache.read(0, 4096)

Importing this package is cheap, because each public name is imported only when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datakit.annotate.user.declaration import annotator
    from datakit.api import diff, inspect, ls, plan, run, status, why
    from datakit.cache.reader import open_cache
    from datakit.errors import DatakitError
    from datakit.pipeline.planning import RunPlan
    from datakit.pipeline.running import RunResult
    from datakit.recipe import Recipe, load_recipe
    from datakit.text.spans import SPANS

__all__ = [
    "SPANS",
    "DatakitError",
    "Recipe",
    "RunPlan",
    "RunResult",
    "annotator",
    "diff",
    "inspect",
    "load_recipe",
    "ls",
    "open_cache",
    "plan",
    "run",
    "status",
    "why",
]
_MODULES = {
    "SPANS": "datakit.text.spans",
    "DatakitError": "datakit.errors",
    "Recipe": "datakit.recipe",
    "RunPlan": "datakit.pipeline.planning",
    "RunResult": "datakit.pipeline.running",
    "annotator": "datakit.annotate.user.declaration",
    "load_recipe": "datakit.recipe",
    "open_cache": "datakit.cache.reader",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(_MODULES.get(name, "datakit.api")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
