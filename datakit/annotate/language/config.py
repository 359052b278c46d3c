"""Defines the settings of the annotators `language` and `script`. Models and kernels are loaded by `annotator` only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from datakit.annotate.annotator import Annotator
from datakit.annotate.fasttext.checks import check_max_bytes, check_sha256
from datakit.annotate.language.builtin_model import BUILTIN, BUILTIN_SHA256, builtin_path
from datakit.annotate.model_file import ModelFile
from datakit.toml_config import key

if TYPE_CHECKING:
    from datakit.annotate.fasttext.model import Model

MOST_LABELS = 1000  # `top_k`, at most


@dataclass(frozen=True)
class LanguageConfig:
    """The settings of the annotator `language`."""

    VERSION: ClassVar[int] = 1

    model: Annotated[
        str, key("The fastText model: `lid.176`, or the path of a file such as GlotLID's.", "glotlid.bin")
    ] = BUILTIN  # fmt: skip
    sha256: Annotated[
        str, key("The sha256 of the model's file, as 64 hex digits; required if `model` is a path.", BUILTIN_SHA256)
    ] = ""  # fmt: skip
    top_k: Annotated[int, key("If above 1, the column `top` lists this many labels with their scores.", 3)] = 1
    max_bytes: Annotated[
        int, key("Of a document with more bytes, the model reads 8 evenly spaced pieces of this size in all.", 16384)
    ] = 65536  # fmt: skip

    def __post_init__(self) -> None:
        check_max_bytes(self.max_bytes)
        if not 1 <= self.top_k <= MOST_LABELS:
            raise ValueError(f"top_k is {self.top_k}; it must be from 1 to {MOST_LABELS}")
        if not self.model:
            raise ValueError(f"model is empty; give {BUILTIN!r} or the path of a fastText model")
        if self.model != BUILTIN:
            check_sha256(self.sha256)
        elif self.sha256.lower() not in ("", BUILTIN_SHA256):
            raise ValueError(
                f"sha256 is {self.sha256!r}, but that of {BUILTIN} is {BUILTIN_SHA256}; remove this setting"
            )

    @property
    def effective_sha256(self) -> str:
        """The sha256 that the model's file must have, in lower case."""
        return BUILTIN_SHA256 if self.model == BUILTIN else self.sha256.lower()

    def model_file(self) -> ModelFile:
        """Return the file that the annotator needs. Raises UsageError if the default model is not installed."""
        return ModelFile(builtin_path() if self.model == BUILTIN else self.model, self.effective_sha256)

    def load(self) -> Model:
        """Load the model, once per process. Raises UsageError if the default model is not installed, and otherwise what
        `load_model` raises.
        """
        from datakit.annotate.fasttext.model import load_model

        return load_model(*self.model_file())

    def annotator(self) -> Annotator:
        """Return the annotator with its model and kernels loaded. Raises what `load` raises."""
        from datakit.annotate.language.identification import LanguageAnnotator
        from datakit.annotate.warming import warmed

        parameters = {**asdict(self), "sha256": self.effective_sha256}
        return warmed(LanguageAnnotator(self.VERSION, parameters, self.load()))


@dataclass(frozen=True)
class ScriptConfig:
    """The settings of the annotator `script`: there are none."""

    VERSION: ClassVar[int] = 1

    def annotator(self) -> Annotator:
        """Return the annotator with its kernels loaded."""
        from datakit.annotate.language.script import ScriptAnnotator
        from datakit.annotate.warming import warmed

        return warmed(ScriptAnnotator(self.VERSION))
