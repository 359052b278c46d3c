"""Stage `contract`: makes the contract of the token cache (`make_contract.py`), and keeps the tokenizer.json with which
it was made. It reads no text. A step depends on the tokenizer and on the settings that decide what its tokens mean, not
on the dataset: so the contract is made while the sources are normalized, a tokenizer that cannot be used is reported in
the first seconds of a run, and new data does not make the contract again. Only a trained tokenizer has an input: the
step that trained it.

Every node of a cluster reads the tokenizer from this step. The tokenize step writes a copy into the cache, so a cache
can be used without this step.

Cost: one task of 1 to 2 CPU-seconds and about 140 MB of memory, mostly to load the tokenizer with both libraries.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from datakit.cache.contract import Contract
from datakit.cache.layout import TOKENIZER_FILE
from datakit.engine.task import Output, OutputFile, Phase, Plan, Step, StepInput, Task, TaskContext, TaskResult
from datakit.errors import CorruptError, TokenizerError
from datakit.storage import atomic, urls
from datakit.storage.fingerprint import config_of
from datakit.storage.manifest import Partition, manifest_url
from datakit.tokenize import train_stage
from datakit.tokenize.encoders.base import Encoder
from datakit.tokenize.encoders.custom import code_of, describe, is_custom
from datakit.tokenize.encoders.tokenizer import limit_threads, parse
from datakit.tokenize.make_contract import AnyTokenizer, make_contract

NAME = "contract"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Config:
    """The settings of the tokenize stage (`tokenize/config.py`) that determine the contract. tokenizer: "" if the
    tokenizer is a file, which `tokenizer_sha256` identifies.
    """

    tokenizer: str = ""
    tokenizer_sha256: str = ""
    tokenizer_version: str | int | None = None
    encoder: str = "auto"
    add: str = "eos"
    bos: str | None = None
    eos: str | None = None
    special_strings: str = "keep"


def plan(step: Step) -> Plan:
    """Plan one task, which writes tokenizer.json and makes the contract."""
    config = config_of(step.parameters, Config)
    names = ("encoder", "add", "bos", "eos", "special_strings")
    task = Task("contract", f"{__name__}:settle", {name: getattr(config, name) for name in names})
    code = code_of(config.tokenizer)
    shared = {"tokenizer": _tokenizer_file(step, config), **({"code": code} if code else {})}
    (settled,) = yield Phase("contract", (task,), shared=shared)
    (file,) = settled.outputs
    partition = Partition(file.path, step.dataset, file.rows, file.bytes, file.xxh3)
    return Output([partition], train_stage.SCHEMA, details=settled.details)


def _tokenizer_file(step: Step, config: Config) -> bytes:
    """Return the content of the tokenizer.json. Raises TokenizerError if the tokenizer was given as a file that has
    changed since the step was planned.
    """
    if is_custom(config.tokenizer):
        return describe(config.tokenizer, config.tokenizer_version)
    for trained in step.inputs_of(train_stage.NAME):
        return urls.read_bytes(urls.join(trained.directory, TOKENIZER_FILE))
    path = step.operations["tokenizer_path"]
    data = urls.read_bytes(path)
    found = hashlib.sha256(data).hexdigest()
    if found != config.tokenizer_sha256:
        raise TokenizerError(
            f"{path} has the sha256 {found}, but the step was planned with {config.tokenizer_sha256}; run the recipe "
            "again"
        )
    return data


def settle(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Make the contract, write tokenizer.json into the step's directory, and return both."""
    data, url = shared["tokenizer"], urls.join(context.step_directory, TOKENIZER_FILE)
    tokenizer = parse(data, url, shared.get("code", ""))
    encoder = tokenizer.encoder(arguments["encoder"], arguments["special_strings"])
    limit_encoders(tokenizer, encoder, context)
    ends = (arguments[name] for name in ("add", "bos", "eos"))
    contract = make_contract(tokenizer, encoder, *ends, special_strings=arguments["special_strings"])
    committed = atomic.commit_bytes(data, url)
    file = OutputFile(TOKENIZER_FILE, committed.bytes, committed.xxh3, contract.vocabulary_size)
    counters = {"contract/vocabulary": contract.vocabulary_size}
    return TaskResult((file,), counters, details={"contract": msgspec.to_builtins(contract)})


def limit_encoders(tokenizer: AnyTokenizer, encoder: Encoder, context: TaskContext) -> None:
    """Make the encoder and the reference encoder each start their threads now, at most as many as the task has CPUs."""
    for each in (encoder, tokenizer.reference_encoder()):
        if each is not None:
            limit_threads(each, context.cpus)


def contract_of(settled: StepInput) -> Contract:
    """Return the contract that a step has made. Raises CorruptError if its manifest holds none."""
    try:
        return msgspec.convert(settled.manifest.details["contract"], Contract)
    except (KeyError, msgspec.ValidationError) as error:
        raise CorruptError(f"{manifest_url(settled.directory)} holds no contract of a token cache: {error}") from error
