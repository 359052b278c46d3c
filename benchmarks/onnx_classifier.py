"""Measures the annotator `classifier_onnx` with an untrained transformer over the tokens of GPT-2, and compares
documents one by one with padded batches: CPU-seconds, and how many scores have other bits.

    python -m benchmarks.onnx_classifier [DOCUMENTS]       # 300 by default, drawn from the real texts

The transformer has 4 layers of 256 numbers and 4 heads, 512 tokens at most, and 16 million weights. Both programs run
on one thread and take turns in 3 rounds; figures are medians. Loading the model does not count.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

from benchmarks.lists import all_texts, rounds_of
from datakit.annotate.onnx_classifier.config import OnnxClassifierConfig
from tests.support.annotate.onnx_models import sha256_of
from tests.support.data import need_data

LAYERS, WIDTH, HEADS, TOKENS, BATCH = 4, 256, 4, 512, 16


def transformer(vocabulary: int) -> onnx.ModelProto:
    """Return a classifier with two labels and random weights."""
    generator = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {
        "table": generator.normal(size=(vocabulary, WIDTH)).astype(np.float32),
        "split": np.array([0, 0, HEADS, WIDTH // HEADS]), "join": np.array([0, 0, WIDTH]),
        "scale": np.float32((WIDTH // HEADS) ** -0.5) * np.ones(1, np.float32), "head": _weights(generator, WIDTH, 2),
        "middle": np.array([1]), "inner": np.array([1, 2]), "last": np.array([2]), "low": np.array([-1e4], np.float32),
        "one": np.ones(1, np.float32), "g": np.ones(WIDTH, np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["x0"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "inner"], ["wide"]),
        helper.make_node("Sub", ["one", "wide"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "low"], ["bias"]),
    ]
    for i in range(LAYERS):
        for name, rows, columns in (("q", 1, 1), ("k", 1, 1), ("v", 1, 1), ("o", 1, 1), ("up", 1, 4), ("down", 4, 1)):
            constants[f"{name}{i}"] = _weights(generator, rows * WIDTH, columns * WIDTH)
        for name, order in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
            nodes += [
                helper.make_node("MatMul", [f"x{i}", f"{name}{i}"], [f"{name}a{i}"]),
                helper.make_node("Reshape", [f"{name}a{i}", "split"], [f"{name}b{i}"]),
                helper.make_node("Transpose", [f"{name}b{i}"], [f"{name}c{i}"], perm=order),
            ]
        nodes += [
            helper.make_node("MatMul", [f"qc{i}", f"kc{i}"], [f"s{i}"]),
            helper.make_node("Mul", [f"s{i}", "scale"], [f"t{i}"]),
            helper.make_node("Add", [f"t{i}", "bias"], [f"u{i}"]),
            helper.make_node("Softmax", [f"u{i}"], [f"p{i}"], axis=-1),
            helper.make_node("MatMul", [f"p{i}", f"vc{i}"], [f"w{i}"]),
            helper.make_node("Transpose", [f"w{i}"], [f"y{i}"], perm=[0, 2, 1, 3]),
            helper.make_node("Reshape", [f"y{i}", "join"], [f"z{i}"]),
            helper.make_node("MatMul", [f"z{i}", f"o{i}"], [f"a{i}"]),
            helper.make_node("Add", [f"x{i}", f"a{i}"], [f"b{i}"]),
            helper.make_node("LayerNormalization", [f"b{i}", "g"], [f"c{i}"]),
            helper.make_node("MatMul", [f"c{i}", f"up{i}"], [f"d{i}"]),
            helper.make_node("Relu", [f"d{i}"], [f"e{i}"]),
            helper.make_node("MatMul", [f"e{i}", f"down{i}"], [f"f{i}"]),
            helper.make_node("Add", [f"c{i}", f"f{i}"], [f"h{i}"]),
            helper.make_node("LayerNormalization", [f"h{i}", "g"], [f"x{i + 1}"]),
        ]
    nodes += [
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
        helper.make_node("Mul", [f"x{LAYERS}", "column"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "middle"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["column", "middle"], ["count"], keepdims=0),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
        helper.make_node("MatMul", ["mean", "head"], ["logits"]),
    ]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ["batch", "tokens"])
              for name in ("input_ids", "attention_mask")]  # fmt: skip
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])
    initializers = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "transformer", inputs, [output], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def _weights(generator: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    return (generator.normal(size=(rows, columns)) * rows**-0.5).astype(np.float32)


def padded(session: onnxruntime.InferenceSession, tokenizer: Tokenizer, texts: list[str]) -> np.ndarray:
    """Return the output values for texts in batches, each padded to its longest text."""
    found = []
    for i in range(0, len(texts), BATCH):
        encoded = [tokenizer.encode(text) for text in texts[i : i + BATCH]]
        ids = np.zeros((len(encoded), max(len(one.ids) for one in encoded)), np.int64)
        mask = np.zeros_like(ids)
        for row, one in enumerate(encoded):
            ids[row, : len(one.ids)], mask[row, : len(one.ids)] = one.ids, 1
        found.append(session.run(["logits"], {"input_ids": ids, "attention_mask": mask})[0])
    return np.concatenate(found)


def main() -> None:
    """Print documents per CPU-second, and the differences."""
    texts = all_texts()
    chosen = np.random.default_rng(0).permutation(len(texts))[: int((sys.argv[1:] or ["300"])[0])]
    texts = [texts[i] for i in chosen if texts[i].strip()]
    source = need_data() / "tokenizers" / "gpt2.json"
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.onnx"
        path.write_bytes(transformer(Tokenizer.from_file(str(source)).get_vocab_size()).SerializeToString())
        annotator = OnnxClassifierConfig(
            str(path), sha256_of(path), str(source), sha256_of(source), ("a", "b"), "raw", max_tokens=TOKENS
        ).annotator()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(path), options)
        size = path.stat().st_size
        annotator.annotate(pa.record_batch({"text": pa.array(["one"])}))  # loads the model
    tokenizer = Tokenizer.from_file(str(source))
    tokenizer.enable_truncation(TOKENS)
    batch = pa.record_batch({"text": pa.array(texts, pa.large_string())})
    ours = np.column_stack([column.to_numpy() for column in annotator.annotate(batch).columns])
    other = padded(session, tokenizer, texts)
    taken = rounds_of(
        {"one by one": lambda: annotator.annotate(batch), "padded": lambda: padded(session, tokenizer, texts)}, 3
    )
    lengths = [len(tokenizer.encode(text).ids) for text in texts]
    print(f"{len(texts)} documents, {sum(lengths):,} tokens, model of {size / 1e6:.0f} MB")
    for side, seconds in taken.items():
        print(f"{side}: {len(texts) / seconds:.1f} documents and {sum(lengths) / seconds:,.0f} tokens per CPU-second")
    differ = (ours != other).any(axis=1)
    print(f"documents whose values differ: {differ.sum()}; largest difference {np.abs(ours - other).max():.1e}")


if __name__ == "__main__":
    main()
