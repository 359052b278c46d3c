"""Computes the hash of a recipe's tokenizer file, and explains which tokenizers a recipe can choose."""

from __future__ import annotations

import hashlib
import os

from datakit.errors import NotFoundError, TokenizerError
from datakit.storage import urls

CHOICES = """tokenize.tokenizer can be
  "tokenizer.json"             a file of the tokenizers library; also a URL, as in
                               "hf://openai-community/gpt2/tokenizer.json"
  "openai-community/gpt2"      a model on the Hugging Face Hub (needs a network);
                               "NAME@REVISION" chooses a revision of it
  "train"                      a tokenizer trained on this dataset
  "bytes"                      one token per byte
  "package.module:function"    a tokenizer of your own"""
PATH = "tokenizer_path"  # the operation parameter that holds the path of a tokenizer file


def file_hash(path: str) -> str:
    """Return the sha256 of a tokenizer file. The fingerprint contains this hash instead of the file's path."""
    if urls.is_local(path) and os.path.isdir(path):
        inside = f"{path}/tokenizer.json"
        advice = f"set tokenize.tokenizer = {inside!r}" if os.path.isfile(inside) else CHOICES
        raise TokenizerError(f"tokenizer {path} is a directory; {advice}")
    try:
        return hashlib.sha256(urls.read_bytes(path)).hexdigest()
    except (NotFoundError, OSError) as error:
        raise TokenizerError(f"tokenizer {path} was not found; {CHOICES}") from error
