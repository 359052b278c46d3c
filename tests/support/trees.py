"""Compares the outputs of runs: everything below a root except ledgers, logs and the hint `latest.json`."""

from __future__ import annotations

from datakit.storage import atomic, urls
from datakit.storage.manifest import Manifest, read_manifest

ASIDE = ("ledger", "runs", "latest.json")


def tree(root: str) -> dict[str, str]:
    """Relative path -> xxh3-128 of the content, of every output below a local or remote root."""
    files = (info for info in urls.listing(root) if not set(ASIDE) & set(info.path.split("/")))
    return {info.path: atomic.hash_url(info.url)[0] for info in files}


def manifests(root: str) -> dict[str, Manifest]:
    """Step directory relative to the root -> its manifest."""
    found = [
        info.path.removesuffix("/manifest.json") for info in urls.listing(root) if info.path.endswith("manifest.json")
    ]
    return {path: read_manifest(urls.join(root, path)) for path in found}


def only(root: str, stage: str, dataset: str | None = None) -> tuple[str, Manifest]:
    """The directory (absolute) and manifest of the one step of a stage (of a dataset or source)."""
    found = [
        (urls.join(root, path), manifest)
        for path, manifest in manifests(root).items()
        if manifest.stage == stage and dataset in (None, manifest.dataset)
    ]
    assert len(found) == 1, f"{len(found)} steps of {stage}"
    return found[0]
