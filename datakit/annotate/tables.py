"""Lists the built-in annotators: the table of a recipe that enables each, and the class that holds its settings.

The driver only checks settings, so the modules of the settings load neither models nor kernels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from datakit.annotate.annotator import Annotator
from datakit.storage.fingerprint import config_of


@dataclass(frozen=True)
class Table:
    """A built-in annotator. settings: the class of its settings, as `module:name`; it has a constant VERSION (that of
    the annotator) and a method `annotator`. kernels: True if the annotator uses numba kernels. spans: its columns of
    spans, which a recipe can edit.
    """

    settings: str
    kernels: bool = False
    spans: tuple[str, ...] = ()

    @property
    def kind(self) -> Any:
        """The class of the annotator's settings."""
        module, _, name = self.settings.partition(":")
        return getattr(import_module(module), name)


TABLES: dict[str, Table] = {
    "language": Table("datakit.annotate.language.config:LanguageConfig", kernels=True),
    "script": Table("datakit.annotate.language.config:ScriptConfig", kernels=True),
    "personal": Table("datakit.annotate.personal.config:PersonalConfig", kernels=True, spans=("spans",)),
    "classifier_fasttext": Table("datakit.annotate.classifier.config:FasttextClassifierConfig", kernels=True),
    "classifier_linear": Table("datakit.annotate.classifier.config:LinearClassifierConfig", kernels=True),
}


@cache
def annotators_of(settings: str) -> dict[str, Annotator]:
    """Return the annotators with these settings (a JSON object of their tables), by name. They are made once in each
    process, as some load a model.
    """
    chosen: Mapping[str, dict[str, Any]] = json.loads(settings)
    return {name: config_of(values, TABLES[name].kind).annotator() for name, values in sorted(chosen.items())}
