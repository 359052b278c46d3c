"""Defines the settings of the annotator `classifier_onnx`. Only tasks import onnxruntime, because it starts threads."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import Annotated, ClassVar

from datakit.annotate.annotator import Annotator
from datakit.annotate.fasttext.checks import check_sha256
from datakit.annotate.input_files import check_files
from datakit.annotate.model_file import ModelFile
from datakit.annotate.onnx_classifier.settings import SCORES, SIGMOID, SOFTMAX, ModelSettings
from datakit.errors import RecipeError, RefusedError, suggestion
from datakit.toml_config import key

LEAST_TOKENS, MOST_TOKENS = 8, 1 << 16
HASH = "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"


@dataclass(frozen=True)
class OnnxClassifierConfig:
    """The settings of the annotator `classifier_onnx`."""

    VERSION: ClassVar[int] = 1

    model: Annotated[str, key("The path of a classifier in ONNX format.", "quality.onnx")]
    sha256: Annotated[str, key("The sha256 of the model's file, as 64 hex digits.", HASH)]
    tokenizer: Annotated[
        str, key("The path of the model's tokenizer, a file of the tokenizers library.", "tokenizer.json")
    ]
    tokenizer_sha256: Annotated[str, key("The sha256 of the tokenizer's file, as 64 hex digits.", HASH)]
    labels: Annotated[
        tuple[str, ...], key("Names for the model's output values, in their order; each is a column.", ["low", "high"])
    ]
    scores: Annotated[
        str,
        key("How scores follow from the output values: `softmax` (they add up to 1), `sigmoid` (each on its own), or "
            "`raw` (as they are).", SIGMOID, SCORES),
    ] = SOFTMAX  # fmt: skip
    output: Annotated[str, key("The name of the model's output that is read; the first if omitted.", "logits")] = ""
    max_tokens: Annotated[
        int, key("Of a longer document, the model reads so many tokens, special tokens included.", 256)
    ] = 512

    def __post_init__(self) -> None:
        if not self.model or not self.tokenizer:
            raise RecipeError("model or tokenizer is empty; give the paths of a model and of its tokenizer")
        check_sha256(self.sha256)
        check_sha256(self.tokenizer_sha256)
        lower = [label.lower() for label in self.labels]
        if not all(lower) or not 0 < len(lower) == len(set(lower)):
            raise RecipeError(f"labels is {list(self.labels)}; it must name each output value once")
        if self.scores not in SCORES:
            raise RecipeError(f"scores is {self.scores!r}; {suggestion(self.scores, SCORES)}")
        if self.scores == SOFTMAX and len(self.labels) == 1:
            raise RecipeError('scores is "softmax", which is always 1 for one label; use "sigmoid" or "raw"')
        if not LEAST_TOKENS <= self.max_tokens <= MOST_TOKENS:
            raise RecipeError(f"max_tokens is {self.max_tokens}; it must be from {LEAST_TOKENS} to {MOST_TOKENS:,}")

    def model_file(self) -> ModelFile:
        """Return the model's file."""
        return ModelFile(self.model, self.sha256.lower())

    def check(self, place: str) -> None:
        """Check what a run needs beside the model's file. Raises RefusedError if a package or the tokenizer is missing,
        and ChangedInputError if the tokenizer has another sha256. place: the table in the recipe, for messages.
        """
        missing = [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]
        if missing:
            raise RefusedError(
                f"{place} needs {' and '.join(missing)}; run pip install '.[onnx]' in datakit's checkout"
            )
        check_files(self.tokenizer, self.tokenizer_sha256, f"{place}, tokenizer")

    def annotator(self) -> Annotator:
        """Return the annotator, which loads its model when it is first used."""
        from datakit.annotate.onnx_classifier.annotator import OnnxClassifier

        hashes = {"sha256": self.sha256.lower(), "tokenizer_sha256": self.tokenizer_sha256.lower()}
        settings = ModelSettings(self.model, hashes["sha256"], self.tokenizer, hashes["tokenizer_sha256"], self.output,
                                 len(self.labels), self.max_tokens)  # fmt: skip
        return OnnxClassifier(self.VERSION, {**asdict(self), **hashes}, settings)
