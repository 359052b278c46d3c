"""Decides how a run ends in which steps have failed, have ended as partial or could not run.

The rules, in this order; "made" means finished by this run, and not read, directly or indirectly, by a failed step:

1. If the user must act on every failure (an input, a setting or a limit: InputError), running again would change
   nothing. The run ends with this error, or with one error that names all of them (exit code 2).
2. If a step is partial or another step was made, the run ends as partial (exit code 3). The message holds the whole
   message of every failed step, and names the steps that were not run.
3. Otherwise the run ends with the error of its failed step (exit code 1).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

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
    """The steps of a run that have failed. nodes: those of all steps, in the order in which messages name them; it does
    not matter in which order the steps ended.
    """

    def __init__(self, dataset: str, nodes: Sequence[Node]) -> None:
        self._dataset, self._nodes = dataset, nodes
        self._errors: dict[str, DatakitError] = {}  # by label

    @property
    def failed(self) -> Collection[str]:
        """The labels of the failed steps."""
        return self._errors.keys()

    def fail(self, node: Node, error: DatakitError) -> None:
        """Add a step that has ended with an error."""
        self._errors[node.label] = error

    def raise_error(self, made: Sequence[Node], done: Collection[str]) -> None:
        """Raise the error with which the run ends. Return if no step has failed. made: the steps that this run has
        finished. done: the labels of all finished steps.
        """
        if not self._errors:
            return
        failed = [(node, self._errors[node.label]) for node in self._nodes if node.label in self._errors]
        errors = [error for _, error in failed]
        if all(isinstance(error, RefusedError) for error in errors):
            refuse_all(_refusals(failed))
        if all(isinstance(error, InputError) for error in errors):
            raise errors[0] if len(errors) == 1 else InputError(self._text("failed", done))
        needed = {label for node, _ in failed for label in _above(node)}
        some = any(isinstance(error, PartialError) for error in errors) or any(one.label not in needed for one in made)
        if some:
            raise PartialError(self._text("is partial", done)) from errors[0]
        if len(errors) == 1:
            raise errors[0]
        raise StepFailedError(self._text(f"has {counted(len(errors), 'failed step')}", done)) from errors[0]

    def _text(self, state: str, done: Collection[str]) -> str:
        reasons = (self._reason(node, done) for node in self._nodes if node.label not in done)
        return "\n".join([f"{self._dataset} {state}", *filter(None, reasons)])

    def _reason(self, node: Node, done: Collection[str]) -> str:
        """Return why a step has no output, in words that name the step."""
        error = self._errors.get(node.label)
        if error is not None:
            return str(error) if isinstance(error, PartialError) else f"{node.label}: {error}"
        missing = [above.label for above in node.upstream if above.label not in done]
        return f"{node.label}: not run: it needs {', '.join(missing)}" if missing else ""


def _refusals(failed: Sequence[tuple[Node, DatakitError]]) -> list[RefusedError]:
    refused = [(node, error) for node, error in failed if isinstance(error, RefusedError)]
    return [error if len(refused) == 1 else _of_source(node, error) for node, error in refused]


def _of_source(node: Node, error: RefusedError) -> RefusedError:
    """Return an error like `error`, but with the name of the source in every message, because files of two sources may
    share a name.
    """
    named = [text if text.startswith("source ") else f"{node.source}: {text}" for text in messages_of([error])]
    return RefusedInputsError(named, getattr(error, "listed", ""))


def _above(node: Node) -> Iterator[str]:
    """Yield the labels of a step and of all steps that it reads, directly or indirectly."""
    yield node.label
    for above in node.upstream:
        yield from _above(above)
