"""Removes secrets from messages that are stored or shown: passwords and query strings of URLs, authorization headers,
access keys, and the values of environment variables that hold secrets.

Libraries quote the URLs and headers of failed requests, so their error messages may contain signatures and tokens.
Every error of datakit (`errors.py`), every message of an attempt (`engine/executor.py`), every event and every message
for the user passes through `redacted`. A secret in another form, such as one that the user's own code has encoded, is
not recognized.

Cost: 10-20 us for a short text. Only messages are redacted, never data.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote

HIDDEN = "[redacted]"
SHORTEST_SECRET = 8  # characters; a shorter value may be a word such as "test", which also occurs in harmless text
SECRET_WORDS = frozenset({"APIKEY", "KEY", "PASSWD", "PASSWORD", "SAS", "SECRET", "SIGNATURE", "TOKEN"})
PLACE_WORDS = frozenset({"DIR", "FILE", "MODE", "PATH", "URI"})  # HF_TOKEN_PATH, for example, holds no secret

# a password may contain `/`, but digits between `:` and `/` are a port
USER_INFO = re.compile(r"(?<=://)(?:[^/?#:\s'\"<>]*:(?!\d+/)[^?#\s'\"<>]*|[^/?#\s'\"<>]*)@")
_END = r"[^\s'\"<>,;:.)\]}]"  # a URL's last character; punctuation after a URL belongs to the sentence
_NEW = r"(?!\[redacted)"  # leaves what is already redacted as it is, since a text may be redacted twice
_PATTERNS = (  # (words, pattern, replacement); a pattern is used only if the lowercase text has one of its words
    (("://",), USER_INFO, f"{HIDDEN}@"),
    (("http",), re.compile(rf"(?i)(\bhttps?://[^\s'\"<>?]*)\?{_NEW}[^\s'\"<>]*{_END}"), rf"\1?{HIDDEN}"),
    # a URL without scheme and host, as urllib3 quotes it; a `?` that does not precede `name=` may be a wildcard
    (("?",), re.compile(rf"(?<=[^\s?'\"<>(])\?(?=[\w.~%+-]+=)[^\s'\"<>]*{_END}"), f"?{HIDDEN}"),
    (
        ("=", "%3d"),
        re.compile(
            r"(?i)\b((?:x-(?:amz|goog|ms|oss)-)?(?:signature|credential|security-token)|awsaccesskeyid|googleaccessid"
            r"|sig|access[_-]?token|auth[_-]?token|api[_-]?key|password|token|(?:client|access|aws)[\w-]*secret[\w-]*)"
            rf"(=|%3d){_NEW}[^&\s'\"<>,;)\]}}]+"
        ),
        rf"\1\2{HIDDEN}",
    ),
    (
        ("authorization", "security-token", "api-key", "cookie", "secret", "password"),
        re.compile(
            r"(?i)\b(authorization|x-amz-security-token|x-api-key|cookie|[\w-]*(?:secret|password)[\w-]*)"
            r"(['\"]\s*[:,]\s*b?['\"]|:\s*)(?:(?:bearer|basic|token)\s+)?"
            rf"{_NEW}[^\s'\",)}}]{{8,}}"
        ),
        rf"\1\2{HIDDEN}",
    ),
    (("bearer",), re.compile(r"(?i)\bbearer\s+[\w.~+/=-]{16,}"), f"Bearer {HIDDEN}"),
    (("hf_",), re.compile(r"\bhf_[A-Za-z0-9]{16,}\b"), HIDDEN),
    (("akia", "asia"), re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), HIDDEN),
)


def redacted(text: str) -> str:
    """Return a text with `[redacted]` in place of each secret.

    >>> redacted("GET https://user:word@host/a.txt?X-Amz-Signature=0a1b: 403")
    'GET https://[redacted]@host/a.txt?[redacted]: 403'
    >>> redacted("s3://bucket/part-?.jsonl: no files")
    's3://bucket/part-?.jsonl: no files'
    """
    if not text:
        return text
    for value in _secret_values():
        if value in text:
            text = text.replace(value, HIDDEN)
    lower = text.lower()  # searching for a word is 50 times as fast as matching a pattern that begins with it
    for words, pattern, replacement in _PATTERNS:
        if any(word in lower for word in words):
            text = pattern.sub(replacement, text)
    return text


def redacted_values(value: Any) -> Any:
    """Return plain data (dicts, lists, tuples, texts, other values) with `[redacted]` in place of each secret in its
    texts. A single search determines whether there is a secret; if there is none, the data is returned as it is.

    >>> redacted_values({"urls": ["https://host/a?sig=0a1b"], "number": 3})
    {'urls': ['https://host/a?[redacted]'], 'number': 3}
    """
    together = "\n".join(_texts(value))  # no secret extends over two texts, since white space ends it
    return value if redacted(together) == together else _each_redacted(value)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from _texts(key)
            yield from _texts(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)


def _each_redacted(value: Any) -> Any:
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, Mapping):
        return {_each_redacted(key): _each_redacted(one) for key, one in value.items()}
    return [_each_redacted(one) for one in value] if isinstance(value, (list, tuple)) else value


def has_user_info(url: str) -> bool:
    """Return True if a URL contains a user name or a password.

    >>> has_user_info("https://user:word@host/a"), has_user_info("hf://datasets/organization/name@main")
    (True, False)
    """
    return bool(USER_INFO.search(url))


def is_secret_name(name: str) -> bool:
    """Return True if an environment variable with this name probably holds a secret.

    >>> is_secret_name("AWS_SECRET_ACCESS_KEY"), is_secret_name("HF_TOKEN_PATH"), is_secret_name("AWS_REGION")
    (True, False, False)
    """
    words = set(name.upper().split("_"))
    return bool(words & SECRET_WORDS) and not words & PLACE_WORDS


def _secret_values() -> list[str]:
    """Return the values of environment variables that probably hold secrets: each value as it is and, if different, its
    percent-encoded form. Values of fewer than SHORTEST_SECRET characters are left out.
    """
    found = [os.environ.get(name, "") for name in _secret_names(tuple(os.environ))]
    values = {form for value in found if len(value) >= SHORTEST_SECRET for form in (value, quote(value, safe=""))}
    return sorted(values, key=len, reverse=True)


@lru_cache(maxsize=8)
def _secret_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if is_secret_name(name))
