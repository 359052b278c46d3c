"""Builds small classifiers in ONNX format with a tokenizer, and computes what they return with numpy."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = ("[UNK]", "[CLS]", "[SEP]", "good", "bad", "text", "##s", "a", "##b")
DIMENSION = 5


@dataclass
class Files:
    """A model and its tokenizer in a folder."""

    model: Path
    tokenizer: Path
    table: np.ndarray = field(repr=False)
    weights: np.ndarray = field(repr=False)

    def settings(self) -> dict[str, str]:
        """Return the settings of an annotator that name these files."""
        return {
            "model": str(self.model), "sha256": sha256_of(self.model),
            "tokenizer": str(self.tokenizer), "tokenizer_sha256": sha256_of(self.tokenizer),
        }  # fmt: skip

    def values_of(self, text: str, max_tokens: int) -> np.ndarray:
        """Return the model's output values: the mean of the vectors of the tokens times the weights."""
        tokenizer = Tokenizer.from_file(str(self.tokenizer))
        tokenizer.enable_truncation(max_tokens)
        return self.table[tokenizer.encode(text).ids].mean(axis=0) @ self.weights


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def small_tokenizer() -> Tokenizer:
    """Return a WordPiece tokenizer with special tokens around each text."""
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))  # type: ignore[call-arg]
    tokenizer.normalizer = normalizers.Lowercase()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.post_processor = processors.TemplateProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


def write_files(folder: Path, labels: int = 2, tokenizer: Tokenizer | None = None, dimension: int = DIMENSION) -> Files:
    """Write a model that multiplies the mean vector of the tokens with weights, and its tokenizer."""
    chosen = tokenizer or small_tokenizer()
    generator = np.random.default_rng(labels)
    table = generator.normal(size=(chosen.get_vocab_size(), dimension)).astype(np.float32)
    weights = generator.normal(size=(dimension, labels)).astype(np.float32)
    model = classifier(table, weights)
    onnx.checker.check_model(model)
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    chosen.save(str(folder / "tokenizer.json"))
    return Files(path, folder / "tokenizer.json", table, weights)


def classifier(table: np.ndarray, weights: np.ndarray, sequence: str | int = "tokens") -> onnx.ModelProto:
    """Return a model with the inputs of a transformer, which weights tokens by its attention mask."""
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["vectors"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", ["vectors", "column"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "middle"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["column", "middle"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("MatMul", ["mean", "weights"], ["logits"]),
    ]
    constants = {"table": table, "weights": weights, "last": np.array([2]), "middle": np.array([1])}
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", sequence])
              for name in ("input_ids", "attention_mask")]  # fmt: skip
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", weights.shape[1]])
    graph = helper.make_graph(
        nodes,
        "classifier",
        inputs,
        [output],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
