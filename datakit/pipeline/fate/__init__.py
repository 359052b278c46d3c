"""Finds out what each stage did with one document, and which documents only one of two steps has."""

from datakit.pipeline.fate.difference import Absent, Difference, Side, diff
from datakit.pipeline.fate.fates import Answer, DocumentFate, StageFate, place_of, why

__all__ = ["Absent", "Answer", "Difference", "DocumentFate", "Side", "StageFate", "diff", "place_of", "why"]
