"""Implements `datakit mixture preview` and `datakit mixture pack`: their options, and the tables that they print."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from datakit.cli.console import Cell, note, say, say_json, seconds_text, table
from datakit.cli.parameters import Flag
from datakit.errors import counted

if TYPE_CHECKING:
    from datakit.loader import Preview, SequenceOrder
    from datakit.pipeline.run_packing import PackingResult

PLOT_POINTS = 200
SLOTS_A_POINT = 512  # with fewer slots per point, the random order in a mixture block would distort the shares
MIN_PLOT_POINTS = 20
PACK_HEADERS = ("component", "length", "blocks", "documents", "sequences", "padding", "time")
SHOW_HEADERS = ("component", "has", "held out", "documents", "gives", "share", "epochs", "at most")
TOO_LONG = ("split", "truncated", "dropped")
MAX_DETAILED = 2  # with more components, each point shows only the shares, so that the table fits the terminal
MAX_SHARES = 6  # maximum number of components in one table of shares


def preview(
    mixture: str,
    /,
    *,
    steps: int | None = None,
    points: int = 10,
    plot: str | None = None,
    root: str = "./data",
    json: Flag = False,
) -> int:
    """Show each component's share, tokens and epochs over a run, and when the mixture changes or ends.

    Also shows how many documents are excluded, and from which step on. Reads no tokens. For packed components, the
    preview uses the counts that `datakit mixture pack` stored in the root. Without these counts, it counts the
    sequences itself, but refuses components of more than 4,096 blocks. MIXTURE may also be the run file of a training
    run.

    Examples:
      datakit mixture preview mix.toml
      datakit mixture preview mix.toml --steps 50_000 --points 20 --plot mix.png
      datakit mixture preview run.toml --root runs

    Example of a mixture file (relative paths in it are relative to the file's directory):
      sequence_length = 4096           # or [[0, 4096], [95_000, 32_768]]: 32,768 from step 95,000
      batch_size = 512
      steps = 100_000
      [components.web]
      cache = "data/demo/tokenize-0123456789ab"
      source = "web"
      [components.code]
      cache = "data/demo/tokenize-0123456789ab"
      source = "code"
      packing = "split"
      max_epochs = 4
      [[stages]]
      weights = { web = 0.9, code = 0.1 }
      [[stages]]
      start_step = 90_000
      weights = { web = 0.5, code = 0.5 }

    Parameters
    ----------
    mixture
        A mixture file (TOML), or a run file, whose table [data] holds a mixture or names a mixture file.
    steps
        Length of the run in batches. The default is `steps` in the file or, if not set there, the mixture's length.
    points
        Number of evenly spaced steps for which to show the shares. Steps at which a setting changes are shown too.
    plot
        Also save a plot of the shares to this file (.png, .svg or .pdf); needs `pip install '.[report]'`.
    root
        For packed components, use the counts that `datakit mixture pack` stored in this root. Its path also replaces
        {root} in the paths of caches in a run file.
    json
        Print one JSON object.
    """
    from datakit.errors import UsageError
    from datakit.loader import SequenceOrder, contributions
    from datakit.loader.mixture.run_file import load_mixture_or_run
    from datakit.plots.files import check_target

    for name, value in (("--steps", steps), ("--points", points)):
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}; it must be at least 1")
    if plot is not None:
        check_target(plot)
    file = load_mixture_or_run(mixture, root, with_counts=True)
    order, wanted = SequenceOrder(file.mixture), steps or file.steps
    if wanted is None and order.steps is None:
        raise UsageError(f"{mixture} never ends; set the run's length with `steps = ...` in the file or with --steps")
    view = contributions(order, wanted, points + 1)
    if plot is not None:
        _plot(order, wanted, int(view.steps[-1]), mixture, plot)
    if json:
        say_json(_json(order, view, wanted))
    else:
        _show(order, view, _ending(order, wanted))
    if wanted is not None and order.steps is not None and order.steps < wanted:
        note(f"warning: the mixture ends after {order.steps:,} of {wanted:,} steps: {order.ending}")
    return 0


def _plot(order: SequenceOrder, wanted: int | None, last: int, mixture: str, plot: str) -> None:
    """Plot the components' shares up to step `last`, and save the plot to the file `plot`."""
    from datakit.loader import contributions
    from datakit.plots.mixture import write_plot
    from datakit.storage import urls

    slots = int(order.axis.first_slot(last))
    view = contributions(order, wanted, min(PLOT_POINTS, max(MIN_PLOT_POINTS, slots // SLOTS_A_POINT)), apart=True)
    write_plot(view, f"{urls.name(mixture)}: {_ending(order, wanted)}", urls.absolute(plot))
    note(f"plot: {plot}")


def pack(mixture: str, /, *, root: str = "./data", workers: int | None = None, json: Flag = False) -> int:
    """Count the sequences in each block of a mixture's packed components, so that training does not have to count them.
    Needed only for components of more than 4,096 blocks (4 G tokens); the loader counts smaller ones itself.

    For each packed component and sequence length, the counts are stored in a step of their own,
    `<root>/packing/packing-<length>-<policy>-...`. A finished step is reused, even for another mixture, if the same
    tokens are packed in the same way.

    Examples:
      datakit mixture pack mix.toml --root data
      datakit mixture pack run.toml --root runs
      datakit mixture pack mix.toml --root s3://bucket/data --workers 16

    To use the counts, run `datakit mixture preview mix.toml --root data` or, in Python, call
    load_mixture("mix.toml", packing_root="data"). `datakit train` finds the counts in its own --root.

    Parameters
    ----------
    mixture
        A mixture file or a run file (TOML); `datakit mixture preview --help` shows an example.
    root
        The directory or URL under which to write the counts; it must be in the same store as the caches. Its path also
        replaces {root} in the paths of caches in a run file.
    workers
        Number of tasks to run at a time; by default one per usable CPU.
    json
        Print one JSON object.
    """
    from datakit.engine.observe.progress import view_for_terminal
    from datakit.loader.mixture.run_file import load_mixture_or_run
    from datakit.pipeline.run_packing import pack_mixture

    file = load_mixture_or_run(mixture, root, with_counts=False)
    with view_for_terminal() as view:
        results = pack_mixture(file.mixture, root, workers=workers, observer=view)
    done = all(result.reused for result in results)
    if json:
        say_json({"root": root, "reused": done, "steps": [_step_json(result) for result in results]})
    elif not results:
        say(f"{mixture}: no component is packed, so there is nothing to count")
    else:
        remarks = [_pack_remarks(result) for result in results]
        say(table(PACK_HEADERS, [_pack_row(result) for result in results], remarks) + "\n")
        say(f"{mixture}: {'everything was already done' if done else 'packed'}")
        say(f"preview:   datakit mixture preview {mixture} --root {root}")
        load = f'Loader(load_mixture("{mixture}", packing_root="{root}"))'
        say(f"train:     datakit train {mixture} --root {root}" if file.is_run else f"use it:    {load}")
    return 0


def _pack_row(result: PackingResult) -> tuple[Cell, ...]:
    counters, sequences = result.manifest.counters, result.manifest.details["sequences"]
    slots = max(1, sequences * result.length)
    return (
        result.component,
        result.length,
        result.manifest.totals.rows,
        counters["packing/documents"],
        sequences,
        f"{counters['packing/padding'] / slots:7.2%}",
        "already done" if result.reused else seconds_text(result.seconds),
    )


def _pack_remarks(result: PackingResult) -> str:
    """Return the name of the step's directory and the number of documents that were split, truncated or dropped because
    they are longer than a sequence.
    """
    from datakit.storage import urls

    counters = result.manifest.counters
    too_long = [f"{counted(count, 'document')} {what}" for what in TOO_LONG if (count := counters[f"packing/{what}"])]
    return ", ".join([urls.name(result.directory), *too_long])


def _step_json(result: PackingResult) -> dict[str, Any]:
    manifest = result.manifest
    return {
        "component": result.component, "length": result.length, "directory": result.directory,
        "reused": result.reused, "seconds": result.seconds, "blocks": manifest.totals.rows,
        "sequences": manifest.details["sequences"], "counters": manifest.counters,
    }  # fmt: skip


def _ending(order: SequenceOrder, wanted: int | None) -> str:
    if order.steps is not None and (wanted is None or order.steps <= wanted):
        return f"ends after {counted(order.steps, 'step')}: {order.ending}"
    if order.steps is None:
        return f"{counted(wanted or 0, 'step')} (the mixture has no end of its own)"
    return f"{counted(wanted or 0, 'step')} (it would end after {counted(order.steps, 'step')}: {order.ending})"


def _show(order: SequenceOrder, view: Preview, ending: str) -> None:
    say(table(SHOW_HEADERS, [_component_row(order, view, number) for number in range(len(view.names))]) + "\n")
    say(over_time(view) + "\n")
    excluded = [(one.start_step, one.text()) for one in view.excluded]
    for step, what in sorted([*view.changes, *excluded]):
        say(f"step {step:,}: {what}")
    say(ending)


def _component_row(order: SequenceOrder, view: Preview, number: int) -> tuple[Cell, ...]:
    from datakit.plots.files import short

    name, total = view.names[number], max(1, int(view.tokens[-1].sum()))
    component = order.mixture.components[name]
    return (
        name,
        short(order.streams[number].source.tokens),
        _held_out(order, number),
        "end to end" if component.packing is None else f"whole, {component.packing.too_long}",
        short(int(view.tokens[-1, number])),
        f"{view.tokens[-1, number] / total:6.2%}",
        f"{view.epochs[-1, number]:.2f}",
        component.max_epochs,
    )


def over_time(view: Preview) -> str:
    """Return a table with one row per point: each component's share since the previous row, and the component's tokens
    and epochs so far. If one table would be too wide, the result consists of several tables, each for some of the
    components.
    """
    count = len(view.names)
    at_once = MAX_DETAILED if count <= MAX_DETAILED else MAX_SHARES
    return "\n\n".join(
        _table_over_time(view, range(first, min(first + at_once, count)), count <= MAX_DETAILED)
        for first in range(0, count, at_once)
    )


def _table_over_time(view: Preview, components: range, full: bool) -> str:
    from datakit.plots.files import short

    headers = ["until step", "tokens"]
    for name in (view.names[i] for i in components):
        headers += [f"{name} share", "tokens", "epochs"] if full else [name]
    rows = []
    for share, step, tokens, epochs in zip(view.share, view.steps[1:], view.tokens[1:], view.epochs[1:], strict=True):
        row: list[Cell] = [int(step), short(int(tokens.sum()))]
        for i in components:
            row += [f"{share[i]:6.2%}", short(int(tokens[i])), f"{epochs[i]:.2f}"] if full else [f"{share[i]:6.2%}"]
        rows.append(row)
    return table(headers, rows)


def _held_out(order: SequenceOrder, number: int) -> str | None:
    """Return, as text, how many of a component's tokens are held out of training; None if none are held out. number:
    the component's index.
    """
    from datakit.plots.files import short

    away = order.mixture.components[order.names[number]].source.tokens - order.streams[number].source.tokens
    return short(away) if away else None


def _json(order: SequenceOrder, view: Preview, wanted: int | None) -> dict[str, Any]:
    return {
        "components": view.names, "steps": view.steps.tolist(), "tokens": view.tokens.tolist(),
        "epochs": view.epochs.tolist(), "share": view.share.tolist(),
        "changes": [{"step": step, "what": what} for step, what in view.changes],
        "exclusions": [asdict(one) for one in view.excluded],
        "ending": order.ending, "ends_at": order.steps, "wanted": wanted,
        "source_tokens": [stream.source.tokens for stream in order.streams],
    }  # fmt: skip
