"""Makes a small dataset to publish: three sources with licenses, known duplicates and e-mail addresses, of which those
in one source are masked. The files are large enough to be uploaded to the Hub's test server in parts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import datakit
from tests.support.small_shelf import prose, write_lines

RECIPE = """
name = "shelf"

[[sources]]
name = "novels"
url = "novels"
license = "CC-BY-4.0"

[[sources]]
name = "letters"
url = "letters"
license = "MIT"

[[sources]]
name = "laws"
url = "laws"
license = "https://example.org/terms"

[annotate.personal]
kinds = ["email", "ipv4"]

[select.edits.mail]
spans = "personal.spans"
kinds = ["email"]
action = "mask"
replacement = "<EMAIL>"
sources = ["letters"]

[dedup]
"""
SOURCES = ("novels", "letters", "laws")
DOCUMENTS = 600  # in each source, with one duplicate
ADDRESS = "reader@letters-archive.net"


def make_dataset(folder: Path, words: int = 120, recipe: str = RECIPE) -> Path:
    """Run the recipe without tokenization; return the dataset's directory."""
    for number, source in enumerate(SOURCES):
        texts = [prose(1000 * number + one, words) for one in range(DOCUMENTS - 1)]
        texts = [f"{text} {ADDRESS} 81.2.69.142" if one % 100 == 0 else text for one, text in enumerate(texts)]
        write_lines(folder / source / "a.jsonl", [*texts, texts[1]])
    path = folder / "shelf.toml"
    path.write_text(recipe)
    datakit.run(path, folder / "root", workers=2)
    return folder / "root" / "shelf"


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the finished dataset, which no test changes."""
    return make_dataset(tmp_path_factory.mktemp("published"))
