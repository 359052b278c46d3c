"""Makes a token cache with datatrove: reads JSON Lines, removes near duplicates (MinHash with 14 bands of 8 rows, word
5-grams), and tokenizes what stays. Imports nothing from datakit.

    python datatrove_cache.py TEXTS OUTPUT TOKENIZER --workers 2
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    """Run the five stages of datatrove, one after another."""
    from datatrove.executor import LocalPipelineExecutor  # pyright: ignore[reportMissingImports]
    from datatrove.pipeline import dedup  # pyright: ignore[reportMissingImports]
    from datatrove.pipeline.dedup.minhash import MinhashConfig  # pyright: ignore[reportMissingImports]
    from datatrove.pipeline.readers import JsonlReader  # pyright: ignore[reportMissingImports]
    from datatrove.pipeline.tokens import DocumentTokenizer  # pyright: ignore[reportMissingImports]
    from datatrove.pipeline.writers import JsonlWriter  # pyright: ignore[reportMissingImports]

    parser = argparse.ArgumentParser()
    parser.add_argument("texts", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    out, config = str(arguments.output), MinhashConfig()
    files = len(list(arguments.texts.iterdir()))

    def texts() -> object:
        return JsonlReader(str(arguments.texts))

    remove = f"{out}/remove"
    stages = {
        "signatures": (files, [texts(), dedup.MinhashDedupSignature(f"{out}/signatures", config)]),
        "buckets": (
            config.num_buckets,
            [dedup.MinhashDedupBuckets(f"{out}/signatures", f"{out}/buckets", config=config)],
        ),
        "cluster": (1, [dedup.MinhashDedupCluster(f"{out}/buckets", remove, config)]),
        "filter": (files, [texts(), dedup.MinhashDedupFilter(remove), JsonlWriter(f"{out}/kept")]),
        "tokenize": (
            files,
            [
                JsonlReader(f"{out}/kept"),
                DocumentTokenizer(f"{out}/tokens", tokenizer_name_or_path=str(arguments.tokenizer),
                                  eos_token="<|endoftext|>"),
            ],
        ),
    }  # fmt: skip
    for name, (tasks, pipeline) in stages.items():
        LocalPipelineExecutor(
            pipeline, tasks=tasks, workers=arguments.workers, logging_dir=f"{out}/logs/{name}", skip_completed=False
        ).run()


if __name__ == "__main__":
    main()
