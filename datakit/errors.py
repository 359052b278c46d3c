"""Defines datakit's error classes with their exit codes, and formats hints and counts.

An error message says what is wrong, where, and what to do next. It never contains the text of a document, because logs
are shared more widely than corpora. For the same reason, secrets in URLs and in the messages of libraries are removed
from it when the error is created.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence

from datakit.exit_codes import ExitCode
from datakit.redaction import redacted

LONGEST_CHAIN = 20  # maximum length of a chain of causes, which may be circular
_PLURAL = re.compile(r"\b(duplicate|file|message|token)s\b")
REFUSALS_SHOWN = 20  # maximum number of inputs that one error names


class DatakitError(Exception):
    """The base class of all errors. A command that ends with an error returns the error's `exit_code`."""

    exit_code: ExitCode = ExitCode.FAILURE

    def __init__(self, *arguments: object) -> None:
        """Redact the message."""
        super().__init__(*(redacted(one) if isinstance(one, str) else one for one in arguments))


class InputError(DatakitError):
    """Input from the user that cannot be used: an option, a recipe, data, a root or a tokenizer."""

    exit_code = ExitCode.USAGE


class UsageError(InputError):
    """An invalid command, option or argument."""


class RecipeError(InputError):
    """A configuration file that cannot be read, or that has an unknown or invalid setting."""


class RefusedError(InputError):
    """An input that cannot be used. Other inputs are still read, so that all such errors are reported together."""


class RefusedInputsError(RefusedError):
    """Several inputs that cannot be used. messages: one message per input; the error's text contains the first
    REFUSALS_SHOWN of them.

    listed: the path of the file that lists all of these inputs; "" if there is none.
    """

    def __init__(self, messages: Iterable[str], listed: str = "") -> None:
        self.messages: tuple[str, ...] = tuple(dict.fromkeys(map(redacted, messages)))
        self.listed = listed
        lines = [f"{counted(len(self.messages), 'input')} cannot be used:", *self.messages[:REFUSALS_SHOWN]]
        more = len(self.messages) - REFUSALS_SHOWN
        if more > 0:
            lines.append(f"and {more:,} more" + (f"; all are listed in {listed}" if listed else ""))
        super().__init__("\n  ".join(lines))


class NoInputError(RefusedError):
    """A source without files."""


class EmptyStageError(RefusedError):
    """A stage without output records."""


class ColumnError(RefusedError):
    """A missing column, a column of an unsupported type, or two files whose columns do not match.

    mixed: the column whose values in one file have types that cannot be joined; None if the error has another cause.
    """

    mixed: str | None = None


class UnreadableError(RefusedError):
    """An input file that cannot be opened or decoded."""


class ExpansionError(RefusedError):
    """An input that makes a task write far more bytes than it reads (see `[limits]` in a recipe)."""


class ChangedInputError(InputError):
    """An input file that changed after it was listed."""


class NewerFormatError(InputError):
    """A file that a newer version of datakit wrote, in a format that this version does not read."""


class LicenseError(InputError):
    """A dataset that cannot be published, because the license of a source is not known or cannot be stated."""


class NewerRevisionError(InputError):
    """A destination that holds another revision than the one that a publication would replace. It is left as it is."""


class RootError(InputError):
    """A root or other URL that cannot be used: access is denied, no library for its scheme is installed, or not all
    nodes share the directory.
    """


class ModelServerError(InputError):
    """A model server that refuses every request, for example because of a wrong key, model or URL."""


class TokenizerError(InputError):
    """A tokenizer that cannot be loaded, or that differs from the tokenizer with which the cache was made."""


class UnknownDocumentError(InputError, KeyError):
    """An id that belongs to no document in the cache."""

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError's __str__ would put the message in quotes


class LoaderError(InputError):
    """An invalid mixture, schedule or packing. The message names the setting and, if only one component of the mixture
    is affected, that component."""


class MixtureChangedError(LoaderError):
    """A resumed run whose mixture has changed in such a way that the batches already read would have been different."""


class StorageError(DatakitError):
    """A failing disk or object store."""


class NoSpaceError(StorageError):
    """A disk (that of the root or of temporary files) that is full or does not have enough free space for a run."""


class NotFoundError(StorageError):
    """A missing file, or a step or a cache that is not finished."""


class CorruptError(StorageError):
    """Bytes that do not match their checksum, or a file written by datakit that cannot be parsed."""


class DivergentOutputError(StorageError):
    """An output that differs from an existing file of the same name. The existing file is kept."""


class TaskError(DatakitError):
    """A task that cannot run because of the state of its process or of its inputs; the message gives the reason."""


class UserCodeError(DatakitError):
    """An exception in a user's transform or tokenizer. The message contains the traceback and a description of the
    function's input.
    """


class StepFailedError(DatakitError):
    """A step that cannot continue, for example because its first tasks all fail with the same error."""


class RetentionError(DatakitError):
    """A root from which nothing is removed, for example because datakit cannot decide what is still needed, or because
    another process uses a step.
    """


class CheckpointError(DatakitError):
    """A checkpoint that is missing, unreadable, or from another run."""


class DivergedError(DatakitError):
    """A training run whose loss, gradient or weights are NaN or infinite. Its last good checkpoint is kept."""

    exit_code = ExitCode.DIVERGED


class PartialError(DatakitError):
    """A step with failed tasks. The results of all other tasks are kept; the next run retries the failed ones."""

    exit_code = ExitCode.PARTIAL


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield the exception, and then the exceptions that led to it."""
    for _ in range(LONGEST_CHAIN):
        if error is None:
            return
        yield error
        error = error.__cause__ or error.__context__


def exit_code_of(error: BaseException | None) -> int:
    """Return the exit code of a command that ends with this exception, or 0 if there is none.

    >>> exit_code_of(None), exit_code_of(PartialError("")), exit_code_of(KeyboardInterrupt()), exit_code_of(OSError())
    (0, 3, 130, 1)
    """
    if error is None:
        return 0
    if isinstance(error, DatakitError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return InputError.exit_code if isinstance(error, ModuleNotFoundError) else DatakitError.exit_code


def messages_of(errors: Iterable[DatakitError]) -> list[str]:
    """Return the messages of these errors, each as a single line. A RefusedInputsError contributes one message per
    refused input.
    """
    found = (error.messages if isinstance(error, RefusedInputsError) else (str(error),) for error in errors)
    return [" ".join(message.splitlines()) for messages in found for message in messages]


def refuse_all(errors: Sequence[RefusedError]) -> None:
    """Raise the only error, or a RefusedInputsError if there are several. If there is none, return."""
    if len(errors) == 1:
        raise errors[0]
    if errors:
        listed = ", ".join(one.listed for one in errors if isinstance(one, RefusedInputsError) and one.listed)
        raise RefusedInputsError(messages_of(errors), listed) from errors[0]


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with a noun, which is in the singular if the number is 1.

    >>> counted(1, "record"), counted(2000, "record"), counted(2, "entry", "entries")
    ('1 record', '2,000 records', '2 entries')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def counted_plural(number: int, plural: str) -> str:
    """Return a number with a phrase. If the number is 1, the first plural that `_PLURAL` matches becomes singular.

    >>> counted_plural(1, "exact duplicates across sources"), counted_plural(2, "files"), counted_plural(1, "blank")
    ('1 exact duplicate across sources', '2 files', '1 blank')
    """
    return f"{number:,} {_PLURAL.sub(lambda noun: noun[1], plural, count=1) if number == 1 else plural}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return a clause for an error message that names the closest known name or, if none is close, all known names.

    >>> suggestion("treshold", ["threshold", "bands"])
    "did you mean 'threshold'?"
    """
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known names are {', '.join(choices)}" if choices else "no names are known here"
