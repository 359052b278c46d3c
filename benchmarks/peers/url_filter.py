"""Filters URLs with datatrove's URLFilter: reads `urls.json`, `domains.txt` and `substrings.txt` from a folder, and
prints the URLs per CPU-second. Imports nothing from datakit.

    python url_filter.py FOLDER
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from datatrove.data import Document  # pyright: ignore[reportMissingImports]
from datatrove.pipeline.filters import URLFilter  # pyright: ignore[reportMissingImports]

SAMPLE = 20_000
ROUNDS = 5


def main() -> None:
    """Print the URLs per CPU-second of the filter alone, on a sample of the URLs, and the hits."""
    folder = Path(sys.argv[1])
    lists = {name: (folder / f"{name}.txt").read_text().split("\n") for name in ("domains", "substrings")}
    urls = json.loads((folder / "urls.json").read_text())[:SAMPLE]
    documents = [Document(text="a", id=str(i), metadata={"url": url}) for i, url in enumerate(urls)]
    for name in ("domains", "both"):
        chosen = URLFilter(
            extra_domains=lists["domains"], banned_subwords=lists["substrings"] if name == "both" else None,
            use_integrated_lists=False,
        )  # fmt: skip
        chosen.filter(documents[0])
        taken, hits = list[float](), 0
        for _ in range(ROUNDS):
            start = time.process_time()
            hits = sum(chosen.filter(document) is not True for document in documents)
            taken.append(time.process_time() - start)
        print(f"{name}: {SAMPLE / statistics.median(taken):,.0f} URLs per CPU-second, {hits:,} of {SAMPLE:,} hit")


if __name__ == "__main__":
    main()
