"""Finds out what each stage did with one document."""

from datakit.pipeline.fate.fates import Answer, DocumentFate, StageFate, place_of, why

__all__ = ["Answer", "DocumentFate", "StageFate", "place_of", "why"]
