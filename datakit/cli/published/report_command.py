"""Implements `datakit report`, which writes a page about a dataset, a run or a training run."""

from __future__ import annotations

from datakit.cli.console import say
from datakit.cli.parameters import Flag


def report(target: str, /, *, output: str = ".", show_text: Flag = False) -> int:
    """Write a page about a dataset, a run or a training run: one HTML file that needs no network.

    Shows the flow of documents and tokens through the stages, the sources, the lengths of documents, the sizes of
    components, time, memory, failed attempts, quarantine, training curves, and the lineage. Prints the file's path.

    Examples:
      datakit report data/demo
      datakit report data/demo --show-text --output /tmp
      datakit report data/demo/runs/20260102T030405678Z-1234-0a1b2c
      datakit report data/demo-train/train-0123456789ab

    Parameters
    ----------
    target
        The directory of a dataset, a step, a run or a training run.
    output
        The page is written to the folder `report` in this directory.
    show_text
        Also show some removed documents beside those that were kept. Without this option, the page holds no text of
        any document.
    """
    from datakit.report import write_report

    say(write_report(target, output, show_text))
    return 0
