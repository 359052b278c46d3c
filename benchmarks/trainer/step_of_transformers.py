"""Take training steps of OLMoE with `transformers`, on the orders of `step_vs_transformers.py`, which starts this file
with the Python of an environment that has `transformers` and `torch`.

Input: first a line of JSON with the sizes, then the number of steps of each turn, one per line. Output: after each
turn a line of JSON with the seconds of wall time and of CPU time, and the last loss. In bfloat16, weights, gradients
and moments are bfloat16, too, which is the fastest that `transformers` offers without further libraries.
"""

# pyright: basic
from __future__ import annotations

import json
import sys
import time

import torch  # pyright: ignore[reportMissingImports] - of the other environment
from transformers import OlmoeConfig, OlmoeForCausalLM  # pyright: ignore[reportMissingImports]


def main() -> None:
    sizes = json.loads(input())
    torch.set_num_threads(sizes["threads"])
    torch.manual_seed(0)
    config = OlmoeConfig(
        vocab_size=sizes["vocabulary"],
        hidden_size=sizes["hidden"],
        intermediate_size=sizes["width"],
        num_hidden_layers=sizes["layers"],
        num_attention_heads=sizes["heads"],
        num_key_value_heads=sizes["kv_heads"],
        num_experts=sizes["experts"],
        num_experts_per_tok=sizes["choices"],
        max_position_embeddings=sizes["length"],
        output_router_logits=True,
        experts_implementation="grouped_mm",
        attn_implementation="sdpa",
        use_cache=False,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    device = torch.device(sizes["device"])
    model = OlmoeForCausalLM(config).to(device, getattr(torch, sizes["dtype"])).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    tokens = torch.randint(0, sizes["vocabulary"], (sizes["rows"], sizes["length"]), device=device)
    implementation, parameters = model.config._experts_implementation, sum(p.numel() for p in model.parameters())
    print(json.dumps({"experts_implementation": implementation, "parameters": parameters}), flush=True)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(int(line)):
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        spent = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, "loss": loss.item()}
        print(json.dumps(spent), flush=True)


if __name__ == "__main__":
    main()
