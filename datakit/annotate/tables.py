"""Lists the built-in annotators: the table of a recipe that enables each, and the class that holds its settings.

The driver only checks settings, so the modules of the settings load neither models nor kernels.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, get_args, get_type_hints

from datakit.annotate.annotator import Annotator
from datakit.annotate.input_files import without_paths
from datakit.storage.fingerprint import config_of


@dataclass(frozen=True)
class Table:
    """A built-in annotator. settings: the class of its settings, as `module:name`; it has a constant VERSION (that of
    the annotator) and a method `annotator`. kernels: True if the annotator uses numba kernels. files: the setting that
    holds a table of files by name (see `input_files.py`), if there is one. operations: the settings that change no
    output and are therefore not part of the fingerprint.
    """

    settings: str
    kernels: bool = False
    files: str = ""
    operations: tuple[str, ...] = ()

    @property
    def kind(self) -> Any:
        """The class of the annotator's settings."""
        module, _, name = self.settings.partition(":")
        return getattr(import_module(module), name)

    @property
    def file_kind(self) -> Any:
        """The class of the tables in the setting `files`."""
        return get_args(get_type_hints(self.kind)[self.files])[1]

    def separated(self, values: Mapping[str, Any], place: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Separate plain settings into those that enter the fingerprint, with hashes of files in place of their paths,
        and those that do not. place: the annotator's table in the recipe, for messages. Raises what `without_paths`
        raises.
        """
        others = {name: values[name] for name in self.operations}
        content = {name: value for name, value in values.items() if name not in self.operations}
        if self.files:
            tables = f"{place.removesuffix(']')}.{self.files}"
            content[self.files], others[self.files] = without_paths(content[self.files], tables)
        return content, others


TABLES: dict[str, Table] = {
    "language": Table("datakit.annotate.language.config:LanguageConfig", kernels=True),
    "script": Table("datakit.annotate.language.config:ScriptConfig", kernels=True),
    "personal": Table("datakit.annotate.personal.config:PersonalConfig", kernels=True),
    "classifier_fasttext": Table("datakit.annotate.classifier.config:FasttextClassifierConfig", kernels=True),
    "classifier_linear": Table("datakit.annotate.classifier.config:LinearClassifierConfig", kernels=True),
    "contamination": Table(
        "datakit.annotate.contamination.config:Config", kernels=True, files="sets", operations=("index_folder",)
    ),
}


@cache
def annotators_of(settings: str) -> dict[str, Annotator]:
    """Return the annotators with these settings (a JSON object of their tables), by name. They are made once in each
    process, as some load a model.
    """
    chosen: Mapping[str, dict[str, Any]] = json.loads(settings)
    return {name: config_of(values, TABLES[name].kind).annotator() for name, values in sorted(chosen.items())}
