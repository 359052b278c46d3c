"""Splits the query string off an HTTP URL, and refuses URLs that contain a user name or a password.

The query string of an HTTP URL may be a signature that gives access to the file for some hours, as in the presigned
URLs of object stores. It is kept apart from the rest of the URL: it is needed to read the file, but it is part of
neither the file's name nor the source's identity, and it is never stored. In all other URLs, `?` is a wildcard.

A user name or a password in a URL would end up in every place that names the URL, so such a URL is refused everywhere.
"""

from __future__ import annotations

from datakit.errors import RootError
from datakit.redaction import HIDDEN, has_user_info

HTTP = ("http://", "https://")
REMEDY = (
    "remove them; credentials come from the environment (AWS_ACCESS_KEY_ID, HF_TOKEN, FSSPEC_<PROTOCOL>_<OPTION>) or "
    "from the store's own configuration files"
)


def split_query(url: str) -> tuple[str, str]:
    """Return an HTTP URL without its query string, and the query string with its `?`. Any other URL is returned
    unchanged, with an empty query string.

    >>> split_query("https://host/a.jsonl?X-Amz-Signature=0a1b")
    ('https://host/a.jsonl', '?X-Amz-Signature=0a1b')
    >>> split_query("s3://bucket/part-?.jsonl")
    ('s3://bucket/part-?.jsonl', '')
    """
    if not url.lower().startswith(HTTP):
        return url, ""
    path, mark, query = url.partition("?")
    return path, mark + query


def without_query(url: str) -> str:
    """Return an HTTP URL with `[redacted]` in place of its query string, and any other URL unchanged."""
    path, query = split_query(url)
    return f"{path}?{HIDDEN}" if query else url


def user_info_mistake(url: str) -> str:
    """Return a message about the user name or password in a URL, or "" if there is none."""
    return f"{url} contains a user name or a password; {REMEDY}" if has_user_info(url) else ""


def query_mistake(url: str, revision: str | None) -> str:
    """Return a message about a query string that cannot be used, or "" if there is none."""
    _, query = split_query(url)
    if HIDDEN in query:
        return f"{url} was copied from a message, which does not contain the query string; add the string again"
    if query and revision:
        return (
            f"{url} has a query string and therefore cannot have a revision: its content identifies it; remove the "
            "revision"
        )
    return ""


def refuse_user_info(url: str) -> None:
    """Raise RootError if a URL contains a user name or a password."""
    if mistake := user_info_mistake(url):
        raise RootError(mistake)
