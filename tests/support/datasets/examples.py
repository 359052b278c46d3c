"""The entries of the catalog as parameters of tests, and the sources that read them."""

from __future__ import annotations

from typing import Any

import pytest

from datakit.datasets.entry import Entry
from datakit.datasets.expansion import source_table
from datakit.datasets.lookup import dataset, dataset_names

ENTRIES = pytest.mark.parametrize("entry", [dataset(name) for name in dataset_names()], ids=lambda entry: entry.name)


def example(entry: Entry) -> dict[str, Any]:
    """The source that reads a dataset, with the examples of its parameters."""
    table = {} if "url" in entry.source else {"url": "/copy"}
    return source_table(entry, table, {name: one.example for name, one in entry.parameters.items()}, "here")
