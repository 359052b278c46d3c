"""Lists the country calling codes that the ITU has assigned (Recommendation E.164), and words that announce a telephone
number. The codes are those of phonenumbers 9.0.43, and 379, which is assigned to the Vatican but not in use.
"""

from __future__ import annotations

import numpy as np

_ASSIGNED = (  # codes and ranges of codes
    "1 7 20 27 30-34 36 39-41 43-49 51-58 60-66 81 82 84 86 90-95 98 211-213 216 218 220-258 260-269 290 291 297-299 "
    "350-359 370-383 385-387 389 420 421 423 500-509 590-599 670 672-683 685-692 800 808 850 852 853 855 856 870 878 "
    "880-883 886 888 960-968 970-977 979 992-996 998"
)
LABELS = (
    *("cell", "cellphone", "fax", "fon", "handy", "mob", "mobil", "mobile", "ph", "phone", "tel", "telefax", "telefon"),
    *("telefone", "telefono", "telephone", "tlf", "whatsapp"),
)
LONGEST_LABEL = max(map(len, LABELS))


def calling_codes() -> frozenset[str]:
    """Return all assigned codes."""
    codes = set()
    for entry in _ASSIGNED.split():
        first, _, last = entry.partition("-")
        codes.update(map(str, range(int(first), int(last or first) + 1)))
    return frozenset(codes)


def code_sizes() -> np.ndarray:
    """Return, for each three digits that a number may begin with, the size of its calling code, int64 [1000]; 0 if no
    code is assigned.
    """
    codes = calling_codes()
    return np.array([next((size for size in (1, 2, 3) if f"{i:03}"[:size] in codes), 0) for i in range(1000)], np.int64)


def label_table() -> np.ndarray:
    """Return the labels, each aligned with the end of its row and filled up with zeros, uint8 [labels, longest + 1]."""
    table = np.zeros((len(LABELS), LONGEST_LABEL + 1), np.uint8)
    for row, label in zip(table, LABELS, strict=True):
        row[-len(label) :] = np.frombuffer(label.encode(), np.uint8)
    return table
