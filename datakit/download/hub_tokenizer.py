"""Loads the tokenizer.json of a model on the Hugging Face Hub, such as `openai-community/gpt2`, and keeps a copy beside
the steps of the dataset. The copy's file name contains the revision (commit) that the model's name stood for when the
copy was made. Later runs use this copy, so the meaning of a model's name never changes within a dataset, and
`--offline` works. A name such as `openai-community/gpt2@607a30d` selects a revision.
"""

from __future__ import annotations

import os
import re
from typing import Any

from datakit.errors import TokenizerError
from datakit.storage import atomic, urls

FILE = "tokenizer.json"
COMMIT = re.compile("[0-9a-f]{40}")


def hub_tokenizer(name: str, folder: str, *, offline: bool, dry_run: bool) -> tuple[str, str]:
    """Return the commit that a model's name stands for, and the path of its tokenizer.json. The file is copied to
    `folder` unless a copy is there already. With `dry_run`, a missing copy is not made, and the path is the one in
    huggingface_hub's cache. Raises TokenizerError.
    """
    kept = _kept(folder, name)
    if kept is not None:
        return kept
    if offline:
        raise TokenizerError(f"tokenizer {name} has not been loaded from the Hub yet; run once without --offline")
    repository, _, revision = name.partition("@")
    commit, path = _from_hub(name, repository, revision)
    if dry_run:
        return commit, path
    copy = urls.join(folder, f"{_file_name(name)}@{commit}.json")
    atomic.commit_bytes(urls.read_bytes(path), copy)
    return commit, copy


def _kept(folder: str, name: str) -> tuple[str, str] | None:
    """Return the commit and the path of the copy that an earlier run kept for this name, or None if there is none."""
    for info in urls.listing(folder):
        start, _, commit = info.path.removesuffix(".json").rpartition("@")
        if start == _file_name(name):
            return commit, info.url
    return None


def _file_name(name: str) -> str:
    return name.replace("/", "--")


def _from_hub(name: str, repository: str, revision: str) -> tuple[str, str]:
    """Return the commit that the name stands for, and the path of its tokenizer.json in huggingface_hub's cache."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        advice = "run pip install '.[hf]' in datakit's checkout"
        raise _not_loaded(name, f"huggingface_hub is not installed ({advice})") from error
    endpoint: dict[str, Any] = {"endpoint": os.environ.get("HF_ENDPOINT")}
    try:
        commit = revision
        if not COMMIT.fullmatch(revision):
            commit = huggingface_hub.HfApi(**endpoint).model_info(repository, revision=revision or None).sha or ""
        return commit, str(huggingface_hub.hf_hub_download(repository, FILE, revision=commit, **endpoint))
    except errors.RepositoryNotFoundError as error:
        raise _not_loaded(name, "the Hub has no such model, or it is private (set HF_TOKEN)") from error
    except errors.RevisionNotFoundError as error:
        raise _not_loaded(name, f"the model has no revision {revision!r}") from error
    except errors.EntryNotFoundError as error:
        raise _not_loaded(name, f"the model has no {FILE}" if "404" in str(error) else _reason(error)) from error
    except Exception as error:  # huggingface_hub's HTTP client raises errors of many types
        raise _not_loaded(name, f"the download from the Hub failed ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _not_loaded(name: str, reason: str) -> TokenizerError:
    return TokenizerError(
        f"tokenizer {name} was not found: there is no such file, and as a name on the Hugging Face Hub it cannot be "
        f"loaded, because {reason}"
    )
