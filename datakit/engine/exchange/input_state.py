"""Defines how an exchange writer learns how much of its input is sound. Only rows from sound parts may be committed.

Some inputs are known to be sound only after they have been read to the end: a compressed stream, for example, ends with
its checksum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class InputState(Protocol):
    """The state of a task's input during reading: how much of the input is known to be sound.

    The parts of the input are numbered from 1 in the order of reading: `begun` of them have been begun, and the first
    `sound` of them have been verified. A row may come from any part that had been begun when the row was written.
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
        """Verify all parts begun so far, reading ahead if need be. Raises an exception if a part is not sound."""
        ...


@dataclass(frozen=True)
class SoundInput:
    """An input that needs no verification."""

    begun: int = 0
    sound: int = 0

    def verify(self) -> None:
        """Do nothing."""


SOUND = SoundInput()
