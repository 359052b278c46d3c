"""Makes small models with random weights, and the figures that `transformers` computes for them in float64.

The figures are too slow and too heavy to compute in this project's environment, which has no torch. So they are stored
in `tests/fixtures/model_goldens`, and made again with a Python that has `transformers` (5.24 or later) and
`safetensors`:

    PYTHON tests/support/trainer/model_goldens.py tests/fixtures/model_goldens

Each NAME becomes NAME.json (config and losses) and NAME.safetensors: `input_ids` and `labels` (-100: not counted),
weights under the hub's names in float16, which is exact because they were rounded to it, `logits`, and the gradient of
the total loss as `grad.<weight>`. `steps` has the loss and the gradient norm of each of ten steps of AdamW.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

DENSE = {
    "vocab_size": 64,
    "hidden_size": 24,
    "intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 1,
    "bos_token_id": None,
    "pad_token_id": None,
}
MIXTURE = DENSE | {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "router_aux_loss_coef": 0.02,
    "output_router_logits": True,
}
# name -> (model_type, keys of its config)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "olmoe-renormalized": ("olmoe", MIXTURE | {"intermediate_size": 12, "norm_topk_prob": True}),
    "qwen3-moe-dense-layers": (
        "qwen3_moe",
        MIXTURE | {"head_dim": 8, "moe_intermediate_size": 12, "norm_topk_prob": True, "mlp_only_layers": [0]},
    ),
    "qwen2-moe-shared": (
        "qwen2_moe",
        MIXTURE | {"moe_intermediate_size": 12, "shared_expert_intermediate_size": 16},
    ),
    "llama-tied-biases": ("llama", DENSE | {"attention_bias": True, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", DENSE | {"head_dim": 8}),
}
OPTIMIZER = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
STEPS, ROWS, LENGTH = 10, 2, 24


def main(folder: Path) -> None:
    """Write the figures of all models."""
    import torch  # pyright: ignore[reportMissingImports] - only in the other environment

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name, (model_type, keys) in MODELS.items():
        tensors, description = figures(torch, model_type, keys)
        from safetensors.torch import save_file  # pyright: ignore[reportMissingImports]

        save_file(tensors, folder / f"{name}.safetensors")
        (folder / f"{name}.json").write_text(json.dumps(description, indent=1, sort_keys=True) + "\n")


def figures(torch: Any, model_type: str, keys: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors and the other figures of one model."""
    import transformers  # pyright: ignore[reportMissingImports]

    config = transformers.AutoConfig.for_model(model_type, attn_implementation="eager", **keys)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64, experts_implementation="eager")
    model.train()
    with torch.no_grad():
        for name, value in model.named_parameters():
            center, spread = (1.0, 0.1) if "norm" in name else (0.0, 0.3)
            value.copy_((center + spread * torch.randn(value.shape)).half())
    weights = {name: value.half() for name, value in hub_tensors(model).items()}
    ids = torch.randint(0, config.vocab_size, (ROWS, LENGTH))
    labels = ids.clone()
    labels[1, :5] = -100

    def total() -> Any:
        return model(input_ids=ids, labels=labels, use_cache=False)

    output = total()
    output.loss.backward()
    gradients = {f"grad.{name}": value.float() for name, value in hub_tensors(model, gradient=True).items()}
    auxiliary = keys["router_aux_loss_coef"] * output.aux_loss.item() if "router_aux_loss_coef" in keys else 0.0
    described = {
        "config": config.to_diff_dict() | {"vocab_size": config.vocab_size},
        "loss": output.loss.item(),
        "cross_entropy": output.loss.item() - auxiliary,
        "steps": trained(torch, model, total),
    }
    tensors = weights | gradients | {"input_ids": ids, "labels": labels, "logits": output.logits.detach().float()}
    return {name: value.contiguous() for name, value in tensors.items()}, described


def hub_tensors(model: Any, gradient: bool = False) -> dict[str, Any]:
    """The parameters or their gradients as `save_pretrained` names and splits them."""
    state = {name: value.grad if gradient else value.detach() for name, value in model.named_parameters()}
    found = {}
    for name, value in state.items():
        if name.endswith("experts.gate_up_proj"):
            for number, both in enumerate(value):
                gate, up = both.chunk(2)
                prefix = f"{name.removesuffix('gate_up_proj')}{number}"
                found |= {f"{prefix}.gate_proj.weight": gate, f"{prefix}.up_proj.weight": up}
        elif name.endswith("experts.down_proj"):
            prefix = name.removesuffix("down_proj")
            found |= {f"{prefix}{number}.down_proj.weight": down for number, down in enumerate(value)}
        else:
            found[name] = value
    return {name: value.detach().clone() for name, value in found.items()}


def trained(torch: Any, model: Any, total: Any) -> list[tuple[float, float]]:
    """The loss and the gradient norm of each step of AdamW, with the gradient clipped to a norm of 1."""
    optimizer = torch.optim.AdamW(model.parameters(), **OPTIMIZER)
    rows = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = total().loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rows.append((loss.item(), float(norm)))
    return rows


if __name__ == "__main__":
    main(Path(sys.argv[1]))
