"""Every error that datakit raises on purpose, in one tree.

    DatakitError                     exit code 1
    |-- InputError                   exit code 2: the user can mend it
    |   |-- UsageError               a flag or a command that cannot be
    |   |-- RecipeError              a recipe that says something impossible or unknown
    |   |-- NoInputError             a source that resolves to no file
    |   |-- EmptyStageError          a stage that yields no record
    |   |-- ColumnError              a missing text column, or two files whose columns do not fit together
    |   |-- UnreadableError          an input that cannot be opened or decoded
    |   |-- ChangedInputError        an input that is no longer what was listed
    |   |-- RootError                an output root without permission, space, or not shared by the nodes
    |   |-- TokenizerError           a tokenizer file that cannot be used, or is not the one of the cache
    |   `-- LoaderError              a mixture, schedule or packing that cannot be
    |       `-- MixtureChangedError  a run that would go on with another past than its checkpoint's
    |-- StorageError                 a disk or an object store that fails
    |   |-- NoSpaceError             a disk that is full
    |   |-- NotFoundError            a file that should be there
    |   |-- CorruptError             bytes that do not match their checksum, or a file that does not parse
    |   `-- DivergentOutputError     a task that was run twice and wrote two different outputs
    |-- TaskError                    a task function that refuses its input, with a reason
    |-- StepFailedError              a step whose tasks failed alike: nothing to go on with
    |-- CheckpointError              a checkpoint that is wanted and is not there, or is of another run
    |-- DivergedError                exit code 4: the loss or a gradient is no number; the last good checkpoint stays
    `-- PartialError                 exit code 3: some tasks failed, all others are done and kept

A message names the thing, the place and the next step. It never holds document text: logs are shared more widely
than corpora.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DatakitError(Exception):
    """The root of the tree; `exit_code` is what the command line ends with."""

    exit_code = 1


class InputError(DatakitError):
    """Something that the user gave cannot be used as it is."""

    exit_code = 2


class UsageError(InputError):
    """A flag or a command that cannot be."""


class RecipeError(InputError):
    """A recipe that says something impossible or unknown."""


class NoInputError(InputError):
    """A source that resolves to no file."""


class EmptyStageError(InputError):
    """A stage that yields no record at all."""


class ColumnError(InputError):
    """A missing column, or columns of two files that do not fit together."""


class UnreadableError(InputError):
    """An input file that cannot be opened or decoded."""


class ChangedInputError(InputError):
    """An input file that is no longer what was listed: what is read now is of no listing."""


class RootError(InputError):
    """An output root without write permission or space, or one that the nodes do not share."""


class TokenizerError(InputError):
    """A tokenizer that cannot be loaded, or is not the one that the cache was made with."""


class LoaderError(InputError):
    """A mixture, a schedule or a packing that cannot be: it names the component and the setting."""


class MixtureChangedError(LoaderError):
    """A run resumes, but what it has read so far is not what this mixture would have given."""


class StorageError(DatakitError):
    """A disk or an object store that fails."""


class NoSpaceError(StorageError):
    """A disk that is full: the root's, or the one for temporary files."""


class NotFoundError(StorageError):
    """A file that should be there and is not."""


class CorruptError(StorageError):
    """Bytes that do not match their checksum, or a file of ours that does not parse."""


class DivergentOutputError(StorageError):
    """The same task wrote two different outputs: it is not deterministic. The first one stays."""


class TaskError(DatakitError):
    """A task function refuses its input and says why."""


class StepFailedError(DatakitError):
    """A step whose tasks fail alike; nothing to go on with."""


class CheckpointError(DatakitError):
    """A checkpoint that is wanted and is not there, cannot be read, or belongs to another run."""


class DivergedError(DatakitError):
    """A training run whose loss or gradient is no number any more; its last good checkpoint stays."""

    exit_code = 4


class PartialError(DatakitError):
    """Some tasks of a step failed; the others are done and kept, and the next run retries only these."""

    exit_code = 3


def suggestion(name: str, known: Iterable[str]) -> str:
    """A clause for an error message: the nearest known name, or all of them.

    >>> suggestion("treshold", ["threshold", "bands"])
    "did you mean 'threshold'?"
    """
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known names are {', '.join(choices)}" if choices else "there are no names here"
