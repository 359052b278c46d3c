"""Finds e-mail addresses around each `@`.

Form: the dot-atom of RFC 5322, section 3.2.3, limited to characters that addresses really have (letters, digits and
`._%+-`) and extended by Latin letters with diacritics (RFC 6531); at most 64 bytes (RFC 5321, 4.5.3.1.1). The domain
has at least two labels of 1 to 63 bytes and at most 253 bytes (RFC 1035, 2.3.4). Its last label is a country's (ISO
3166) or has 3 to 24 letters and is no common file extension, or begins with `xn--`.

Not addresses: the user of a URL (`https://user@host`), handles (`@user@host`), `git@host`, calls
(`a@b.transpose(`). Cost: at most 64 + 253 bytes are read per `@`.
"""

from __future__ import annotations

import numpy as np

from datakit.annotate.personal import byte_classes
from datakit.annotate.personal.byte_classes import LOCAL, WORD, at, before, has
from datakit.annotate.personal.kinds import EMAIL, EMAIL_RESERVED
from datakit.text.numba_cache import cached_njit

LONGEST_LOCAL, LONGEST_DOMAIN, LONGEST_LABEL = 64, 253, 63
COUNTRIES = frozenset(
    b"ac ad ae af ag ai al am ao aq ar as at au aw ax az ba bb bd be bf bg bh bi bj bm bn bo br bs bt bv bw by "
    b"bz ca cc cd cf cg ch ci ck cl cm cn co cr cu cv cw cx cy cz de dj dk dm do dz ec ee eg er es et eu fi fj "
    b"fk fm fo fr ga gb gd ge gf gg gh gi gl gm gn gp gq gr gs gt gu gw gy hk hm hn hr ht hu id ie il im in io "
    b"iq ir is it je jm jo jp ke kg kh ki km kn kp kr kw ky kz la lb lc li lk lr ls lt lu lv ly ma mc md me mg "
    b"mh mk ml mm mn mo mp mq mr ms mt mu mv mw mx my mz na nc ne nf ng ni nl no np nr nu nz om pa pe pf pg ph "
    b"pk pl pm pn pr ps pt pw py qa re ro rs ru rw sa sb sc sd se sg sh si sj sk sl sm sn so sr ss st su sv sx "
    b"sy sz tc td tf tg th tj tk tl tm tn to tr tt tv tw tz ua ug uk us uy uz va vc ve vg vi vn vu wf ws ye yt "
    b"za zm zw".split()
)
FILES = frozenset(
    b"bin class conf cpp css csv dll doc exe gif git gz html htm ico jar jpeg jpg js json log lock md min pdf php png "
    b"svg tar toml txt webp xml yaml yml".split()
)
RESERVED = frozenset(b"example test invalid localhost local".split())  # RFC 2606 and RFC 6762
RESERVED_DOMAINS = frozenset((b"example.com", b"example.net", b"example.org"))  # RFC 2606, section 3

kernel = cached_njit(byte_classes)
_PERIOD, _HYPHEN, _SLASH, _COLON, _AT = ord("."), ord("-"), ord("/"), ord(":"), ord("@")
_CALL, _UNDERSCORE = ord("("), ord("_")


@kernel
def _is_latin(data: np.ndarray, first: int, stop: int) -> bool:
    """Return True if a letter from U+00C0 to U+024F begins at `first`: two bytes, of which the first is C3 to C9."""
    lead = at(data, first, stop)
    follow = at(data, first + 1, stop)
    return 0xC3 <= lead <= 0xC9 and 0x80 <= follow < 0xC0 and not (lead == 0xC9 and follow > 0x8F)


@kernel
def _local_start(data: np.ndarray, start: int, position: int) -> int:
    """Return where the local part before the `@` at `position` begins; `position` if there is none."""
    first, least = position, max(start, position - LONGEST_LOCAL - 1)
    while first > least:
        byte = data[first - 1]
        if has(byte, LOCAL) and not (byte == _PERIOD and (first == position or data[first] == _PERIOD)):
            first -= 1
        elif first - 2 >= least and _is_latin(data, first - 2, position):
            first -= 2
        else:
            break
    if position - first > LONGEST_LOCAL:
        return position
    while first < position and data[first] < 128 and not has(data[first], WORD):
        first += 1
    return first


@kernel
def _in_url(data: np.ndarray, start: int, first: int) -> bool:
    """Return True if the text before `first` makes the address a user of a URL: `//` or `//name:`."""
    position, least = first, max(start, first - LONGEST_LOCAL)
    if before(data, start, position) == _COLON:
        position -= 1
        while position > least and data[position - 1] > 32 and data[position - 1] != _SLASH:
            position -= 1
    return before(data, start, position) == _SLASH and before(data, start, position - 1) == _SLASH


@kernel
def _letter_size(data: np.ndarray, position: int, stop: int) -> int:
    """Return the size of the letter or digit of a domain at a position, in bytes; 0 if there is none."""
    byte = at(data, position, stop)
    if has(byte, WORD) and byte != _UNDERSCORE:
        return 1
    return 2 if _is_latin(data, position, stop) else 0


@kernel
def _domain_end(data: np.ndarray, first: int, stop: int) -> int:
    """Return the end of the domain that begins at `first`; `first` if there is none."""
    position, label, labels = first, first, 0
    stop = min(stop, first + LONGEST_DOMAIN + 1)
    while True:
        byte = at(data, position, stop)
        if byte == _HYPHEN and position > label:
            position += 1
        elif _letter_size(data, position, stop):
            position += _letter_size(data, position, stop)
        else:
            break
        if at(data, position, stop) == _PERIOD:
            if not _letter_size(data, position + 1, stop):
                break
            if position - label > LONGEST_LABEL:
                return first
            position, labels = position + 1, labels + 1
            label = position
    while position > label and data[position - 1] == _HYPHEN:
        position -= 1
    size = position - label
    return position if labels and 2 <= size <= LONGEST_LABEL and position - first <= LONGEST_DOMAIN else first


@kernel
def email_around(data: np.ndarray, start: int, stop: int, position: int) -> tuple[int, int]:
    """Return the start and the end of the address whose `@` is at `position` of data[start:stop]; (0, 0) if none."""
    first = _local_start(data, start, position)
    if first == position:
        return 0, 0
    end = _domain_end(data, position + 1, stop)
    follow, lead = at(data, end, stop), before(data, start, first)
    if end == position + 1 or follow in (_CALL, _AT, _UNDERSCORE) or lead == _AT:
        return 0, 0
    return (0, 0) if _in_url(data, start, first) else (first, end)


def email_kind(address: bytes) -> int:
    """Return EMAIL or, for a domain that is reserved for documentation and tests, EMAIL_RESERVED; -1 if the last label
    cannot be that of a domain, or for the user `git` of SSH addresses.
    """
    local, _, domain = address.lower().rpartition(b"@")
    if local == b"git":
        return -1
    labels = domain.split(b".")
    last = labels[-1]
    if last in RESERVED or b".".join(labels[-2:]) in RESERVED_DOMAINS:
        return EMAIL_RESERVED
    known = last in COUNTRIES if len(last) == 2 else last.isalpha() and len(last) <= 24 and last not in FILES
    return EMAIL if known or last.startswith(b"xn--") else -1
