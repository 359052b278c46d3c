"""Defines the settings of the annotators `classifier_fasttext` and `classifier_linear`. Only `annotator` loads models
and kernels.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from datakit.annotate.annotator import Annotator
from datakit.annotate.fasttext.checks import check_max_bytes, check_sha256
from datakit.annotate.model_file import ModelFile
from datakit.errors import UsageError, suggestion
from datakit.toml_config import key

if TYPE_CHECKING:
    from datakit.annotate.fasttext.model import Model


@dataclass(frozen=True)
class FasttextClassifierConfig:
    """The settings of the annotator `classifier_fasttext`."""

    VERSION: ClassVar[int] = 1

    model: Annotated[str, key("The path of a fastText classifier.", "quality.bin")]
    sha256: Annotated[
        str,
        key("The sha256 of the model's file, as 64 hex digits.",
            "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"),
    ]  # fmt: skip
    labels: Annotated[tuple[str, ...], key("The labels whose probabilities are stored.", ["hq"])]
    max_bytes: Annotated[
        int, key("Of a document with more bytes, the model reads 8 evenly spaced pieces of this size in all.", 16384)
    ] = 65536  # fmt: skip

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model is empty; give the path of a fastText classifier")
        check_sha256(self.sha256)
        if not all(self.labels) or not 0 < len(self.labels) == len(set(self.labels)):
            raise ValueError(f"labels is {list(self.labels)}; it must name at least one label, and none twice")
        check_max_bytes(self.max_bytes)

    def model_file(self) -> ModelFile:
        """Return the file that the annotator needs."""
        return ModelFile(self.model, self.sha256.lower())

    def load(self) -> Model:
        """Load the model, once per process. Raises UsageError if it lacks one of the labels, and otherwise what
        `load_model` raises.
        """
        from datakit.annotate.fasttext.model import load_model

        model = load_model(self.model, self.sha256.lower())
        for label in self.labels:
            if label not in model.labels:
                raise UsageError(f"the model {self.model} has no label {label!r}; {suggestion(label, model.labels)}")
        return model

    def annotator(self) -> Annotator:
        """Return the annotator with its model and kernels loaded. Raises what `load` raises."""
        from datakit.annotate.classifier.fasttext_classifier import FasttextClassifier
        from datakit.annotate.warming import warmed

        parameters = {**asdict(self), "sha256": self.sha256.lower()}
        return warmed(FasttextClassifier(self.VERSION, parameters, self.load()))


@dataclass(frozen=True)
class LinearClassifierConfig:
    """The settings of the annotator `classifier_linear`."""

    VERSION: ClassVar[int] = 1

    model: Annotated[str, key("The path of a linear classifier that datakit has trained.", "quality.linear")]
    sha256: Annotated[
        str,
        key("The sha256 of the model's file, as 64 hex digits.",
            "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83"),
    ]  # fmt: skip

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model is empty; give the path of a linear classifier")
        check_sha256(self.sha256)

    def model_file(self) -> ModelFile:
        """Return the file that the annotator needs."""
        return ModelFile(self.model, self.sha256.lower())

    def annotator(self) -> Annotator:
        """Return the annotator with its model and kernels loaded. Raises what `load_linear_model` raises."""
        from datakit.annotate.classifier.linear_classifier import LinearClassifier
        from datakit.annotate.classifier.linear_model import load_linear_model
        from datakit.annotate.warming import warmed

        parameters = {**asdict(self), "sha256": self.sha256.lower()}
        model = load_linear_model(self.model, parameters["sha256"])
        return warmed(LinearClassifier(self.VERSION, parameters, model))
