"""Reads the key of a model server from the environment, the only place where a key may be. Child processes inherit the
driver's environment; the nodes of a cluster have their own, or are sent the variable with DATAKIT_RAY_FORWARD.
"""

from __future__ import annotations

import os

from datakit.annotate.model_server.config import ModelServerConfig
from datakit.errors import ModelServerError


def server_key(name: str, config: ModelServerConfig) -> str:
    """Return the key from the environment, or "" if the recipe names no variable. Raises ModelServerError, without the
    key, if the variable is not set or its value cannot be a key.
    """
    if not config.key_env:
        return ""
    key = os.environ.get(config.key_env, "").strip()
    place = f"annotate.model_server.{name}"
    if not key:
        raise ModelServerError(
            f"{place}: the environment variable {config.key_env}, which holds the key of {config.host}, is not set; "
            f"set it (on a cluster, on each node, or send it with DATAKIT_RAY_FORWARD={config.key_env})"
        )
    if not key.isascii() or not key.isprintable() or " " in key:
        raise ModelServerError(
            f"{place}: the value of the environment variable {config.key_env} is not a key: it contains white space "
            "or other unusual characters"
        )
    return key
