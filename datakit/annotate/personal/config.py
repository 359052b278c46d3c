"""Defines the settings of the annotator `personal`. Kernels are loaded by `annotator` only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from datakit.annotate.annotator import Annotator
from datakit.annotate.personal.kinds import KINDS, check_kinds
from datakit.errors import RecipeError
from datakit.toml_config import key


@dataclass(frozen=True)
class PersonalConfig:
    """The settings of the annotator `personal`."""

    VERSION: ClassVar[int] = 1

    kinds: Annotated[tuple[str, ...], key("The kinds that are searched for; all if omitted.", ["email", "phone"])] = (
        KINDS
    )

    def __post_init__(self) -> None:
        if not self.kinds:
            raise RecipeError("kinds is empty; name at least one kind, or remove the setting to search for all of them")
        check_kinds("kinds", self.kinds)

    def annotator(self) -> Annotator:
        """Return the annotator with its kernels loaded."""
        from datakit.annotate.personal.annotator import PersonalData
        from datakit.annotate.warming import warmed

        return warmed(PersonalData(self.VERSION, self.kinds))
