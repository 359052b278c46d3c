"""Answers "what exactly is in this?" for a dataset, a step or a training run, as data and in common formats."""

from datakit.lineage.graph import Lineage, StepRecord, read_lineage
from datakit.lineage.sources import SourceRecord

__all__ = ["Lineage", "SourceRecord", "StepRecord", "read_lineage"]
