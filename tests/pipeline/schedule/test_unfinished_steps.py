"""The failed steps, and the steps that finished besides them, decide how a run ends."""

from __future__ import annotations

import pytest

from datakit.dedup import stage as dedup
from datakit.dedup.minhash import signatures_stage as signatures
from datakit.download import stage as download
from datakit.errors import (
    CorruptError,
    DatakitError,
    InputError,
    PartialError,
    RefusedInputsError,
    StepFailedError,
    UnreadableError,
)
from datakit.normalize import stage as normalize
from datakit.pipeline.configuration.settings import Settings
from datakit.pipeline.graph import Node
from datakit.pipeline.schedule.unfinished_steps import UnfinishedSteps

NOTHING = Settings({}, {})
DOWNLOAD = {name: Node(download, name, name, NOTHING) for name in "ab"}
NORMALIZE = {name: Node(normalize, name, name, NOTHING, (DOWNLOAD[name],)) for name in "ab"}
SIGNATURES = {name: Node(signatures, name, name, NOTHING, (NORMALIZE[name],)) for name in "ab"}
DEDUP = Node(dedup, None, "all", NOTHING, (*NORMALIZE.values(), *SIGNATURES.values()))
MADE_OF_A = [DOWNLOAD["a"], NORMALIZE["a"], SIGNATURES["a"]]
EVERYTHING = [*MADE_OF_A, DOWNLOAD["b"], NORMALIZE["b"], SIGNATURES["b"]]
NODES = [*EVERYTHING, DEDUP]


@pytest.mark.parametrize(
    ("failures", "made", "kind", "code"),
    [
        ([(NORMALIZE["b"], StepFailedError("boom"))], [], StepFailedError, 1),
        ([(NORMALIZE["b"], StepFailedError("boom"))], [DOWNLOAD["b"]], StepFailedError, 1),
        ([(NORMALIZE["b"], StepFailedError("boom"))], [*MADE_OF_A, DOWNLOAD["b"]], PartialError, 3),
        ([(DEDUP, StepFailedError("boom"))], EVERYTHING, StepFailedError, 1),
        ([(NORMALIZE["b"], CorruptError("boom"))], MADE_OF_A, PartialError, 3),
        ([(NORMALIZE["b"], CorruptError("boom"))], [], CorruptError, 1),
        ([(NORMALIZE["b"], PartialError("boom"))], [], PartialError, 3),
        ([(NORMALIZE["b"], UnreadableError("boom"))], MADE_OF_A, UnreadableError, 2),
        ([(NORMALIZE[name], UnreadableError("boom")) for name in "ab"], [], RefusedInputsError, 2),
        ([(NORMALIZE["b"], InputError("boom"))], MADE_OF_A, InputError, 2),
        ([(NORMALIZE["a"], UnreadableError("x")), (NORMALIZE["b"], InputError("boom"))], [], InputError, 2),
        ([(NORMALIZE["a"], UnreadableError("x")), (NORMALIZE["b"], StepFailedError("boom"))], [], StepFailedError, 1),
        ([(NORMALIZE[name], StepFailedError("boom")) for name in "ab"], list(DOWNLOAD.values()), StepFailedError, 1),
    ],
)
def test_ending(
    failures: list[tuple[Node, DatakitError]], made: list[Node], kind: type[DatakitError], code: int
) -> None:
    unfinished = UnfinishedSteps("all", NODES)
    for node, error in failures:
        unfinished.fail(node, error)
    with pytest.raises(kind) as raised:
        unfinished.raise_error(made, {node.label for node in made})
    assert type(raised.value) is kind and raised.value.exit_code == code and "boom" in str(raised.value)
    assert kind is not PartialError or "signatures b: not run: it needs normalize b" in str(raised.value)


def test_complete_run_raises_nothing() -> None:
    UnfinishedSteps("all", NODES).raise_error(NODES, {node.label for node in NODES})


@pytest.mark.parametrize("error", [UnreadableError, StepFailedError, InputError])
def test_message_does_not_depend_on_which_step_failed_first(error: type[DatakitError]) -> None:
    messages: list[str] = []
    for names in ("ab", "ba"):
        unfinished = UnfinishedSteps("all", NODES)
        for name in names:
            unfinished.fail(NORMALIZE[name], error(f"boom {name}"))
        with pytest.raises(DatakitError) as raised:
            unfinished.raise_error([], {node.label for node in DOWNLOAD.values()})
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


def test_message_names_everything_that_a_step_needs_whenever_it_failed() -> None:
    unfinished = UnfinishedSteps("all", NODES)
    for name in "ab":
        unfinished.fail(NORMALIZE[name], StepFailedError(f"boom {name}"))
    with pytest.raises(StepFailedError) as raised:
        unfinished.raise_error([], {node.label for node in DOWNLOAD.values()})
    assert str(raised.value).splitlines() == [
        "all has 2 failed steps",
        "normalize a: boom a",
        "signatures a: not run: it needs normalize a",
        "normalize b: boom b",
        "signatures b: not run: it needs normalize b",
        "dedup: not run: it needs normalize a, normalize b, signatures a, signatures b",
    ]
