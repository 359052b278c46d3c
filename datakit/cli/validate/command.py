"""Implements `datakit validate`, which prints a table of checks for each step, then all differences and remedies."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from datakit.cli.console import INDENT, bytes_text, note, progress_note, say, say_json, seconds_text, table, wrapped
from datakit.cli.parameters import Flag
from datakit.errors import counted
from datakit.exit_codes import ExitCode

if TYPE_CHECKING:
    from datakit.validate.validation import Report, StepReport


def validate(*directories: str, deep: Flag = False, training_step: int | None = None, json: Flag = False) -> int:
    """Check that steps, datasets, roots and training runs are complete and correct.

    Compares every file with the manifest's checksum, recomputes ids, counters and tokens, and compares each step with
    the steps from which it was made. A dataset stands for its current steps and all steps before them, and a root for
    all finished steps and training runs below it. Lists all differences with their files, and then what to do. The exit
    code is 4 if there is a difference, and 2 if a directory holds nothing to check.

    Examples:
      datakit validate data/demo
      datakit validate data --deep
      datakit validate data/sources/novels/normalize-0123456789ab
      datakit validate s3://bucket/data/demo/tokenize-0123456789ab --json
      datakit validate data/plays/train-0123456789ab --training-step 400

    Parameters
    ----------
    directories
        Directories of steps, datasets, roots or training runs.
    deep
        Also recompute the similarity of every removed document (by default, of a sample), and make the last logged
        batch of each training run again.
    training_step
        Make the batch of this step of a training run again from the caches, and compare it with the logged digest.
    json
        Print one JSON object; with several directories, an object with a list of such objects.
    """
    from datakit.engine.arrow_without_pandas import leave_out_pandas
    from datakit.errors import UsageError
    from datakit.validate.memory import use_one_heap

    if not directories:
        raise UsageError("give the directory of a step, a dataset, a root or a training run")
    use_one_heap()
    leave_out_pandas()
    found = []
    for directory in directories:
        found.append(checked := _checked(directory, deep, training_step, json))
        if not json and checked["refused"]:
            note(f"error: {checked['refused']}")
    intact = all(one["intact"] for one in found)
    if json:
        say_json(found[0] if len(found) == 1 else {"intact": intact, "directories": found})
    if any(one["findings"] for one in found):
        return ExitCode.INVALID
    return ExitCode.DONE if intact else ExitCode.USAGE


def _checked(directory: str, deep: bool, training_step: int | None, json: bool) -> dict[str, Any]:
    """Validate one directory, print the result unless `json` is true, and return the object that describes it."""
    from datakit.errors import CorruptError, InputError, NotFoundError
    from datakit.storage import urls
    from datakit.validate.validation import plain, validate

    place, began = urls.absolute(directory), time.monotonic()
    try:
        report = validate(place, deep=deep, training_step=training_step, progress=progress_note("checking step"))
    except (CorruptError, InputError, NotFoundError) as error:
        nothing = {"directory": place, "intact": False, "steps": [], "findings": [], "unfinished": []}
        return {**nothing, "refused": str(error), "seconds": 0.0}
    seconds = round(time.monotonic() - began, 3)
    if not json:
        _show(report, seconds)
    return {**plain(report), "seconds": seconds}


def _show(report: Report, seconds: float) -> None:
    place = report.targets.place
    for step in report.steps:
        say(step.directory.removeprefix(f"{place}/"))
        say(table(["check", "compared", "findings"], [_row(one) for one in step.results], _remarks(step)))
        say()
    for directory in report.targets.unfinished:
        say(wrapped(f"{directory.removeprefix(f'{place}/')}: unfinished, not checked", more=INDENT))
    _show_findings(report, place, seconds)


def _row(result: Any) -> list[str | int | None]:
    counts = result.amounts.items()
    amounts = [bytes_text(number) if noun == "byte" else counted(number, noun) for noun, number in counts]
    found = len(result.findings) if result.amounts.total() or result.findings else None
    return [result.check, ", ".join(amounts) or "nothing", found]


def _remarks(step: StepReport) -> list[str]:
    return ["; ".join(f"not compared: {reason}" for reason in one.skipped) for one in step.results]


def _show_findings(report: Report, place: str, seconds: float) -> None:
    found = report.findings
    read = sum(result.amounts["byte"] for step in report.steps for result in step.results)
    if not found:
        steps, left_out = counted(len(report.steps), "step"), len(report.targets.unfinished)
        more = f"; {counted(left_out, 'unfinished step')} not checked" if left_out else ""
        say(wrapped(f"{place}: intact: {steps}, {bytes_text(read)} in {seconds_text(seconds)}{more}", more=INDENT))
        return
    for one in found:
        say(f"{one.url.removeprefix(f'{place}/')} ({one.check})")
        say(wrapped(one.difference, INDENT))
    note(wrapped(f"error: {counted(len(found), 'difference')} in {place}"))
    for remedy in dict.fromkeys(one.remedy for one in found):
        note(wrapped(f"next: {remedy}", more=INDENT))
