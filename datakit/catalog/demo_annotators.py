"""An annotator for the recipe `demo-curated`, and an example to copy: counts the words of licenses in a document."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from datakit.annotate.user.declaration import annotator

WORDS = ("copyright", "liability", "license", "licensee", "licensor", "merchantability", "warranty", "warranties")
COLUMN = "words"


@annotator(version=1, writes={COLUMN: pa.int32()})
def legal_words(batch: pa.RecordBatch, words: tuple[str, ...] = WORDS) -> pa.RecordBatch:
    """Count how often the given words occur in each document, in any case."""
    pattern = rf"(?i)\b(?:{'|'.join(words)})\b"
    counts = pc.call_function("count_substring_regex", [batch["text"]], pc.MatchSubstringOptions(pattern))
    return pa.record_batch({COLUMN: counts.cast(pa.int32())})
