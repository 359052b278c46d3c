"""Decides how a run ends if steps have failed, have ended as partial, or could not run.

The rules, in this order:

1. If only the user can fix the failures (all are InputError: an input, a setting or a limit), running again would not
   help. The run ends with this error or, if there are several, with one error that names all of them (exit code 2).
2. If a step is partial, or if this run has finished a step that no failed step reads, directly or indirectly, the run
   ends as partial (exit code 3). The error contains the whole message of every failed step and names the steps that
   were not run.
3. Otherwise, the run ends with the error of its failed step (exit code 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from datakit.errors import (
    DatakitError,
    InputError,
    PartialError,
    RefusedError,
    RefusedInputsError,
    StepFailedError,
    counted,
    messages_of,
    refuse_all,
)
from datakit.pipeline.graph import Node


class UnfinishedSteps:
    """The steps of a run that have no manifest, each with the reason."""

    def __init__(self, dataset: str, labels: Iterable[str]) -> None:
        """labels: the labels of all steps, in the order in which messages name them."""
        self._dataset = dataset
        self._place = {label: place for place, label in enumerate(labels)}
        self._failed: list[tuple[Node, DatakitError]] = []
        self._reasons: dict[str, str] = {}  # label -> a message that names the step

    def __contains__(self, label: str) -> bool:
        return label in self._reasons

    def fail(self, node: Node, error: DatakitError) -> None:
        """Add a step that has ended with an error."""
        self._failed.append((node, error))
        self._reasons[node.label] = str(error) if isinstance(error, PartialError) else f"{node.label}: {error}"

    def skip(self, node: Node, missing: Iterable[Node]) -> None:
        """Add a step that cannot run without the steps `missing`."""
        self._reasons[node.label] = f"{node.label}: not run: it needs {', '.join(above.label for above in missing)}"

    def raise_error(self, made: Sequence[Node]) -> None:
        """Raise the error with which the run ends. Do nothing if no step has failed. made: the steps that this run has
        finished.
        """
        if not self._failed:
            return
        self._failed.sort(key=lambda failed: self._place[failed[0].label])
        errors = [error for _, error in self._failed]
        if all(isinstance(error, RefusedError) for error in errors):
            refuse_all(self._refusals())
        if all(isinstance(error, InputError) for error in errors):
            raise errors[0] if len(errors) == 1 else InputError(self._text("failed"))
        needed = {label for node, _ in self._failed for label in _above(node)}
        some = any(isinstance(error, PartialError) for error in errors) or any(one.label not in needed for one in made)
        if some:
            raise PartialError(self._text("is partial")) from errors[0]
        if len(errors) == 1:
            raise errors[0]
        raise StepFailedError(self._text(f"has {counted(len(errors), 'failed step')}")) from errors[0]

    def _text(self, state: str) -> str:
        reasons = sorted(self._reasons.items(), key=lambda reason: self._place[reason[0]])
        return "\n".join([f"{self._dataset} {state}", *(text for _, text in reasons)])

    def _refusals(self) -> list[RefusedError]:
        refused = [(node, error) for node, error in self._failed if isinstance(error, RefusedError)]
        return [error if len(refused) == 1 else _of_source(node, error) for node, error in refused]


def _of_source(node: Node, error: RefusedError) -> RefusedError:
    """Return an error like `error` with the name of the source in every message, because files of two sources may have
    the same name.
    """
    named = [text if text.startswith("source ") else f"{node.source}: {text}" for text in messages_of([error])]
    return RefusedInputsError(named, getattr(error, "listed", ""))


def _above(node: Node) -> Iterator[str]:
    """Yield the labels of a step and of all steps that it reads, directly or indirectly."""
    yield node.label
    for above in node.upstream:
        yield from _above(above)
