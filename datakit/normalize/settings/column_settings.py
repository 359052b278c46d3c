"""Checks the settings that choose, rename and reconcile the columns of a source."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from datakit.errors import RecipeError, suggestion

RESERVED = ("id", "text", "source", "source_id", "edited_id")  # the columns that datakit itself writes
# Between the name of a column and the kind of its values, where values of several kinds are carried apart
# (columns/conflicts.py). No name of a column in a real file contains this character, the ASCII unit separator.
KIND_MARK = "\x1f"
ERROR, STRING, DROP, NULL = POLICIES = ("error", "string", "drop", "null")


def check_columns(
    text: str | None, id: str, keep: Sequence[str], drop: Sequence[str], rename: Mapping[str, str]
) -> None:
    """Raise RecipeError, which names the column, if the settings contradict each other. text: the column that becomes
    the text, or None.
    """
    both = next((name for name in keep if name in drop), None)
    if both is not None:
        raise RecipeError(f"keep and drop: both name the column {both!r}; remove it from one of them")
    for old, new in rename.items():
        reason = _rename_mistake(old, new, text, id)
        if reason is None and (old in drop or (keep and old not in keep)):
            reason = f"{old!r} is left out by `{'drop' if old in drop else 'keep'}`"
        if reason is not None:
            raise RecipeError(f"rename: {reason}")
    for new in _repeated(rename.values()):
        raise RecipeError(f"rename: two columns would be named {new!r}; choose another name for one of them")


def _rename_mistake(old: str, new: str, text: str | None, id: str) -> str | None:
    if new in RESERVED or not new:
        return f"{old!r} cannot be named {new!r}, because datakit itself writes the columns {', '.join(RESERVED)}"
    if old == text:
        return f"{old!r} is the text column, which is named 'text'"
    if old == id:
        return f"{old!r} is the id column, which is named 'source_id'; set the source's `id` to another column"
    return None


def _repeated(names: Iterable[str]) -> Iterator[str]:
    seen = set[str]()
    for name in names:
        if name in seen:
            yield name
        seen.add(name)


def strict_columns(conflicts: Mapping[str, str]) -> frozenset[str]:
    """Return the columns in which values must not become strings for the sake of others."""
    return frozenset(name for name, policy in conflicts.items() if policy == ERROR)


def base_name(name: str) -> str:
    """Return the name of a column without the kind that may be marked in it."""
    return name.partition(KIND_MARK)[0]


def check_conflicts(conflicts: Mapping[str, str], texts: Collection[str], id: str) -> None:
    """Raise RecipeError if a policy is unknown, or names the id column or one of the columns that make the text."""
    for name, policy in conflicts.items():
        if policy not in POLICIES:
            raise RecipeError(
                f"conflicts: the policy {policy!r} of {name!r} is unknown; {suggestion(policy, POLICIES)}"
            )
        if name == id or (name in texts and policy != ERROR):
            what = "the id column" if name == id else "read by `text`"
            raise RecipeError(f"conflicts: {name!r} is {what}, so it can have no policy of its own; remove the entry")
