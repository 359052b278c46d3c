"""Normalizes the hosts of URLs that are not plain ASCII names, and all hosts of lists.

A host with non-ASCII characters is compared in the form that DNS uses (`xn--...`): each label is mapped as UTS 46
demands (lowercase, compatibility forms), and then written in Punycode. So `Bücher.example` and `xn--bcher-kva.example`
are equal. Such hosts are Python strings here; they are rare, because crawlers store hosts in the DNS form.
"""

from __future__ import annotations

import functools
import re
from urllib.parse import unquote

import idna

_LABEL = re.compile(r"[a-z0-9_-]+")
_DOTS = re.compile("[.\u3002\uff0e\uff61]")  # those that UTS 46 maps to a dot


def is_host(host: str) -> bool:
    """Return True for a normalized host: labels of letters, digits, `-` and `_`, or an IPv6 address in brackets.

    >>> is_host("example.com"), is_host("a..b"), is_host("[::1]"), is_host("a/b"), is_host("")
    (True, False, True, False, False)
    """
    if host.startswith("["):
        return re.fullmatch(r"\[[0-9a-f:.]+\]", host) is not None
    return all(_LABEL.fullmatch(label) for label in host.split("."))


@functools.lru_cache(maxsize=1 << 16)
def normal_host(host: str) -> str:
    """Return a host in the form in which hosts are compared. An invalid label is only converted to lowercase.

    >>> normal_host("Bücher.Example."), normal_host("b%C3%BCcher.example")
    ('xn--bcher-kva.example', 'xn--bcher-kva.example')
    """
    if host.isascii() and "%" not in host:
        return host.lower().removesuffix(".")
    host = unquote(host, errors="replace")
    return ".".join(_label(label) for label in _DOTS.split(host)).removesuffix(".")


def _label(label: str) -> str:
    try:
        mapped = idna.uts46_remap(label, std3_rules=False, transitional=False)
    except idna.IDNAError:
        return label.lower()
    return mapped if mapped.isascii() else f"xn--{mapped.encode('punycode').decode('ascii')}"
