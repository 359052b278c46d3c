"""Defines the settings of a stage in two parts: those that enter its fingerprint and its manifest, and those that do
not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Settings:
    """A stage's settings as JSON values. `content` enters the fingerprint and the manifest; `operations` does not."""

    content: dict[str, Any]
    operations: dict[str, Any]


# Stage -> source (None: the whole dataset) -> settings. Sources are in recipe order. Disabled stages are absent.
Configuration = dict[str, dict[str | None, Settings]]
