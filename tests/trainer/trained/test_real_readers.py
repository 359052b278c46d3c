"""`transformers` and an inference engine open an export, and compute and generate what we do.

They are not installed with the project; `tests/support/hub_models/peers.py` says how to run these tests.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("pyarrow")
from datakit.cache.contract import Contract
from datakit.cache.reader import open_cache
from datakit.tokenize.make_contract import GOLDEN
from datakit.trainer.models import dense, load_model, olmoe
from datakit.trainer.models.protocol import Tokens
from datakit.trainer.models.weights import Tree
from datakit.trainer.trained.export_folder import Options, export_folder
from datakit.trainer.trained.find import TrainedRun
from datakit.trainer.trained.generate import Sampling, framed_prompt, generate
from tests.support.caches import make_cache
from tests.support.hub_models.peers import TRANSFORMERS, VLLM
from tests.support.hub_models.tokenizers import PROCESSORS, with_processor
from tests.support.hub_models.untrained import LONGEST, random_weights, untrained_run
from tests.support.partitions import words

SIZES: dict[str, Any] = {"vocabulary": 401, "hidden": 64, "layers": 2, "heads": 2, "kv_heads": 1, "head_width": 32}
SIZES |= {
    "compute": "float32",
    "remat": "none",
    "init_std": 0.2,
}  # 401 ids: other programs also draw ids without a token
ROUTED: dict[str, Any] = SIZES | {"experts": 4, "experts_per_token": 2, "expert_width": 32, "moe_backend": "dense"}
MODELS: dict[str, Any] = {
    "OlmoeForCausalLM": olmoe.Config(**ROUTED),
    "MixtralForCausalLM": olmoe.Config(**ROUTED, query_key_norm="none", renormalize=True),
    "Qwen3MoeForCausalLM": olmoe.Config(
        **ROUTED, query_key_norm="head", renormalize=True, dense_layers=(0,), dense_width=48
    ),
    "Qwen2MoeForCausalLM": olmoe.Config(**ROUTED, query_key_norm="none", attention_bias="qkv", shared_width=48),
    "LlamaForCausalLM": dense.Config(**SIZES, width=96, tied_embeddings=True),
    "Qwen3ForCausalLM": dense.Config(**SIZES, width=96, query_key_norm="head"),
}
NEW, ENDS_AT = 12, 4  # the number of tokens asked for; the first place at which the text may end
CACHES = {"eos": ("nothing", {}), "both": ("both ends", {"bos": "<s>"})}


@pytest.fixture(scope="module", params=[*CACHES])
def cache(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache whose documents end with a token; in one case, they also begin with one, and tokenizer.json adds both."""
    name, ends = CACHES[request.param]
    texts = {"web": [words(number, 1, 30)[0] for number in range(20)]}
    tokenizer = with_processor(PROCESSORS[name])
    return make_cache(tmp_path_factory.mktemp("readers"), texts, tokenizer, add=request.param, **ends)


def greedy(kind: str, config: Any, params: Tree, prompt: list[int], contract: Contract) -> list[int]:
    sampling = Sampling(NEW, temperature=0.0)
    return list(generate(load_model(kind), config, params, {}, prompt, sampling, contract))


def ending_weights(kind: str, config: Any, prompt: list[int], contract: Contract) -> Tree:
    """Random weights with which the likeliest text after the prompt ends before the limit; if embeddings are tied, any.

    A token that comes late and for the first time changes places with the end-of-text token in the head.
    """
    assert contract.eos is not None
    for seed in range(20):
        params = random_weights(kind, config, seed)
        if "head" not in params:
            return params
        made = greedy(kind, config, params, prompt, contract)
        late = [place for place in range(ENDS_AT, len(made)) if made[place] not in made[:place]]
        if late:
            swap = jnp.asarray([contract.eos.id, made[late[0]]])
            return params | {"head": params["head"].at[:, swap].set(params["head"][:, swap[::-1]])}
    raise AssertionError("every text repeats itself")


def exported(folder: Path, config: Any, cache: Path) -> tuple[TrainedRun, Tree, dict[str, Any]]:
    """Export a model, and write the questions."""
    kind, opened = "dense" if isinstance(config, dense.Config) else "olmoe", open_cache(str(cache))
    ids = opened.tokenizer.encode("lorem ipsum", add_special_tokens=False).ids
    prompt = framed_prompt(ids, opened.contract)
    params = ending_weights(kind, config, prompt, opened.contract)
    run = untrained_run(folder / "run", kind, config, params, cache)
    export_folder(run, str(folder / "export"), Options("float32", shard_bytes=100_000))
    tokens = np.random.default_rng(0).integers(0, 400, (2, 24)).tolist()
    asked = {"tokens": tokens, "prompt": prompt, "new": NEW, "texts": GOLDEN, "longest": LONGEST}
    (folder / "questions.json").write_text(json.dumps(asked))
    return run, params, asked


def framed(run: TrainedRun, golden: Any) -> list[int]:
    return [*([run.contract.bos.id] if run.contract.bos else []), *golden.ids]


@pytest.mark.parametrize("name", [*MODELS])
def test_transformers_computes_and_generates_the_same(name: str, cache: Path, tmp_path: Path) -> None:
    TRANSFORMERS.require()
    run, params, asked = exported(tmp_path, MODELS[name], cache)
    found = TRANSFORMERS.read(tmp_path)
    assert (found["class"], found["problems"], found["longest"]) == (name, [], LONGEST)
    rows = jnp.asarray(asked["tokens"], jnp.int32)
    batch, positions = Tokens(rows, jnp.ones_like(rows), rows >= 0), jnp.tile(jnp.arange(24), (2, 1))
    ours = jax.jit(lambda: load_model(run.kind).logits(params, {}, batch, run.config, positions))()
    np.testing.assert_allclose(np.load(tmp_path / "logits.npy"), ours, atol=1e-5 * float(jnp.abs(ours).max()), rtol=0)
    contract = run.contract
    bos, eos = (special and special.id for special in (contract.bos, contract.eos))
    expected = greedy(run.kind, run.config, params, asked["prompt"], run.contract)
    assert found["made"] == expected + ([eos] if len(expected) < NEW else [])
    assert (len(expected) < NEW) == ("head" in params)
    assert found["bare"] == [golden.ids for golden in contract.golden]
    assert found["ids"] == [framed(run, golden) for golden in contract.golden]
    assert found["decoded"] == [golden.text for golden in contract.golden]
    names = [special and special.token for special in (contract.bos, contract.eos)]
    assert found["tokenizer"] == [bos, eos, *names]
    assert (found["model"], found["generation"]) == ([bos, eos, None], [bos, eos])


@pytest.mark.parametrize("name", ["OlmoeForCausalLM", "Qwen3MoeForCausalLM", "MixtralForCausalLM"])
def test_an_inference_engine_generates_the_same(name: str, cache: Path, tmp_path: Path) -> None:
    VLLM.require()
    run, params, asked = exported(tmp_path, MODELS[name], cache)
    found = VLLM.read(tmp_path)
    expected = greedy(run.kind, run.config, params, asked["prompt"], run.contract)
    assert run.contract.eos is not None and len(expected) < NEW
    assert (found["made"], found["why"]) == ([*expected, run.contract.eos.id], "stop")
    assert found["ids"] == [framed(run, golden) for golden in run.contract.golden]
