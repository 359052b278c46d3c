"""Lists the built-in annotators: the table of a recipe that enables each, and the class that holds its settings. Makes
annotators from their settings.

The tables of attributes of most built-in annotators are named after them. A recipe can have several classifiers of one
kind, whose tables it names; then the setting ANNOTATOR says which annotator it is. Any other name is that of a function
of the user or of a model server.

The driver only checks settings, so the modules of the settings load neither models nor kernels.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import Any, get_args, get_type_hints

import msgspec

from datakit.annotate.annotator import Annotator
from datakit.annotate.input_files import without_paths
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.annotate.model_server.phase import servers_of
from datakit.annotate.user.config import UserSettings
from datakit.storage.fingerprint import config_of


@dataclass(frozen=True)
class Table:
    """A built-in annotator. settings: the class of its settings, as `module:name`; it has a constant VERSION (that of
    the annotator), a method `annotator` and possibly a method `check`, which reads its `files` before a run. kernels:
    True if the annotator uses numba kernels. files: the setting that holds a table of files by name (see
    `input_files.py`), if there is one. operations: the settings that change no output and are therefore not part of the
    fingerprint. spans: its columns of spans, which a recipe can edit. columns: all columns that it can write; empty if
    they depend on a model, on files or on several settings. loaded_by_tasks: True if each task loads the model, which
    may be large and slow. nameable: True if a recipe can have several, with names for their tables of attributes.
    """

    settings: str
    kernels: bool = False
    files: str = ""
    operations: tuple[str, ...] = ()
    spans: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    loaded_by_tasks: bool = False
    nameable: bool = False

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
    "language": Table(
        "datakit.annotate.language.config:LanguageConfig", kernels=True, columns=("label", "score", "top")
    ),
    "script": Table(
        "datakit.annotate.language.config:ScriptConfig", kernels=True, columns=("letters", "script", "share", "scripts")
    ),
    "heuristics": Table("datakit.annotate.heuristics.config:HeuristicsConfig", kernels=True),
    "personal": Table(
        "datakit.annotate.personal.config:PersonalConfig", kernels=True, spans=("spans",), columns=("spans",)
    ),
    "classifier_fasttext": Table(
        "datakit.annotate.classifier.config:FasttextClassifierConfig", kernels=True, nameable=True
    ),
    "classifier_linear": Table(
        "datakit.annotate.classifier.config:LinearClassifierConfig", kernels=True, columns=("score",), nameable=True
    ),
    "classifier_onnx": Table(
        "datakit.annotate.onnx_classifier.config:OnnxClassifierConfig",
        operations=("tokenizer",),
        loaded_by_tasks=True,
        nameable=True,
    ),
    "contamination": Table(
        "datakit.annotate.contamination.config:Config",
        kernels=True,
        files="sets",
        operations=("index_folder",),
        spans=("spans",),
        columns=("items", "hits", "spans"),
    ),
    "urls": Table("datakit.annotate.lists.config:UrlsConfig", kernels=True, files="lists"),
    "words": Table("datakit.annotate.lists.config:WordsConfig", kernels=True, files="lists", spans=("spans",)),
}


ANNOTATOR = "annotator"  # the setting that holds the built-in annotator of a table that the recipe has named


@dataclass(frozen=True)
class Chosen:
    """A table in [annotate] that chooses a built-in annotator. name: that of its table of attributes, which is the
    annotator's unless the recipe gives one (`named`).
    """

    annotator: str
    name: str
    values: Any
    named: bool = False


def chosen_tables(annotate: Mapping[str, Any]) -> Iterator[Chosen]:
    """Yield the built-in annotators that [annotate] chooses, in the order of TABLES. A table of a nameable annotator
    that holds tables holds named ones; keys beside them, which are a mistake, are yielded as an unnamed one.
    """
    for annotator, about in TABLES.items():
        if annotator not in annotate:
            continue
        values, named = annotate[annotator], dict[str, Any]()
        if about.nameable and isinstance(values, Mapping):
            named = {name: one for name, one in values.items() if isinstance(one, Mapping)}
            values = {name: one for name, one in values.items() if name not in named}
        if values or not named:
            yield Chosen(annotator, annotator, values)
        for name, one in named.items():
            yield Chosen(annotator, name, one, named=True)


def annotator_of(name: str, settings: Mapping[str, Any]) -> str | None:
    """Return the built-in annotator of a table of attributes; None for a function of the user or a model server.
    settings: the annotator's.
    """
    annotator = settings.get(ANNOTATOR, name)
    return annotator if annotator in TABLES else None


def heading(name: str, settings: Mapping[str, Any]) -> str:
    """Return the header of a built-in annotator's table in the recipe, for messages.

    >>> heading("language", {}), heading("quality", {"annotator": "classifier_linear"})
    ('[annotate.language]', '[annotate.classifier_linear.quality]')
    """
    return f"[annotate.{settings[ANNOTATOR]}.{name}]" if ANNOTATOR in settings else f"[annotate.{name}]"


def annotators_of(
    settings: Mapping[str, dict[str, Any]], answers: Mapping[str, str] = MappingProxyType({})
) -> dict[str, Annotator]:
    """Return the annotators with these settings, by name, in the order of their names. answers: the file with the
    answers of each model server about the documents of a partition. Raises what the `annotator` of their settings and
    `UserAnnotator` raise.
    """
    from datakit.annotate.user.annotator import UserAnnotator

    found: dict[str, Annotator] = {**built_in(built_in_settings(settings))}
    servers = servers_of(settings)
    for name, values in settings.items():
        if name in servers:
            from datakit.annotate.model_server.annotator import ModelServerAnnotator

            found[name] = ModelServerAnnotator(name, config_of(values, ModelServerConfig), answers[name])
        elif annotator_of(name, values) is None:
            found[name] = UserAnnotator(config_of(values, UserSettings))
    return dict(sorted(found.items()))


def built_in_settings(settings: Mapping[str, dict[str, Any]]) -> str:
    """Return the settings of the built-in annotators among these, as JSON."""
    chosen = {name: values for name, values in settings.items() if annotator_of(name, values)}
    return msgspec.json.encode(chosen, order="sorted").decode()


@cache
def built_in(settings: str) -> dict[str, Annotator]:
    """Return the built-in annotators with these settings, a JSON object, by name. They are made once in each process,
    as some load a model.
    """
    chosen: Mapping[str, dict[str, Any]] = json.loads(settings)
    found = dict[str, Annotator]()
    for name, values in sorted(chosen.items()):
        found[name] = config_of(values, TABLES[values.get(ANNOTATOR, name)].kind).annotator()
        if ANNOTATOR in values:
            found[name].name = name  # messages name the table, not only its kind
    return found
