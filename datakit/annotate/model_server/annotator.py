"""Turns stored answers into attributes. The answers about the documents of a partition were written by `ask.py`; no
request is sent here. Memory: the answers of one partition.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from datakit.annotate.model_server.answer_format import LABEL, AnswerError
from datakit.annotate.model_server.config import ModelServerConfig
from datakit.errors import CorruptError
from datakit.storage.parquet import read_shard


class ModelServerAnnotator:
    """The answers of a model server as an annotator; implements `Annotator` and `Counting`."""

    columns: tuple[str, ...] = ("id",)
    sparse: bool = False

    def __init__(self, name: str, config: ModelServerConfig, url: str) -> None:
        """url: the answers about the documents of a partition."""
        self.name, self.version, self.parameters = name, config.VERSION, config.content()
        self._form, self._url, self._labels = config.answer_format(), url, config.labels
        self.schema: pa.Schema = self._form.schema
        answers = read_shard(url)
        self._ids = answers["id"].combine_chunks()
        self._attributes = self._parsed(answers["answer"].to_pylist())

    def annotate(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the attributes. Raises CorruptError for a document without an answer."""
        rows = pc.call_function("index_in", [batch.column("id")], pc.SetLookupOptions(self._ids))
        if rows.null_count:
            raise CorruptError(f"{self._url} lacks the answer about a document; remove it and run again")
        return self._attributes.take(rows)

    def counts(self, attributes: pa.Table) -> dict[str, int]:
        """Return how often each label was given."""
        if not self._labels:
            return {}
        found = Counter(attributes[LABEL].to_pylist())
        return {label: found[label] for label in self._labels}

    def _parsed(self, answers: list[str]) -> pa.RecordBatch:
        found: dict[str, list[Any]] = {name: [] for name in self.schema.names}
        try:
            for answer in answers:
                for name, value in self._form.parse(answer).items():
                    found[name].append(value)
        except AnswerError as error:
            raise CorruptError(f"{self._url}: {error}, though it was one when it was stored") from error
        columns = [pa.array(found[field.name], field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)
