"""Defines what an exchange writer needs to know of its input: which rows may be committed, since their input is sound.

Some inputs are known to be sound only after they were read to the end: a compressed stream has its checksum there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class InputState(Protocol):
    """The state of a task's input while it is read: how much of it is known to be sound.

    The parts of the input are numbered from 1 in the order of reading: `begun` parts were begun, and the first `sound`
    parts were verified. Rows may come from every part that was begun when they were written.
    """

    @property
    def begun(self) -> int:
        """The number of parts begun so far."""
        ...

    @property
    def sound(self) -> int:
        """The number of parts verified so far."""
        ...

    def verify(self) -> None:
        """Verify all parts begun so far, if need be by reading them ahead. Raises an exception if one is not sound."""
        ...


@dataclass(frozen=True)
class SoundInput:
    """An input that needs no verification."""

    begun: int = 0
    sound: int = 0

    def verify(self) -> None:
        """Do nothing."""


SOUND = SoundInput()
