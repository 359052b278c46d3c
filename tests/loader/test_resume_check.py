"""A resumed run with a different past is refused; deliberate later changes are reported."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from datakit.errors import MixtureChangedError
from datakit.loader import Component, Loader, Mixture, Schedule, Shuffle, SimulatedEpochs, Stage
from tests.support.loader.mixtures import BLOCKS_OF_64, EVEN, plain_and_packed
from tests.support.loader.sources import counting


def replaced(name: str, component: Component) -> dict[str, Any]:
    return {"components": {**plain_and_packed().components, name: component}}


def record_of(made: Mixture) -> dict[str, Any]:
    with Loader(made) as loader:
        return json.loads(json.dumps(loader.record()))  # as in a checkpoint


def test_equal_mixtures_have_equal_records() -> None:
    assert record_of(plain_and_packed()) == record_of(plain_and_packed())
    with Loader(plain_and_packed()) as loader:
        assert loader.verify(record_of(plain_and_packed()), 10**6) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"block": 16}, "block: 8 -> 16"),
        ({"stages": {"web": 2.0, "code": 1.0}}, r"stages until slot 400: .*'web': 1.0.* -> .*'web': 2.0"),
        ({"sequence_length": 20}, r"sequence_length until step 100: \[\[0, 10\]\] -> \[\[0, 20\]\]"),
        ({"batch_size": Schedule(((0, 4), (99, 8)))}, "batch_size until step 100"),
        ({"stages": [Stage(EVEN), Stage({"web": 1}, start_slot=399)]}, "stages until slot 400"),
        ({"simulate": SimulatedEpochs(1, 2)}, "simulate: None"),
        ({"stop": "first_exhausted"}, "the run ends after .* sequences, but 400 were read"),
        (replaced("code", Component(counting([9] * 51))), "component 'code', identity: "),
        (replaced("code", Component(counting([9] * 50))), "packing: split -> None"),
        (
            replaced("web", Component(counting([10] * 100), shuffle=Shuffle(block_tokens=64, window_blocks=2))),
            r"'web', window_blocks: 16 -> 2 \(derived from memory_bytes",
        ),
    ],
)
def test_different_past_is_refused_with_the_difference(change: dict[str, Any], words: str) -> None:
    with Loader(plain_and_packed(**change)) as loader, pytest.raises(MixtureChangedError, match=words) as refused:
        loader.verify(record_of(plain_and_packed()), 100)
    assert "add a stage that starts at this step" in str(refused.value)


def test_later_changes_are_allowed_and_reported() -> None:
    """Mid-training: new weights, a new component, another length and batch size, all from step 100 on."""
    components = {**plain_and_packed().components, "math": Component(counting([8] * 90), shuffle=BLOCKS_OF_64)}
    changed = plain_and_packed(
        components=components,
        stages=[Stage(EVEN), Stage({"math": 1.0, "web": 1.0}, start_step=100)],
        sequence_length=Schedule(((0, 10), (100, 40))),
        batch_size=Schedule(((0, 4), (120, 8))),
    )
    with Loader(plain_and_packed()) as before, Loader(changed) as after:
        changes = after.verify(before.record(), 100)
        assert all(np.array_equal(before[step].tokens, after[step].tokens) for step in range(90, 100))
        assert after[100].tokens.shape == (4, 40)
    assert len(changes) == 4
    assert any("'math': 1.0" in change for change in changes)
    assert "component 'math' is new" in changes


def test_run_that_ended_can_be_extended() -> None:
    """`max_epochs`, `stop` and `final_batch` decide only where a run ends, so its batches stay the same."""

    def limited(epochs: int | None, **changes: Any) -> Mixture:
        components = {"web": Component(counting([10] * 101), shuffle=BLOCKS_OF_64, max_epochs=epochs)}
        return Mixture(components, {"web": 1.0}, sequence_length=10, batch_size=4, **changes)

    with Loader(limited(1)) as before, Loader(limited(2, final_batch="pad")) as after:
        steps = len(before)
        assert len(after) > 2 * steps
        changes = after.verify(before.record(), steps)
        assert changes == ["final_batch: drop -> pad", "component 'web', max_epochs: 1 -> 2"]
        assert all(np.array_equal(before[step].tokens, after[step].tokens) for step in range(steps))
    padded = limited(1, final_batch="pad")
    with Loader(padded) as before, Loader(limited(2)) as after:
        assert after.verify(before.record(), len(before) - 1)
        with pytest.raises(MixtureChangedError, match="the run ended with a padded batch after 110 sequences -> 220"):
            after.verify(before.record(), len(before))
        with pytest.raises(MixtureChangedError, match="the run ends after 110 sequences, but 116 were read"):
            before.verify(after.record(), 29)


def test_records_of_earlier_versions_are_checked_strictly() -> None:
    """They do not say where the run ended, so a change of its end may have changed the last batch."""
    old = record_of(plain_and_packed())
    del old["slots"]
    with Loader(plain_and_packed()) as loader:
        assert loader.verify(old, 100) == []
    with Loader(plain_and_packed(stop="first_exhausted")) as loader, pytest.raises(MixtureChangedError, match="stop: "):
        loader.verify(old, 10)


def test_record_of_another_format_is_refused() -> None:
    with Loader(plain_and_packed()) as loader, pytest.raises(MixtureChangedError, match="format None"):
        loader.verify({}, 0)
