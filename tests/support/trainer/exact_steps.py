"""Computes ten steps of AdamW with `transformers` in float64 throughout.

A model of `transformers` whose weights are float64 still computes norms, softmaxes, rotary positions and the loss in
float32. Here, float64 takes the place of float32 in every call of torch, so no rounding to float32 is left. The result
is stored in `tests/fixtures/model_goldens`, and made again with a Python that has `transformers` (5.24 or later):

    PYTHON -m tests.support.trainer.exact_steps $DATAKIT_DATA/moe-golden tests/fixtures/model_goldens/exact_steps.json

The checkpoints are those of the folder of real data. Each has the loss and the gradient norm of each step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.support.trainer.model_goldens import trained

NAMES = ("mixtral", "olmoe")


def main(folder: Path, output: Path) -> None:
    """Write the figures of all models."""
    import torch  # pyright: ignore[reportMissingImports] - only in the other environment

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    found = {name: _steps(torch, folder / name) for name in NAMES}
    output.write_text(json.dumps(found, indent=1) + "\n")


def _steps(torch: Any, folder: Path) -> list[tuple[float, float]]:
    """The loss and the gradient norm of each step of one model."""
    import transformers  # pyright: ignore[reportMissingImports]
    from safetensors.torch import load_file  # pyright: ignore[reportMissingImports]

    eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **eager)
    model = model.double().train()
    for module in model.modules():
        if hasattr(module, "inv_freq"):  # it was made in float32
            exponents = torch.arange(0, 2 * module.inv_freq.numel(), 2, dtype=torch.float64)
            theta = model.config.rope_parameters["rope_theta"]
            module.inv_freq = theta ** -(exponents / exponents.numel() / 2)
    golden = load_file(folder / "golden.safetensors")
    batch = {"input_ids": golden["input_ids"], "labels": golden["labels"], "use_cache": False}
    with _widened(torch):
        assert model(**batch).loss.dtype == torch.float64
        return trained(torch, model, lambda: model(output_router_logits=True, **batch))


def _widened(torch: Any) -> Any:
    """A context in which torch computes in float64 whatever it is told to compute in float32."""
    from torch.overrides import TorchFunctionMode  # pyright: ignore[reportMissingImports]

    def wide(value: Any) -> Any:
        return torch.float64 if value is torch.float32 else value

    class Widened(TorchFunctionMode):
        def __torch_function__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if call is torch.Tensor.float:
                return args[0].double()
            return call(*map(wide, args), **{name: wide(value) for name, value in (kwargs or {}).items()})

    return Widened()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
