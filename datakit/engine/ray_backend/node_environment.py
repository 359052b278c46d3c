"""Decides which of the driver's environment variables the nodes of a cluster get, and sets them in a worker process.

Ray stores a runtime environment in the head node's metadata, writes it to its logs and puts it on the command lines of
its processes, which every user of a node can read. Therefore the variables are an argument of each task; Ray sends
arguments between processes and stores them nowhere. Connections are encrypted only if Ray's TLS is on, so secrets are
sent only if the user lists their names in DATAKIT_RAY_FORWARD. By default, every node uses its own credentials.

A worker process keeps the variables until it gets an attempt with different ones, as when a program changes its
environment and opens a second executor. Store clients and fork servers that used the old variables are then dropped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from datakit.errors import UsageError
from datakit.redaction import has_user_info, is_secret_name

FORWARD = "DATAKIT_RAY_FORWARD"  # names of further variables to send, separated by commas; a name may end with `*`
OWN = "DATAKIT_"
SETTINGS = (  # what a store's client needs to know besides its credentials
    *("AWS_DEFAULTS_MODE", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_MAX_ATTEMPTS"),
    *("AWS_REGION", "AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION", "AWS_RETRY_MODE"),
    *("AWS_USE_DUALSTACK_ENDPOINT", "AWS_USE_FIPS_ENDPOINT", "HF_ENDPOINT"),
)
STORES = ("AWS_", "AZURE_STORAGE_", "FSSPEC_", "GOOGLE_APPLICATION_CREDENTIALS", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")

_before: dict[str, str | None] = {}  # the variables set by `adopt`, with their previous values (None: unset)
_adopted: dict[str, str] | None = None


def sent_variables() -> dict[str, str]:
    """Return the variables that the nodes get. Raises UsageError if DATAKIT_RAY_FORWARD names one that is not set."""
    listed = _listed()
    return {name: value for name, value in os.environ.items() if _is_setting(name, value) or name in listed}


def withheld_variables() -> tuple[str, ...]:
    """Return the names of those variables of this process that concern stores but are not sent to the nodes."""
    sent = sent_variables()
    return tuple(sorted(name for name in os.environ if name.startswith(STORES) and name not in sent))


def how_to_send(names: Iterable[str]) -> str:
    """Return a clause that advises giving a node its own credentials or sending it the variables `names`."""
    return f"give it credentials of its own, or send this machine's with {FORWARD}={','.join(names)}"


def adopt(variables: Mapping[str, str]) -> bool:
    """Set the variables in this process, in place of those that an earlier call set. Return True if they have changed;
    the caller must then drop whatever it made with the old ones.
    """
    global _adopted  # noqa: PLW0603 - an environment belongs to the process
    if variables == _adopted:
        return False
    for name, value in _before.items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    _before.clear()
    _before.update({name: os.environ.get(name) for name in variables})
    os.environ.update(variables)
    _adopted = dict(variables)
    _drop_clients()
    return True


def _is_setting(name: str, value: str) -> bool:
    known = name in SETTINGS or name.startswith(OWN)
    return known and not is_secret_name(name) and not has_user_info(value)


def _listed() -> set[str]:
    found = set[str]()
    for pattern in filter(None, map(str.strip, os.environ.get(FORWARD, "").split(","))):
        names = {name for name in os.environ if fnmatchcase(name, pattern)}
        if pattern.startswith("*"):
            raise UsageError(f"{FORWARD}: {pattern} matches too many variables; list names or prefixes, such as AWS_*")
        if not names:
            raise UsageError(f"{FORWARD} names {pattern}, which is not set here; set it, or remove it from the list")
        found |= names
    return found


def _drop_clients() -> None:
    """If fsspec is loaded, make it read its settings again and create new clients."""
    if "fsspec" in sys.modules:
        import fsspec
        from fsspec.config import conf, conf_dir, set_conf_env, set_conf_files

        conf.clear()
        set_conf_files(conf_dir, conf)
        set_conf_env(conf)
        for kind in fsspec.registry.values():
            kind.clear_instance_cache()
