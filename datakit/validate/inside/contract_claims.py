"""Rebuilds the contract of a token cache or of a contract step from the step's tokenizer.json and parameters, and
compares it with the recorded contract.

The encoder's name, version and handling of long texts depend on the installed libraries, so they are not compared. The
contract is compared only on machines that have the library `tokenizers`. If the tokenizer.json names a Python function,
this function is not imported, because a cache may come from a stranger; then the contract is compared with what the
file states, and the ids of the golden strings are not checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from datakit.cache.contract import AS_TEXT, Contract
from datakit.cache.layout import REMEDY, STAGE, TOKENIZER_FILE, content_of
from datakit.errors import TokenizerError
from datakit.storage import urls
from datakit.storage.manifest import Manifest
from datakit.validate.finding import Result
from datakit.validate.subject import Subject

if TYPE_CHECKING:
    from datakit.tokenize.encoders.custom import Description

COMPARED = ("vocabulary_size", "bos", "eos", "golden", "special_strings")


def check(step: Subject, result: Result) -> None:
    """Find where the contract contradicts the parameters or the tokenizer.json."""
    contract = _recorded(step)
    if contract is None:
        return result.skip("the manifest contradicts itself")
    if not step.sound(step.url(TOKENIZER_FILE)):
        return result.skip(f"{TOKENIZER_FILE} is damaged")
    result.count("contract")
    for difference in _differences(step.directory, step.manifest, contract, result):
        result.find(step.manifest_url, difference, REMEDY)
    return None


def _recorded(step: Subject) -> Contract | None:
    """Return the contract that a manifest holds, or None if it holds none."""
    if step.details is not None:
        return step.details.contract
    try:
        return (
            msgspec.convert(step.manifest.details.get("contract"), Contract) if step.manifest.stage != STAGE else None
        )
    except msgspec.ValidationError:
        return None


def _differences(directory: str, manifest: Manifest, contract: Contract, result: Result) -> Iterator[str]:
    parameters = manifest.parameters
    if "imported" in parameters:
        if msgspec.convert(parameters["contract"], Contract) != contract:
            yield "has two different contracts"
        if parameters.get("content", computed := content_of(manifest.partitions)) != computed:
            yield "describes shards other than those that were imported"
    sha256 = parameters.get("tokenizer_sha256", contract.tokenizer_sha256)
    if sha256 != contract.tokenizer_sha256:
        yield f"gives the tokenizer two sha256 hashes: {contract.tokenizer_sha256} and {sha256}"
    try:
        made = _made_again(urls.join(directory, TOKENIZER_FILE), contract, parameters)
    except TokenizerError as error:
        yield f"has a contract that its tokenizer cannot fulfill: {error}"
        return
    if made is None:
        result.skip("the tokenizer cannot be loaded here, so the contract's golden ids are not compared")
        return
    for name in COMPARED:
        said, found = getattr(contract, name), getattr(made, name)
        if said != found:
            yield f"says that the contract's {name} is {said}; its tokenizer gives {found}"


def _made_again(place: str, contract: Contract, parameters: dict[str, Any]) -> Contract | None:
    """Return the contract that follows from the tokenizer and the parameters; None if the tokenizer cannot be loaded.

    The parameters of an imported cache do not state which tokens are added, so these are taken from `contract`.
    """
    try:
        from datakit.tokenize.encoders.custom import BUILT_IN, is_description, read_description
        from datakit.tokenize.encoders.tokenizer import Tokenizer
        from datakit.tokenize.make_contract import contract_without_probe
        from datakit.validate.tokenizer_file import tokenizer_at
    except ModuleNotFoundError:
        return None
    data = urls.read_bytes(place)
    if is_description(data):
        description = read_description(data, place)
        if description.function not in BUILT_IN:
            return _as_described(contract, description)
    try:
        tokenizer = tokenizer_at(place)
    except TokenizerError:  # the file cannot be loaded here, so no contract can be made from it
        return None
    bos, eos = (special.token if special is not None else None for special in (contract.bos, contract.eos))
    add = {(True, True): "both", (True, False): "bos", (False, True): "eos"}.get((bool(bos), bool(eos)), "none")
    special = "text" if contract.special_strings == AS_TEXT else "keep"
    ends = {"add": add, "bos": bos, "eos": eos, "special_strings": special}
    ends |= {name: parameters[name] for name in ends if name in parameters}
    encoder = tokenizer.encoder("tokenizers" if isinstance(tokenizer, Tokenizer) else "auto")
    return contract_without_probe(tokenizer, encoder, **ends)


def _as_described(contract: Contract, description: Description) -> Contract:
    """Return the contract with the vocabulary size and the ids of its bos and eos tokens replaced by those in
    `description`."""
    ends = {
        name: msgspec.structs.replace(special, id=description.special.get(special.token, -1))
        for name in ("bos", "eos")
        if (special := getattr(contract, name)) is not None
    }
    return msgspec.structs.replace(contract, vocabulary_size=description.vocabulary_size, **ends)
