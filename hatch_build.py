"""Puts the bill of materials (SBOM) that `make wheel` has written into the wheel, under `*.dist-info/sboms/`. Other
builds, such as an editable installation, have none.
"""

from __future__ import annotations

import os
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

VARIABLE = "DATAKIT_SBOM"


class Sbom(BuildHookInterface):
    """The build hook that hatchling finds in this file."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file that the environment variable names, if it is set."""
        path = os.environ.get(VARIABLE)
        if path is not None:
            build_data["sbom_files"].append(os.path.abspath(path))
