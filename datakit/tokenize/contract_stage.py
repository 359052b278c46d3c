"""Stage `contract`: makes the contract of the token cache (`make_contract.py`), and keeps the tokenizer.json with which
it was made. It reads no text. A step depends on the tokenizer and on the settings that decide what its tokens mean, not
on the dataset: so the contract is made while the sources are normalized, a tokenizer that cannot be used is reported in
the first seconds of a run, and new data does not make the contract again. Only a trained tokenizer has an input: the
step that trained it.

Every node of a cluster reads the tokenizer from this step. The tokenize step writes a copy into the cache, so a cache
can be used without this step.

One task writes tokenizer.json into the step's directory. Another, in a fork server that has loaded this file, makes the
contract. The tasks of tokenize use the same server (`encoders/preloaded_tokenizer.py`).

Cost: 0.3 to 0.5 s of CPU time to load the tokenizer, and 0.1 s to make the contract; about 140 MB of memory.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import msgspec

from datakit.cache.contract import ChatTemplate, Contract
from datakit.cache.layout import TOKENIZER_FILE
from datakit.engine.task import Output, OutputFile, Phase, Plan, Step, StepInput, Task, TaskContext, TaskResult
from datakit.errors import CorruptError, TokenizerError
from datakit.storage import atomic, urls
from datakit.storage.fingerprint import config_of
from datakit.storage.manifest import Partition, manifest_url
from datakit.tokenize import train_stage
from datakit.tokenize.encoders.custom import CustomTokenizer, code_of, describe, is_custom
from datakit.tokenize.encoders.preloaded_tokenizer import limit_encoders, preloaded_tokenizer, tokenizer_preloads
from datakit.tokenize.make_contract import make_contract
from datakit.tokenize.templates.template_file import read_template
from datakit.tokenize.templates.trial import tried_template

NAME = "contract"
FORMAT_VERSION = 1
CHAT_TEMPLATE = "chat_template"  # the operation parameter that says where the chat template is (`given_template`)
CHAT_TEMPLATE_SHA256 = "chat_template_sha256"  # the parameter that holds the template's hash, if there is one
LOSS_MASKS = "loss_masks"  # the operation parameter that is True if the tokenize stage will write loss masks


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
    chat_template_sha256: str = ""


def plan(step: Step) -> Plan:
    """Plan one task that writes tokenizer.json, and one that makes the contract. step.operations["loss_masks"]: see
    LOSS_MASKS; it only decides what the fork server loads.
    """
    config = config_of(step.parameters, Config)
    names = ("encoder", "add", "bos", "eos", "special_strings")
    data = given_tokenizer(step)
    (copied,) = yield Phase("copy", (Task("tokenizer", f"{__name__}:write_tokenizer", {}),), shared={"tokenizer": data})
    url, code = urls.join(step.directory, TOKENIZER_FILE), code_of(config.tokenizer)
    template = given_template(step)
    shared = {"tokenizer": url, "sha256": hashlib.sha256(data).hexdigest(), "code": code}
    shared |= {CHAT_TEMPLATE: msgspec.to_builtins(template)} if template is not None else {}
    task = Task("contract", f"{__name__}:settle", {name: getattr(config, name) for name in names})
    preloads = tokenizer_preloads(url, code, step.operations.get(LOSS_MASKS, False))
    (settled,) = yield Phase("contract", (task,), shared=shared, preloads=preloads)
    (file,), contract = copied.outputs, settled.details["contract"]
    partition = Partition(file.path, step.dataset, contract["vocabulary_size"], file.bytes, file.xxh3)
    return Output([partition], train_stage.SCHEMA, details={"contract": contract})


def given_tokenizer(step: Step) -> bytes:
    """Return the content of the tokenizer.json that the step is to keep. Raises TokenizerError if the tokenizer was
    given as a file that has changed since the step was planned.
    """
    config = config_of(step.parameters, Config)
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


def given_template(step: Step) -> ChatTemplate | None:
    """Return the chat template of the conversations; None if there is none. Raises TokenizerError if its files have
    changed since the step was planned.
    """
    config = config_of(step.parameters, Config)
    if not config.chat_template_sha256:
        return None
    place = step.operations[CHAT_TEMPLATE]
    template = read_template(place["file"], step.operations.get("tokenizer_path", ""), place["date"])
    if template.sha256 != config.chat_template_sha256:
        raise TokenizerError(
            f"the chat template has the sha256 {template.sha256}, but the step was planned with "
            f"{config.chat_template_sha256}; run the recipe again"
        )
    return template


def write_tokenizer(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Write tokenizer.json into the step's directory."""
    committed = atomic.commit_bytes(shared["tokenizer"], urls.join(context.step_directory, TOKENIZER_FILE))
    return TaskResult((OutputFile(TOKENIZER_FILE, committed.bytes, committed.xxh3),))


def settle(arguments: dict[str, Any], shared: dict[str, Any], context: TaskContext) -> TaskResult:
    """Make the contract of the tokenizer that the fork server has loaded. Raises TokenizerError if the tokenizer cannot
    be used, and CorruptError if the server has read another file than was written.
    """
    tokenizer = preloaded_tokenizer(shared["tokenizer"], shared["code"])
    if tokenizer.sha256 != shared["sha256"]:
        raise CorruptError(
            f"{shared['tokenizer']} has the sha256 {tokenizer.sha256}, but was written with {shared['sha256']}; remove "
            "the file and run again"
        )
    encoder = tokenizer.encoder(arguments["encoder"], arguments["special_strings"])
    limit_encoders(tokenizer, encoder, context)
    ends = (arguments[name] for name in ("add", "bos", "eos"))
    contract = make_contract(tokenizer, encoder, *ends, special_strings=arguments["special_strings"])
    if CHAT_TEMPLATE in shared:
        if isinstance(tokenizer, CustomTokenizer):
            raise TokenizerError("tokenize.chat_format = 'template' needs a tokenizer.json, not a custom tokenizer")
        template = msgspec.convert(shared[CHAT_TEMPLATE], ChatTemplate)
        contract = msgspec.structs.replace(contract, chat_template=tried_template(template, contract))
    counters = {"contract/vocabulary": contract.vocabulary_size}
    return TaskResult((), counters, details={"contract": msgspec.to_builtins(contract)})


def contract_of(settled: StepInput) -> Contract:
    """Return the contract that a step has made. Raises CorruptError if its manifest holds none."""
    try:
        return msgspec.convert(settled.manifest.details["contract"], Contract)
    except (KeyError, msgspec.ValidationError) as error:
        raise CorruptError(f"{manifest_url(settled.directory)} holds no contract of a token cache: {error}") from error
