"""Implements `datakit init`, which writes a recipe for a folder, a file or a URL without asking anything."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from datakit.cli.console import bytes_text, note, say, say_json, table, wrapped
from datakit.cli.parameters import Flag
from datakit.errors import DatakitError, UsageError, counted
from datakit.redaction import HIDDEN

if TYPE_CHECKING:
    from datakit.normalize.inspection.report import GroupReport, RawReport

DEFAULT_ROOT = "data"  # `run` and `plan` write to this folder of the working directory unless --root is set
SHOWN = 8  # suspicious things, files left out, and problems


def init(source: str = ".", /, *, output: str = "recipe.toml", force: Flag = False, json: Flag = False) -> int:
    """Write a recipe for a folder, a file or a URL, without asking anything.

    Finds formats, columns, the column with the text, sizes and the license, and writes what it found as comments. The
    recipe runs as it is: files and columns that a run would refuse are left out, and comments say why. `datakit
    inspect` shows more about the columns, and writes nothing.

    Examples:
      datakit init texts/
      datakit init hf://datasets/org/name --output name.toml
      datakit init s3://bucket/texts/*.jsonl.gz --output texts.toml --force

    Parameters
    ----------
    source
        A folder, a file, a glob or a URL.
    output
        The file to write.
    force
        Overwrite the file if it exists.
    json
        Print one JSON object.
    """
    from datakit.normalize.inspection.draft import RecipePlace, draft_recipe, usable_groups
    from datakit.normalize.inspection.report import inspect_source
    from datakit.text.compilation import NOTICE

    path = _output_path(output, force)
    target = _target(source)
    is_path = "://" not in source and not source.startswith("{")  # not a URL, and not in a folder such as {stdlib}
    place = RecipePlace(path, relative=is_path and not os.path.isabs(os.path.expanduser(source)))
    report = inspect_source(target, exclude=place.itself(target, ()), compiling=lambda: note(NOTICE))
    usable = usable_groups(report)
    if not usable:
        reasons = list(dict.fromkeys([group.reason for group in report.groups] + list(report.problems)))
        raise UsageError(f"{source}: no file can be used, so no recipe was written: {'; '.join(reasons[:SHOWN])}")
    recipe = draft_recipe(report, place)
    _write(recipe, path, force)
    if json:
        say_json({"recipe": path, "text": recipe, "report": asdict(report)})
    else:
        _summarize(report, usable, path)
    if HIDDEN in report.url:
        note("the URL's query string is not in the recipe, because it may be a signature; add it before you run")
    _next(output, target)
    return 0


def _output_path(output: str, force: bool) -> str:
    """Return the absolute path of the file to write. Raises UsageError if it cannot be written."""
    if "://" in output:
        raise UsageError(f"--output {output}: a recipe is written to a file on this machine; give a path")
    path = os.path.abspath(os.path.expanduser(output))
    folder = os.path.dirname(path)
    if os.path.isdir(path):
        raise UsageError(f"--output {output} is a folder; give the path of a file, such as {output}/recipe.toml")
    if not os.path.isdir(folder):
        raise UsageError(f"--output {output}: the folder {folder} does not exist; create it first")
    if os.path.lexists(path) and not force:
        raise UsageError(f"{output} exists; choose another --output, or overwrite it with --force")
    return path


def _target(source: str) -> str:
    """Return the source to inspect: an absolute path, or a URL. Raises UsageError for a finished step. A folder whose
    manifest.json is not one of datakit is a source like any other.
    """
    from datakit.pipeline.lineage import finished_step
    from datakit.storage import urls

    found = None
    if os.path.isdir(source):
        with suppress(DatakitError, OSError):
            found = finished_step(urls.absolute(source))
    if found is not None:
        raise UsageError(
            f"{source} holds the finished step {found[0]}; to use it as a source, give the folder of its files"
        )
    return source if "://" in source or source.startswith("{") else urls.local_path(source)


def _write(recipe: str, path: str, force: bool) -> None:
    from datakit.storage import atomic

    if force:
        atomic.replace_bytes(recipe.encode(), path)
    elif not atomic.create_bytes(recipe.encode(), path):
        raise UsageError(f"{path} was created by another program in the meantime; choose another --output, or --force")


def _summarize(report: RawReport, usable: list[GroupReport], path: str) -> None:
    from datakit.normalize.inspection.licenses import agreed

    say(wrapped(f"{report.url}: {counted(report.files, 'file')}, {bytes_text(report.bytes)}", more="  "))
    rows = [
        [
            group.name,
            group.format,
            group.files,
            bytes_text(group.bytes),
            group.text or "",
            group.id or "",
        ]
        for group in usable
    ]
    say("\n" + table(("source", "format", "files", "size", "text", "id"), rows))
    found = ", ".join(f"{one.license or 'not recognized'} ({one.file})" for one in report.licenses) or "not found"
    say(
        "\n"
        + wrapped(f"license: {found}{'' if agreed(report.licenses) else '; set `license` in the recipe'}", more="  ")
    )
    left_out = [reason for group in usable for reason in [*group.exclude.values(), *group.dropped.values()]]
    left_out += [f"{group.name}: {group.reason}" for group in report.groups if group not in usable]
    _list("left out", left_out)
    _list("suspicious", [f"{group.name}: {found}" for group in usable for found in group.suspicions])
    _list("problems", [problem for problem in report.problems if problem not in left_out])
    say(f"\nrecipe: {path}")


def _list(title: str, texts: list[str]) -> None:
    """Print a list of the first few texts, each once, under a title."""
    shown = list(dict.fromkeys(texts))
    if not shown:
        return
    say(f"\n{title}:")
    for text in shown[:SHOWN]:
        say("  - " + wrapped(text, "    ").lstrip())
    if len(shown) > SHOWN:
        say(f"  - and {len(shown) - SHOWN:,} more, as comments in the recipe")


def _next(output: str, target: str) -> None:
    """Print the next commands. They name another root if the default one is inside the source, whose files a run would
    read.
    """
    inside = not os.path.relpath(os.path.realpath(DEFAULT_ROOT), os.path.realpath(target)).startswith("..")
    root = (
        f" --root {shlex.quote(os.path.relpath(f'{target}-{DEFAULT_ROOT}'))}"
        if os.path.isdir(target) and inside
        else ""
    )
    note(f"next: datakit plan {shlex.quote(output)}{root}")
    note(f"      datakit run {shlex.quote(output)}{root}")
