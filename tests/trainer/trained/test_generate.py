"""Generation follows the model's own distribution, stops where it should, and repeats for a seed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import ArrayLike

from datakit.cache.contract import Contract, Special
from datakit.errors import UsageError
from datakit.trainer.models import KIND, dense, grug, latent_moe, olmoe
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.weights import initialize
from datakit.trainer.trained.generate import BUCKET, Sampling, TextStream, framed_prompt, generate
from tests.support.trainer.small_models import FAMILY, SMALL

VOCABULARY = 90  # of the tokenizer; both models have 97 ids
CONTRACT = Contract("0", "none", VOCABULARY, None, None, [])
SIZES: dict[str, Any] = {"vocabulary": 97, "hidden": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_width": 8}
SIZES |= {"compute": "float32", "remat": "none", "init_std": 0.3}
LATENT = latent_moe.Config(
    **SIZES, latent=16, experts=8, experts_per_token=2, expert_width=12, shared_width=16, moe_backend="dense"
)
MODELS: dict[str, tuple[Any, Any]] = {
    "olmoe": (olmoe, FAMILY),
    "grug": (grug, SMALL),
    "latent_moe": (latent_moe, LATENT),
    "dense": (dense, dense.Config(**SIZES, width=24, tied_embeddings=True)),
}
WINDOWS: dict[str, tuple[Any, Any]] = {
    "dense with a window": (dense, dense.Config(**SIZES, width=24, window=5)),
    "olmoe with dense layers": (olmoe, dataclasses.replace(FAMILY, layers=4, dense_layers=(0, 2), dense_width=24)),
    "grug with a window": (grug, dataclasses.replace(SMALL, window=6)),
}
PROMPT = [5, 17, 3, 88]


def made(
    model: Any, config: Any, sampling: Sampling, prompt: Sequence[int] = PROMPT, contract: Contract = CONTRACT
) -> list[int]:
    params = initialize(model.weights(config), jax.random.key(3))
    return list(generate(model, config, params, model.initial_state(config), prompt, sampling, contract))


def whole_rows(rows: Any) -> Tokens:
    """A batch of rows without padding."""
    tokens = jnp.asarray(rows, jnp.int32)
    return Tokens(tokens, jnp.ones_like(tokens), jnp.ones(tokens.shape, bool))


def all_logits(model: Any, config: Any, rows: Any) -> np.ndarray:
    """The logits at every position."""
    params, batch = initialize(model.weights(config), jax.random.key(3)), whole_rows(rows)
    positions = jnp.tile(jnp.arange(batch.tokens.shape[1]), (batch.tokens.shape[0], 1))
    state = model.initial_state(config)
    return np.asarray(jax.jit(lambda: model.logits(params, state, batch, config, positions))())


@pytest.mark.parametrize(("model", "config"), MODELS.values(), ids=[*MODELS])
def test_greedy_tokens_are_the_likeliest_of_a_plain_forward_pass(model: Any, config: Any) -> None:
    """The oracle applies the model once to the finished row, without padding."""
    found = made(model, config, Sampling(tokens=5, temperature=0.0))
    scores = all_logits(model, config, [[*PROMPT, *found[:-1]]])
    assert found == np.argmax(scores[0, len(PROMPT) - 1 :, :VOCABULARY], axis=1).tolist()


@pytest.mark.parametrize(("model", "config"), MODELS.values(), ids=[*MODELS])
def test_logits_are_those_behind_the_loss(model: Any, config: Any) -> None:
    tokens = np.random.default_rng(0).integers(0, 97, (1, 8))
    scores = np.asarray(jax.nn.log_softmax(all_logits(model, config, tokens)))
    params = initialize(model.weights(config), jax.random.key(3))
    state, batch = model.initial_state(config), whole_rows(tokens)
    losses = jax.jit(lambda: model.apply(params, state, batch, config).losses)()
    expected = -np.take_along_axis(scores[:, :-1], tokens[:, 1:, None], 2)[:, :, 0]
    np.testing.assert_allclose(losses[:, :-1], expected, atol=2e-5)


def without_past(model: Any) -> Any:
    """A model file that lacks the functions `no_past` and `extend`."""
    return SimpleNamespace(logits=model.logits, weights=model.weights, initial_state=model.initial_state)


@pytest.mark.parametrize(("model", "config"), [*MODELS.values(), *WINDOWS.values()], ids=[*MODELS, *WINDOWS])
def test_tokens_are_the_same_if_earlier_positions_are_kept(model: Any, config: Any) -> None:
    """The prompt and the tokens after it are longer than a bucket each."""
    prompt = np.random.default_rng(1).integers(0, VOCABULARY, BUCKET + 7).tolist()
    sampling = Sampling(tokens=BUCKET + 3, temperature=0.0)
    found = made(model, config, sampling, prompt)
    assert found == made(without_past(model), config, sampling, prompt) and len({*found}) > 3
    drawn = Sampling(tokens=10, temperature=0.8, top_k=20, seed=4)
    assert made(model, config, drawn) == made(without_past(model), config, drawn)


@pytest.mark.parametrize(("model", "config"), [*MODELS.values(), *WINDOWS.values()], ids=[*MODELS, *WINDOWS])
def test_logits_after_a_past_are_those_of_the_whole_row(model: Any, config: Any) -> None:
    """The first part has three positions and two of padding; the second has two."""
    row = np.random.default_rng(2).integers(0, 97, (1, 5))
    params, state = initialize(model.weights(config), jax.random.key(3)), model.initial_state(config)
    padded = Tokens(jnp.asarray([[*row[0, :3], 96, 96]]), jnp.asarray([[1, 1, 1, 0, 0]]), jnp.ones((1, 5), bool))
    places = jnp.asarray([[0, 1, 2]])
    first, past = jax.jit(lambda: model.extend(params, state, padded, config, places, model.no_past(config, 9)))()
    second, _ = jax.jit(lambda: model.extend(params, state, whole_rows(row[:, 3:]), config, places[:, :2], past))()
    expected = all_logits(model, config, row)
    np.testing.assert_allclose(np.concatenate([first, second], axis=1), expected, atol=2e-5 * np.abs(expected).max())


def test_a_token_costs_its_own_position() -> None:
    shapes = Counter[Any]()

    def extend(*arguments: Any) -> Any:
        shapes[arguments[2].tokens.shape] += 1
        return dense.extend(*arguments)

    model = SimpleNamespace(**{**vars(dense), "extend": extend})
    assert len(made(model, MODELS["dense"][1], Sampling(tokens=12))) == 12
    assert shapes == {(1, BUCKET): 1, (1, 1): 1}


def test_generation_drops_no_assignments() -> None:
    """The row is no whole block of a capacity, so that a limit would be refused."""
    sampling = Sampling(tokens=3, temperature=0.0)
    assert made(grug, dataclasses.replace(SMALL, capacity_factor=0.5), sampling) == made(grug, SMALL, sampling)


def test_every_built_in_model_generates() -> None:
    assert {*MODELS} == {*KIND.built_in}


def test_the_program_is_compiled_once() -> None:
    traced = Counter[str]()

    def logits(*arguments: Any) -> Any:
        traced["logits"] += 1
        return olmoe.logits(*arguments)

    model = without_past(olmoe)
    model.logits = logits
    assert len(made(model, FAMILY, Sampling(tokens=12))) == 12
    assert traced["logits"] == 1


def fixed(scores: ArrayLike) -> Any:
    """A model whose logits are always the same."""
    row = jnp.asarray(scores, jnp.float32)
    return SimpleNamespace(logits=lambda params, state, batch, config, positions: row[None, None])


def drawn(scores: ArrayLike, sampling: Sampling, contract: Contract = CONTRACT) -> list[int]:
    config = SimpleNamespace(vocabulary=np.size(scores))
    return list(generate(fixed(scores), config, {}, {}, PROMPT, sampling, contract))


def test_tokens_follow_the_distribution_at_a_temperature() -> None:
    scores = np.log([0.5, 0.25, 0.25])
    for temperature, first in ((1.0, 0.5), (0.5, 2 / 3), (2.0, 0.414)):
        counts = Counter(drawn(scores, Sampling(tokens=2000, temperature=temperature)))
        assert counts[0] / 2000 == pytest.approx(first, abs=0.04)


def test_top_k_excludes_all_other_tokens() -> None:
    scores = [0.0, 1.0, 0.9, 0.8, -1.0]
    assert {*drawn(scores, Sampling(tokens=300, top_k=2))} == {1, 2}
    assert {*drawn(scores, Sampling(tokens=300, top_k=1))} == {1}
    assert {*drawn(scores, Sampling(tokens=300, top_k=99))} == {0, 1, 2, 3, 4}


def test_ids_that_the_tokenizer_lacks_are_never_generated() -> None:
    scores = [0.0] * VOCABULARY + [9.0] * 7
    assert max(drawn(scores, Sampling(tokens=100))) < VOCABULARY
    assert max(drawn(scores, Sampling(tokens=3, temperature=0.0))) < VOCABULARY


def test_a_seed_decides_the_text() -> None:
    scores = np.zeros(50)
    first, again, other = (drawn(scores, Sampling(tokens=BUCKET, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert len({*first}) > 10  # each position has its own key


def test_the_end_of_text_token_ends_the_text_and_is_left_out() -> None:
    contract = Contract("0", "none", VOCABULARY, None, Special("<e>", 2), [])
    found = drawn(np.zeros(4), Sampling(tokens=500), contract)
    assert len(found) < 500
    assert 2 not in found
    unbounded = drawn(np.zeros(4), Sampling(tokens=500))
    assert unbounded[: len(found)] == found
    assert unbounded[len(found)] == 2


def test_prompts_begin_as_documents_did() -> None:
    bos = Contract("0", "none", VOCABULARY, Special("<s>", 1), None, [])
    assert framed_prompt([5, 6], bos) == [1, 5, 6]
    assert framed_prompt([], bos) == [1]
    assert framed_prompt([5, 6], CONTRACT) == [5, 6]
    with pytest.raises(UsageError, match="the prompt is empty"):
        framed_prompt([], CONTRACT)


def test_a_model_without_logits_is_refused() -> None:
    model = SimpleNamespace(__file__="mine.py")
    with pytest.raises(UsageError, match=r"mine.py does not define `logits`"):
        list(generate(model, None, {}, {}, PROMPT, Sampling(), CONTRACT))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": 0}, "--tokens is 0"),
        ({"temperature": -1.0}, "--temperature is -1.0"),
        ({"temperature": float("nan")}, "--temperature is nan"),
        ({"top_k": 0}, "--top-k is 0"),
        ({"temperature": 0.0, "top_k": 5}, "--top-k has no effect at temperature 0"),
    ],
)
def test_settings_without_effect_or_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Sampling(**changes)


def test_characters_are_shown_when_they_are_complete() -> None:
    text = "a€b\N{GRINNING FACE}".encode()
    stream = TextStream(lambda tokens: bytes(tokens).decode(errors="replace"), list(b"x"))
    shown = [stream.add(byte) for byte in text]
    assert shown == ["a", "", "", "€", "b", "", "", "", "\N{GRINNING FACE}"]
    assert stream.rest() == ""
    assert stream.add(0xE2) == ""
    assert stream.rest() == "\N{REPLACEMENT CHARACTER}"
