"""Makes the page of `datakit report`: one self-contained HTML file about a dataset, a run or a training run."""

from datakit.report.page import write_report

__all__ = ["write_report"]
