"""Reads web archives with datatrove's WarcReader, and extracts their texts with its Trafilatura. Prints JSON: pages,
bytes of text, and CPU-seconds. Imports nothing from datakit.

    python datatrove_archives.py FOLDER read|extract [zlib]

With `zlib`, it inflates with zlib even if isal is installed.
"""

from __future__ import annotations

import json
import resource
import sys
import time

if sys.argv[3:] == ["zlib"]:
    sys.modules["isal"] = None  # pyright: ignore[reportArgumentType]  # so that importing it fails

from datatrove.pipeline.extractors import Trafilatura  # pyright: ignore[reportMissingImports]
from datatrove.pipeline.readers import WarcReader  # pyright: ignore[reportMissingImports]


def main() -> None:
    """Read the archives of a folder; with `extract`, also extract their texts with the settings that datakit uses."""
    folder, what = sys.argv[1:3]
    documents = WarcReader(folder, glob_pattern="*.warc.gz").run()
    if what == "extract":
        extractor = Trafilatura(favour_precision=False, deduplicate=False, timeout=60)
        documents = extractor.run(documents)
    start, pages, size = time.process_time(), 0, 0
    for document in documents:
        pages, size = pages + 1, size + len(document.text.encode())
    # the extractor's process has ended by now
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = time.process_time() - start + children.ru_utime + children.ru_stime
    print(json.dumps({"pages": pages, "text_bytes": size, "cpu_seconds": seconds}))


if __name__ == "__main__":
    main()
