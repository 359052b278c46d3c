"""Names the two ways in which a record of an archive does not become a document."""

from __future__ import annotations


class LeftOutError(Exception):
    """A sound record that is not meant to become a document. counter: the counter under which it is counted."""

    def __init__(self, counter: str) -> None:
        super().__init__(counter)
        self.counter = counter


class BrokenRecordError(Exception):
    """A record that cannot be used. Its message is the reason for its quarantine, which quotes no document."""
