"""The cases, one module per kind of tree."""

from __future__ import annotations

from tests.support.hostile.case import Case
from tests.support.hostile.kinds import (
    archives,
    bombs,
    caches,
    checkpoints,
    columnar,
    formats,
    json_and_csv,
    ledgers,
    links,
    manifests,
    names,
    object_keys,
    recipes,
    special_files,
    tokenizers,
)

ALL: tuple[Case, ...] = (
    *json_and_csv.CASES,
    *columnar.CASES,
    *archives.CASES,
    *formats.CASES,
    *bombs.CASES,
    *names.CASES,
    *links.CASES,
    *special_files.CASES,
    *manifests.CASES,
    *ledgers.CASES,
    *tokenizers.CASES,
    *recipes.CASES,
    *caches.CASES,
    *checkpoints.CASES,
    *object_keys.CASES,
)
