"""Loads a classifier in ONNX format with its tokenizer, and computes its output values for one text.

A model is refused if it could read or run anything that its sha256 does not cover: tensors in other files, and
operators that belong neither to ONNX nor to onnxruntime. Its inputs must be those of a text classifier, and every
output is checked for its shape and for numbers that are not finite.

Cost: importing onnxruntime takes about half a CPU-second, and a model takes about twice the size of its file in memory
while it is loaded. Both happen in each task that annotates documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from google.protobuf.message import DecodeError
from onnx.external_data_helper import uses_external_data
from tokenizers import Tokenizer

from datakit.annotate.input_files import check_sha256
from datakit.annotate.onnx_classifier.settings import ModelSettings
from datakit.errors import NotFoundError, TaskError, UnreadableError, UsageError
from datakit.regular_files import open_regular

IDS = "input_ids"
INPUTS = (IDS, "attention_mask", "token_type_ids")
INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
FLOATS = ("tensor(float)", "tensor(float16)", "tensor(double)")
DOMAINS = {"", "ai.onnx", "ai.onnx.ml", "com.microsoft"}  # of the operators that onnxruntime brings along


@dataclass(frozen=True)
class Model:
    """A classifier. inputs: the name and type of each input. output: the name of the output. size: the number of its
    values.
    """

    session: Any
    tokenizer: Tokenizer
    inputs: dict[str, type[np.generic]]
    output: str
    size: int

    def values_of(self, text: str) -> np.ndarray | None:
        """Return the output values for a text, float64 [size]; None if it has no token besides special ones. Raises
        TaskError if the model returns anything other than finite numbers of this shape.
        """
        encoded = self.tokenizer.encode(text)
        if all(encoded.special_tokens_mask):
            return None
        columns = {IDS: encoded.ids, INPUTS[1]: encoded.attention_mask, INPUTS[2]: encoded.type_ids}
        feed = {name: np.array([columns[name]], kind) for name, kind in self.inputs.items()}
        (found,) = self.session.run([self.output], feed)
        values = np.asarray(found, np.float64)
        if values.shape != (1, self.size):
            raise TaskError(f"the model returned values of shape {values.shape}, not (1, {self.size})")
        if not np.isfinite(values).all():
            raise TaskError("the model returned a value that is not finite; check it with its own program")
        return values[0]


def load_model(settings: ModelSettings) -> Model:
    """Load a model and its tokenizer. Raises NotFoundError, ChangedInputError and UnreadableError for files that are
    missing, changed or damaged, and UsageError for a model of another kind.
    """
    path = settings.model
    data = _content(path, settings.sha256, "model")
    _refuse_foreign_parts(data, path)
    session = _session(data, path)
    inputs, output = _inputs(session, path), _output(session, path, settings.output, settings.size)
    tokenizer = _tokenizer(settings.tokenizer, settings.tokenizer_sha256, settings.max_tokens)
    return Model(session, tokenizer, inputs, output, settings.size)


def _content(path: str, sha256: str, what: str) -> bytes:
    try:
        with open_regular(path) as file:
            data = file.read()
    except FileNotFoundError as error:
        raise NotFoundError(
            f"the {what} {path} does not exist; restore it, or change its path in the recipe"
        ) from error
    check_sha256(hashlib.sha256(data).hexdigest(), sha256, path, f"classifier_onnx, {what}")
    return data


def _refuse_foreign_parts(data: bytes, path: str) -> None:
    try:
        model = onnx.load_from_string(data)
    except (DecodeError, ValueError) as error:
        raise UnreadableError(f"{path} is not a model in ONNX format; export the model again") from error
    if any(uses_external_data(tensor) for tensor in _tensors(model)):
        raise UsageError(f"{path} keeps tensors in other files, which its sha256 does not cover; export it as one file")
    own = {function.domain for function in model.functions}
    if other := {one.domain for one in model.opset_import} - DOMAINS - own:
        raise UsageError(f"{path} uses operators of {', '.join(sorted(other))}; export it without custom operators")


def _tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    yield from _of_graph(model.graph)
    for function in model.functions:
        yield from _of_nodes(function.node)


def _of_graph(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    yield from _of_nodes(graph.node)


def _of_nodes(nodes: Any) -> Iterator[onnx.TensorProto]:
    for attribute in (attribute for node in nodes for attribute in node.attribute):
        yield from (attribute.t, *attribute.tensors)
        for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
            yield from (sparse.values, sparse.indices)
        for graph in ([attribute.g] if attribute.HasField("g") else []) + [*attribute.graphs]:
            yield from _of_graph(graph)


def _session(data: bytes, path: str) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.use_deterministic_compute = True
    options.enable_mem_pattern = False  # it plans memory for one length of input
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise UnreadableError(
            f"onnxruntime {onnxruntime.__version__} cannot load {path}: {str(error).splitlines()[0][:300]}"
        ) from error


def _inputs(session: Any, path: str) -> dict[str, type[np.generic]]:
    found = {one.name: one for one in session.get_inputs()}
    if IDS not in found or not found.keys() <= {*INPUTS}:
        raise UsageError(
            f"{path} has the inputs {', '.join(found)}; it must have {IDS}, and may have {' and '.join(INPUTS[1:])}"
        )
    for one in found.values():
        free = len(one.shape) == 2 and one.shape[0] in (1, None, *_names(one)) and not isinstance(one.shape[1], int)
        if one.type not in INTEGERS or not free:
            raise UsageError(
                f"{path}: the input {one.name} has type {one.type} and shape {one.shape}; it must hold integers, for "
                "one document or any number, and any number of tokens"
            )
    return {name: INTEGERS[one.type] for name, one in found.items()}


def _names(one: Any) -> list[str]:
    return [size for size in one.shape if isinstance(size, str)]


def _output(session: Any, path: str, output: str, size: int) -> str:
    found = {one.name: one for one in session.get_outputs()}
    chosen = output or next(iter(found))
    if chosen not in found:
        raise UsageError(f"{path} has no output {output!r}; it has {', '.join(found)}")
    one = found[chosen]
    if one.type not in FLOATS or len(one.shape) != 2 or (isinstance(one.shape[1], int) and one.shape[1] != size):
        raise UsageError(
            f"{path}: the output {chosen} has type {one.type} and shape {one.shape}; it must hold one number for each "
            f"of the {size} labels"
        )
    return chosen


def _tokenizer(path: str, sha256: str, max_tokens: int) -> Tokenizer:
    data = _content(path, sha256, "tokenizer")
    try:
        tokenizer = Tokenizer.from_str(data.decode())
    except Exception as error:
        raise UnreadableError(f"{path} is not a file of the tokenizers library; give a tokenizer.json") from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_tokens)
    return tokenizer
