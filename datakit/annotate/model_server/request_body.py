"""Makes the body of the request about a document. It depends only on the document's text and on the settings that enter
the fingerprint. Of a long document, pieces are sent as `fasttext/pieces.py` chooses them, joined by a line `[...]`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from datakit.annotate.fasttext.checks import PIECES
from datakit.annotate.model_server.config import PLACEHOLDER, ModelServerConfig

BETWEEN = "\n[...]\n"
PROBE = "datakit"  # the text of a request that shows whether the server answers at all


def sent_text(data: bytes, max_bytes: int) -> str:
    """Return the part of a text, given as UTF-8, that is sent.

    >>> sent_text(b"abcdefghij" * 200, 1024).count("[...]"), sent_text(b"short", 1024)
    (7, 'short')
    """
    if len(data) <= max_bytes:
        return data.decode()
    size, pieces = max_bytes // PIECES, []
    for number in range(PIECES):
        begin = number * (len(data) - size) // (PIECES - 1)
        pieces.append(data[_boundary(data, begin) : _boundary(data, begin + size)].decode())
    return BETWEEN.join(pieces)


def _boundary(data: bytes, position: int) -> int:
    """Return the first position from `position` on where a character begins, or the end."""
    while position < len(data) and data[position] & 0xC0 == 0x80:
        position += 1
    return position


def request_body(config: ModelServerConfig, text: str) -> bytes:
    """Return the body of a request, a JSON object. text: what is sent of the document."""
    messages = [{"role": "system", "content": config.system}] if config.system else []
    messages.append({"role": "user", "content": config.prompt.replace(PLACEHOLDER, text)})
    body: dict[str, Any] = {"model": config.model, "messages": messages, "max_tokens": config.max_tokens}
    body |= config.parameters
    if config.structured:
        schema = {"name": "answer", "strict": True, "schema": config.answer_format().json_schema()}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return msgspec.json.encode(body)


def most_tokens(config: ModelServerConfig) -> int:
    """Return more tokens than a request can have: a token stands for at least one byte of text, and all of the body
    (parameters such as tools, and the schema of the answer) may be charged.
    """
    return len(request_body(config, "")) + config.max_bytes + PIECES * len(BETWEEN) + 512
