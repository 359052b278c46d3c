"""The constants of lowered programs."""

from __future__ import annotations

import math
import re

LARGEST = 1 << 20  # bytes of one constant
DENSE = re.compile(r"stablehlo\.constant dense<.*?> : tensor<((?:\d+x)+)([a-z]+)(\d+)>")


def constants(program: str) -> list[int]:
    """The bytes of each constant that holds more than one value repeated."""
    found = []
    for line in program.splitlines():
        match = DENSE.search(line)
        if match and ('dense<"0x' in line or "dense<[" in line):
            found.append(math.prod(int(size) for size in match[1].split("x")[:-1]) * max(1, int(match[3]) // 8))
    return found
