"""Defines the option types that several commands share: `Flag` for switches, and `Settings` for `--set`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

Flag = Annotated[bool, Parameter(negative="", show_default=False)]
Settings = Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)]
