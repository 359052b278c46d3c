"""Encode hostile texts of 1 MB and 16 MB: seconds per MB, and how far from linear.

    python -m benchmarks.tokenize_long [--tokenizer FILE] [--whole] [--rounds N]

Each text is one document. `growth` is the time per byte at 16 MB divided by that at 1 MB (best of `rounds` each,
alternating); 1 is linear. `--whole` passes documents to the library whole, for comparison. For memory, see
benchmarks/tokenize_memory.py.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable

from datakit.tokenize.encoders.long_texts import LongTexts
from datakit.tokenize.encoders.threads import limit_threads
from datakit.tokenize.encoders.tokenizer import Tokenizer, load
from tests.support.data import data_dir

SMALL, LARGE = 1_000_000, 16_000_000


def hostile(size: int) -> dict[str, Callable[[], str]]:
    """Texts of about `size` bytes, made on demand."""
    draw = random.Random(0)

    def repeated(text: str) -> str:
        return text * (size // len(text.encode()))

    def drawn(alphabet: str, each: int = 1) -> str:
        return "".join(draw.choices(alphabet, k=size // each))

    return {
        "a": lambda: repeated("a"),
        "spaces": lambda: repeated(" "),
        "newlines": lambda: repeated("\n"),
        "tabs": lambda: repeated("\t"),
        "line ends": lambda: repeated("\r\n"),
        "no-break spaces": lambda: repeated("\u00a0"),
        "white space, mixed": lambda: drawn(" \t\n\u3000", 2),
        "one digit": lambda: repeated("1"),
        "digits": lambda: drawn("0123456789"),
        "letters": lambda: drawn("abcdefghijklmnop"),
        "ACGT": lambda: drawn("ACGT"),
        "base64": lambda: drawn("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"),
        "dashes": lambda: repeated("-"),
        "apostrophes": lambda: repeated("'"),
        "contractions": lambda: repeated("'s"),
        "combining marks": lambda: "a" + repeated("\u0301"),
        "combining marks, mixed": lambda: "a" + drawn("\u0301\u0323\u0327\u0345", 2),
        "letters with marks": lambda: repeated("a\u0301\u0323"),
        "emoji": lambda: repeated("\U0001f469\u200d\U0001f680"),
        "joiners": lambda: repeated("\u200d"),
        "Han": lambda: repeated("漢"),
        "Han with stops": lambda: repeated("漢字。"),
        "Hangul parts": lambda: repeated("\u1100\u1161\u11a8"),
        "special tokens": lambda: repeated("<|endoftext|>"),
    }


def seconds(texts: LongTexts, text: str) -> float:
    """Wall time of one document."""
    began = time.perf_counter()
    texts.encode_text(text)
    return time.perf_counter() - began


def measure(texts: LongTexts, rounds: int) -> None:
    """Print the table."""
    small, large = hostile(SMALL), hostile(LARGE)
    print("| text | 1 MB, s | 16 MB, s a MB | growth |\n|---|--:|--:|--:|")
    for name in small:
        times = [(seconds(texts, small[name]()), seconds(texts, large[name]())) for _ in range(rounds)]
        one, many = min(first for first, _ in times), min(second for _, second in times) * SMALL / LARGE
        print(f"| {name} | {one:.3f} | {many:.3f} | {many / one:.2f} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", default="gpt-neox-olmo-dolma-v1_5.json")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    tokenizer = load(str(data_dir() / "tokenizers" / arguments.tokenizer))
    assert isinstance(tokenizer, Tokenizer)
    encoder = tokenizer.encoder("fastokens")  # datakit's own encoder cuts no text
    limit_threads(encoder, 1)
    texts = LongTexts(encoder, None, None) if arguments.whole else tokenizer.long_texts(encoder)
    measure(texts, arguments.rounds)


if __name__ == "__main__":
    main()
