"""Loads the tokenizer.json of a model on the Hugging Face Hub, such as `openai-community/gpt2`, and keeps a copy beside
the steps of the dataset. The copy's name contains the revision (commit) that the model's name stood for when the copy
was made. Later runs use this copy, so the meaning of a model's name never changes within a dataset, and `--offline`
works. A name such as `openai-community/gpt2@607a30d` selects a revision.

If the dataset renders conversations with the model's chat template, the files that define it are loaded from the same
commit. Then the copy is a folder, in which these files lie beside tokenizer.json.
"""

from __future__ import annotations

import os
import re
from typing import Any

from datakit.errors import TokenizerError
from datakit.storage import atomic, urls

FILE = "tokenizer.json"
TEMPLATE_FILES = ("tokenizer_config.json", "chat_template.jinja", "additional_chat_templates/tool_use.jinja")
COMMIT = re.compile("[0-9a-f]{40}")


def hub_tokenizer(name: str, folder: str, *, template: bool, offline: bool, dry_run: bool) -> tuple[str, str]:
    """Return the commit that a model's name stands for, and the path of its tokenizer.json. The file is copied to
    `folder` unless a copy is there already. template: also copy the files that define the model's chat template, as far
    as they exist. With `dry_run`, a missing copy is not made, and the path is the one in huggingface_hub's cache.
    Raises TokenizerError.
    """
    kept = {path: commit for commit, path in _kept(folder, name)}
    whole = next((path for path in kept if urls.name(path) == FILE), None)
    found = whole or (next(iter(kept), None) if not template else None)
    if found is not None:
        return kept[found], found
    if offline:
        what = "the chat template of tokenizer" if kept else "tokenizer"
        raise TokenizerError(f"{what} {name} has not been loaded from the Hub yet; run once without --offline")
    repository, _, revision = name.partition("@")
    # A copy that an earlier run has made without the template decides which commit the name stands for.
    commit, paths = _from_hub(name, repository, next(iter(kept.values()), revision), template)
    copy = urls.join(folder, f"{_file_name(name)}@{commit}")
    if dry_run:
        return commit, paths[FILE]
    if not template:
        return commit, _copied(paths[FILE], f"{copy}.json")
    for file, path in paths.items():  # tokenizer.json is the last one, and shows that the copy is complete
        _copied(path, urls.join(copy, file))
    return commit, urls.join(copy, FILE)


def _copied(path: str, copy: str) -> str:
    atomic.commit_bytes(urls.read_bytes(path), copy)
    return copy


def _kept(folder: str, name: str) -> list[tuple[str, str]]:
    """Return the commit and the path of each copy of tokenizer.json that an earlier run kept for this name."""
    kept = []
    for info in urls.listing(folder):
        start, _, commit = info.path.removesuffix(f"/{FILE}").removesuffix(".json").rpartition("@")
        if start == _file_name(name) and COMMIT.fullmatch(commit):
            kept.append((commit, info.url))
    return kept


def _file_name(name: str) -> str:
    return name.replace("/", "--")


def _from_hub(name: str, repository: str, revision: str, template: bool) -> tuple[str, dict[str, str]]:
    """Return the commit that the name stands for, and the paths of its files in huggingface_hub's cache."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        advice = "run pip install '.[hf]' in datakit's checkout"
        raise _not_loaded(name, f"huggingface_hub is not installed ({advice})") from error
    endpoint: dict[str, Any] = {"endpoint": os.environ.get("HF_ENDPOINT")}
    try:
        commit, there = revision, set[str]()
        if template or not COMMIT.fullmatch(revision):
            info = huggingface_hub.HfApi(**endpoint).model_info(repository, revision=revision or None)
            commit, there = info.sha or "", {one.rfilename for one in info.siblings or []}
        files = [*(file for file in TEMPLATE_FILES if template and file in there), FILE]
        load = huggingface_hub.hf_hub_download
        return commit, {file: str(load(repository, file, revision=commit, **endpoint)) for file in files}
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
