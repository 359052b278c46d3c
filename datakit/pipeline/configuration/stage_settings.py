"""Computes a stage's settings from its decoded table, and separates those that enter fingerprints from those that do
not. Every default is filled in, so two recipes with equal settings share their steps. Limits on quarantined and removed
records (`TOLERANCES`) never change a byte of output. They are kept out of fingerprints, so that a stopped run can be
resumed with a higher limit.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec

from datakit.annotate import stage as annotate
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.annotate.tables import ANNOTATOR, TABLES
from datakit.annotate.user.config import UserConfig, separated
from datakit.engine.task import TOLERANCES
from datakit.engine.user_modules import CODE_FOLDER
from datakit.errors import RecipeError
from datakit.normalize import stage as normalize
from datakit.normalize.config import without_unset
from datakit.passages import stage as passages
from datakit.pipeline.configuration.settings import Settings
from datakit.pipeline.configuration.tables import TRAIN, Table, without
from datakit.pipeline.configuration.tokenizer_file import PATH, file_hash
from datakit.select import stage as select
from datakit.select.final.equal_texts import EQUAL
from datakit.select.final.plan import RULES
from datakit.select.plan_edits import EDITS
from datakit.storage.fingerprint import config_of
from datakit.storage.globs import expand
from datakit.storage.selection.buckets import FOLDER as BUCKETS
from datakit.tokenize import contract_stage
from datakit.tokenize import stage as tokenize
from datakit.tokenize.config import without_later
from datakit.tokenize.encoders.custom import is_custom
from datakit.tokenize.templates.template_file import read_template
from datakit.toml_config import convert, names_of


def settings_of(table: Table, config: Any, folder: str) -> Settings:
    plain = msgspec.json.decode(msgspec.json.encode(asdict(config)))
    content, operations = without(plain, TOLERANCES), {key: plain[key] for key in TOLERANCES if key in plain}
    if table.stage == annotate.NAME:
        content["annotators"], paths = _annotator_settings(table, folder)
        operations[annotate.MODELS] = _model_paths(table)
        operations |= {annotate.PATHS: paths} if paths else {}
    if table.stage == passages.NAME:
        content[passages.SEARCHES] = {one.subtable_name: _plain(one) for one in table.subtables}
    if table.stage == select.NAME:
        content = _select_content(content, table)
    if table.stage == normalize.NAME:
        content = {**without_unset(content), "source": table.source}
        operations |= {CODE_FOLDER: folder} if content["transform"] else {}
    if table.stage == tokenize.NAME:
        content = without_later(content)
        if content["tokenizer"] != TRAIN and not is_custom(content["tokenizer"]):
            operations[PATH] = content.pop("tokenizer")
            content["tokenizer_sha256"] = file_hash(operations[PATH])
        if config.renders_templates:
            place = {"file": expand(content.pop("chat_template", "")), "date": content.pop("chat_date", "")}
            operations[contract_stage.CHAT_TEMPLATE] = place
            template = read_template(place["file"], operations.get(PATH, ""), place["date"])
            content[contract_stage.CHAT_TEMPLATE_SHA256] = template.sha256
    return Settings(content, operations)


def contract_settings(settings: Settings) -> Settings:
    """Return the settings of the contract stage, which are those of the tokenize stage that determine the contract.
    settings: those of the tokenize stage.
    """
    content = {key: settings.content[key] for key in names_of(contract_stage.Config) if key in settings.content}
    kept = (PATH, contract_stage.CHAT_TEMPLATE)
    operations = {key: settings.operations[key] for key in kept if key in settings.operations}
    if config_of({"tokenizer": "", **settings.content}, tokenize.Config).has_loss_masks:
        operations[contract_stage.LOSS_MASKS] = True
    return Settings(content, operations)


def _select_content(content: dict[str, Any], table: Table) -> dict[str, Any]:
    """Return the settings of select, without those that have no effect in this recipe."""
    unused = {name for name in (RULES, BUCKETS) if not content[name]} | ({EQUAL} if not table.subtables else set())
    edits = {EDITS: {one.subtable_name: _plain(one) for one in table.subtables}} if table.subtables else {}
    return {**without(content, unused), **edits}


def _annotator_settings(table: Table, folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of the chosen annotators as they enter the fingerprint, and their other settings, by name.
    The former include the version of each annotator, and the hashes of models and other files in place of their paths.
    """
    if not table.subtables:
        raise RecipeError(
            f"{table.place}: no annotator is chosen; add a subtable such as [annotate.{next(iter(TABLES))}]"
        )
    found, paths = {}, {}
    for one in table.subtables:
        name, config = one.subtable_name, convert(one.values, one.kind, one.place)
        if isinstance(config, UserConfig):
            found[name], paths[name] = separated(config, name, one.place, folder)
            continue
        if isinstance(config, ModelServerConfig):
            found[name], paths[name] = config.content(), config.operations()
            continue
        values = msgspec.json.decode(msgspec.json.encode(asdict(config)))
        hashed = (annotate.MODEL,) if values.get("sha256") else ()
        content, others = TABLES[one.annotator].separated(values, one.place)
        found[name] = {**without(content, hashed), "version": one.kind.VERSION}
        found[name] |= {ANNOTATOR: one.annotator} if one.named else {}
        paths |= {name: others} if others else {}
    return found, paths


def _model_paths(table: Table) -> dict[str, str]:
    """Return the path of each annotator's model whose sha256 the recipe gives."""
    hashed = [one for one in table.subtables if one.values.get("sha256") and annotate.MODEL in one.values]
    return {one.subtable_name: one.values[annotate.MODEL] for one in hashed}


def _plain(table: Table) -> dict[str, Any]:
    """Return the settings of a table as JSON values, with every default written out."""
    return msgspec.json.decode(msgspec.json.encode(asdict(convert(table.values, table.kind, table.place))))
