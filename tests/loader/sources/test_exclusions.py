"""Excluded documents keep their places and do not count; every other place of every batch is unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datakit.cache.reader import open_cache
from datakit.errors import LoaderError, MixtureChangedError
from datakit.loader import ArraySource, CacheSource, Component, Exclusion, Loader, Mixture, Packing, Schedule, Shuffle
from datakit.loader.mixture.config import SimulatedEpochs
from datakit.validate.training.batches import mixture_of
from tests.support.loader.mixture_files import cache
from tests.support.loader.sources import random_lengths

__all__ = ["cache"]  # a fixture


class Named(ArraySource):
    """Ascending tokens in documents whose ids are `<name>-<number>`."""

    def __init__(self, name: str, lengths: Sequence[int], masks: bool = False) -> None:
        total = sum(lengths)
        tokens = np.arange(total, dtype=np.uint32) + sum(name.encode())  # so that no two sources are equal
        super().__init__(tokens, lengths, np.arange(total) % 3 > 0 if masks else None)
        self.ends = np.cumsum(lengths)
        self.lengths, self.name = lengths, name

    def spans_of(self, identity: str) -> list[tuple[int, int]]:
        name, _, number = identity.rpartition("-")
        if name != self.name or int(number) >= len(self.lengths):
            return []
        end = int(self.ends[int(number)])
        return [(end - self.lengths[int(number)], end)]


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    """Plain, packed and fully shuffled components, with and without masks and held-out documents, at two lengths."""
    kinds = draw(
        st.permutations([(None, "block"), (Packing(), "block"), (None, "full"), (Packing("truncate"), "none")])
    )
    components = {}
    for i, (packing, kind) in enumerate(kinds[:3]):
        source = Named(
            f"c{i}",
            random_lengths(draw(st.integers(0, 99)), 30, draw(st.sampled_from([40, 150]))),
            masks=draw(st.booleans()),
        )
        shuffle = Shuffle(kind, 64, 2 if kind == "block" else None)
        held = draw(st.sampled_from([0, 60]))
        components[f"c{i}"] = Component(source, packing=packing, shuffle=shuffle, validation_tokens=held)
    lengths = Schedule(((0, draw(st.integers(5, 40))), (6, draw(st.integers(5, 40)))))
    return Mixture(
        components,
        dict.fromkeys(components, 1.0),
        seed=draw(st.integers(0, 99)),
        sequence_length=lengths,
        batch_size=4,
        block=8,
        memory_bytes=1 << 16,
        simulate=draw(st.sampled_from([None, SimulatedEpochs(2, 3)])),
    )


@given(mixtures(), st.integers(0, 9), st.sampled_from([1, 2, 4]), st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_only_the_loss_mask_of_excluded_documents_changes(mixture: Mixture, start: int, hosts: int, seed: int) -> None:
    with Loader(mixture) as loader:
        before = [(loader[step], loader.places(step)) for step in range(12)]
    read = sorted({(part.component, part.document) for _, parts in before for part in parts})
    chosen = {read[i] for i in np.random.default_rng(seed).integers(0, len(read), 5)}
    exclusion = Exclusion([_name(mixture, *one) for one in sorted(chosen)], start)
    changed = replace(mixture, exclusions=[exclusion])
    loaders = [Loader(changed, host=host, hosts=hosts, in_flight=2) for host in range(hosts)]
    for (whole, parts), *own in zip(before, *(one.iterate(0, 12) for one in loaders), strict=True):
        expected = whole.loss_mask.copy()
        for part in parts:
            excluded = whole.step >= start and (part.component, part.document) in chosen
            expected[part.row, part.start : part.stop] &= not excluded
        assert np.array_equal(np.concatenate([batch.loss_mask for batch in own]), expected)
        assert np.array_equal(np.concatenate([batch.tokens for batch in own]), whole.tokens)
        assert np.array_equal(np.concatenate([batch.segments for batch in own]), whole.segments)
    for loader in loaders:
        loader.close()


@given(mixtures())
@settings(max_examples=10, deadline=None)
def test_places_lead_to_the_tokens_of_the_batch(mixture: Mixture) -> None:
    with Loader(mixture) as loader:
        for step in range(0, 12, 3):
            batch, covered = loader[step], np.zeros(loader[step].shape, np.int32)
            numbers: dict[int, int] = {}
            for part in loader.places(step):
                columns = slice(part.start, part.stop)
                source = mixture.components[part.component].source
                tokens = source.read(part.position, part.position + part.stop - part.start)
                assert np.array_equal(batch.tokens[part.row, columns], tokens)
                assert source.document_borders(part.position, part.position + 1).tolist() == list(part.document)
                numbers[part.row] = numbers.get(part.row, 0) + 1
                covered[part.row, columns] = numbers[part.row]
            assert np.array_equal(covered, batch.segments)


def test_exclusions_are_part_of_the_fingerprint_and_only_later_ones_may_be_added() -> None:
    mixture = _small()
    without = replace(mixture, exclusions=[Exclusion(["web-3", "web-1"], 5)])
    split = replace(mixture, exclusions=[Exclusion(["web-1"], 5), Exclusion(["web-3"], 5)])
    records = [Loader(one).record() for one in (mixture, without, split)]
    assert "exclusions" not in records[0]
    assert records[1]["exclusions"] == [[5, ["web-1", "web-3"]]]
    assert records[0]["fingerprint"] != records[1]["fingerprint"] == records[2]["fingerprint"]
    with Loader(without) as loader:
        assert loader.verify(records[0], 5) == ["exclusions: [] -> [[5, ['web-1', 'web-3']]]"]
        with pytest.raises(MixtureChangedError, match="exclusions until step 6"):
            loader.verify(records[0], 6)
    with Loader(mixture) as loader, pytest.raises(MixtureChangedError, match="exclusions until step 9"):
        loader.verify(records[1], 9)


@pytest.mark.parametrize(
    ("exclusions", "message"),
    [
        ([Exclusion(["web-1"], -1)], "start_step is -1"),
        ([Exclusion([], 3)], "the list of documents from step 3 on is empty"),
        ([Exclusion(["web-1"], 3), Exclusion(["web-1"], 4)], "document web-1 is listed from step 3 on and again"),
        ([Exclusion(["web-99"])], "no component's cache holds document web-99"),
        ([Exclusion(["code-2"])], "document code-2 is never trained on .*because it is too long"),
        ([Exclusion(["held-19"])], "document held-19 is never trained on .*because of validation_tokens"),
        ([Exclusion(["web-4"])], "document web-4 is never trained on .*it has no tokens"),
    ],
)
def test_an_exclusion_without_effect_is_refused(exclusions: list[Exclusion], message: str) -> None:
    with pytest.raises(LoaderError, match=message), Loader(replace(_small(), exclusions=exclusions)):
        pass


def test_a_document_of_a_cache_is_found_by_its_id_and_survives_the_description(cache: Path) -> None:
    opened = open_cache(str(cache))
    mixture = Mixture(
        {name: Component(CacheSource(opened, name), validation_tokens=500) for name in ("code", "web")},
        {"code": 0.5, "web": 0.5},
        sequence_length=32,
        batch_size=8,
    )
    with Loader(mixture) as loader:
        before, part = loader[3], loader.places(3)[5]
    source = mixture.components[part.component].source
    assert isinstance(source, CacheSource)
    identity = opened[opened.row_at(source.start + part.position)].id
    without = replace(mixture, exclusions=[Exclusion([identity], 3)])
    with Loader(without) as loader:
        batch, record = loader[3], loader.record()
        assert loader.places(3)[5] == replace(part, excluded=True)
    assert not batch.loss_mask[part.row, part.start : part.stop].any()
    assert batch.loss_mask.sum() < before.loss_mask.sum()
    with Loader(mixture_of(record, [opened])) as again:
        assert again.record()["fingerprint"] == record["fingerprint"]


def _name(mixture: Mixture, component: str, document: tuple[int, int]) -> str:
    source = mixture.components[component].source
    assert isinstance(source, Named)
    return f"{component}-{int(np.flatnonzero(source.ends == document[1])[0])}"


def _small() -> Mixture:
    sources = {"web": Named("web", [9, 9, 9, 9, 0, 9] * 5), "code": Named("code", [9, 9, 30] * 9)}
    components = {
        "web": Component(sources["web"]),
        "code": Component(sources["code"], packing=Packing("drop")),
        "held": Component(Named("held", [20] * 20), validation_tokens=20),
    }
    return Mixture(components, dict.fromkeys(components, 1.0), sequence_length=10, batch_size=4)
