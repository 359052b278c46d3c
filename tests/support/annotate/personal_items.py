"""Makes items of personal data in the forms in which people write them, including some that the rules do not cover.

Each function takes a random generator and returns the item, of which all is to be found, or (before, item, after) if it
makes sense only within other text.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import random
import string
from collections.abc import Callable

Item = str | tuple[str, str, str]
NAMES = ("anna.schmidt", "j.doe", "maria_rossi", "bob", "info+news", "x-y", "kim2024", "müller", "r%25", "ta.n.ka")
HOSTS = ("mail", "gmail", "post-box", "web.uni-bonn", "a1", "dept.example-corp", "xn--mller-kva", "müller")
ENDINGS = ("com", "de", "org", "net", "co.uk", "fr", "jp", "info", "io", "technology", "com.au")
IBANS = {
    "DE": "nnnnnnnnnnnnnnnnnn",
    "GB": "aaaannnnnnnnnnnnnn",
    "FR": "nnnnnnnnnnxxxxxxxxxxxnn",
    "NL": "aaaannnnnnnnnn",
    "NO": "nnnnnnnnnnn",
    "MT": "aaaannnnnxxxxxxxxxxxxxxxxxx",
    "ES": "nnnnnnnnnnnnnnnnnnnn",
}
CARDS = (("4", 16), ("4", 13), ("51", 16), ("2720", 16), ("34", 15), ("37", 15), ("6011", 16), ("3530", 16), ("36", 14))
CLASSES = {"n": string.digits, "a": string.ascii_uppercase, "x": string.ascii_uppercase + string.digits}


def some(chance: random.Random, characters: str, least: int, most: int = 0) -> str:
    """Return random characters."""
    return "".join(chance.choices(characters, k=chance.randint(least, max(least, most))))


def filled(chance: random.Random, form: str) -> str:
    """Return a form with digits in place of `#`, and digits from 2 to 9 in place of `N`."""
    return "".join(
        some(chance, string.digits, 1) if c == "#" else str(chance.randint(2, 9)) if c == "N" else c for c in form
    )


def email(chance: random.Random) -> Item:
    return f"{chance.choice(NAMES)}@{chance.choice(HOSTS)}.{chance.choice(ENDINGS)}"


def email_reserved(chance: random.Random) -> Item:
    return f"{chance.choice(NAMES)}@" + chance.choice(["example.com", "mail.example.org", "host.test", "a.invalid"])


def ipv4(chance: random.Random) -> Item:
    while True:
        address = ipaddress.IPv4Address(chance.getrandbits(32))
        if address.is_global and not address.is_multicast:
            return str(address)


def ipv4_reserved(chance: random.Random) -> Item:
    return filled(chance, chance.choice(["10.1#.#.2#", "192.168.#.1##", "172.2#.1#.#", "127.0.0.1", "203.0.113.#"]))


def ipv6(chance: random.Random) -> Item:
    address = ipaddress.IPv6Address((0x2A << 120) | chance.getrandbits(120) >> chance.choice([0, 0, 24]))
    if chance.random() < 0.3:
        address = ipaddress.IPv6Address(int(address) & ~(((1 << 48) - 1) << 16))  # a run of zeros, written as ::
    return chance.choice([address.compressed, address.exploded, address.compressed.upper()])


def ipv6_reserved(chance: random.Random) -> Item:
    prefix = chance.choice([0xFE80 << 112, 0xFD << 120, 0x20010DB8 << 96])
    return ipaddress.IPv6Address(prefix | chance.getrandbits(64)).compressed


PHONES = (
    "+49 30 N######", "+49 (0)30 N####-##", "+1 (N0#) N##-####", "+1-N0#-N##-####", "+44 20 7946 0###",
    "+33 1 ## ## ## ##", "+81-3-N###-####", "+8613#########", "+353 1 N## ####", "(N0#) N2#-####",
    "N0#-N2#-####", "N0#.N2#.####", "1-N0#-N2#-####", "N0# N2#-####", "030/N######", "(0351) N####", "0170-N######",
    "03-N###-####", "090-N###-####",
    "020 7946 0###", "01632 960 ###", "06 ## ## ## ##", "0049 30 N######", "0411 N## ###",
    ("Tel. ", "N######", ""), ("Fax: ", "0N## ####", ""), ("phone ", "N0# N2# ####", ""),
    ("Mobil: ", "017#N######", ""),
    "N0#N2#####", "017#N######", "N0# N2# ####",  # not found: nothing shows that these are telephone numbers
)  # fmt: skip


def phone(chance: random.Random) -> Item:
    form = chance.choice(PHONES)
    return filled(chance, form) if isinstance(form, str) else (form[0], filled(chance, form[1]), form[2])


def luhn(digits: str) -> str:
    """Return the digits with Luhn's check digit."""
    doubled = "".join(str(int(d) * (2 - i % 2)) for i, d in enumerate(reversed(digits)))
    return digits + str(-sum(map(int, doubled)) % 10)


def card(chance: random.Random) -> Item:
    prefix, size = chance.choice(CARDS)
    number = luhn(prefix + some(chance, string.digits, size - 1 - len(prefix)))
    sizes = [4, 6, 5] if size == 15 else [4, 6, 4] if size == 14 else [4, 4, 4, 4]
    parts = [number[sum(sizes[:i]) : sum(sizes[: i + 1])] for i in range(len(sizes))]
    return number if size == 13 else chance.choice(["", " ", "-"]).join(parts)


def iban(chance: random.Random) -> Item:
    country, form = chance.choice(sorted(IBANS.items()))
    account = "".join(chance.choice(CLASSES[c]) for c in form)
    number = int("".join(str(int(c, 36)) for c in f"{account}{country}00"))
    whole = f"{country}{98 - number % 97:02}{account}"
    spaced = " ".join(whole[i : i + 4] for i in range(0, len(whole), 4))
    return chance.choice([whole, spaced])


WORDS = string.ascii_letters + string.digits


def aws_key(chance: random.Random) -> Item:
    return chance.choice(["AKIA", "ASIA"]) + some(chance, string.ascii_uppercase + "234567", 16)


def github_token(chance: random.Random) -> Item:
    return chance.choice(
        [f"gh{chance.choice('pousr')}_{some(chance, WORDS, 36)}", f"github_pat_{some(chance, WORDS, 82)}"]
    )


def google_key(chance: random.Random) -> Item:
    return "AIza" + some(chance, WORDS + "-_", 34) + some(chance, WORDS, 1)


def slack_token(chance: random.Random) -> Item:
    numbers = some(chance, string.digits, 10, 13)
    return f"xox{chance.choice('abprs')}-{numbers}-{numbers[::-1]}-{some(chance, WORDS, 24)}"


def stripe_key(chance: random.Random) -> Item:
    return f"{chance.choice('sr')}k_{chance.choice(['live', 'test'])}_{some(chance, WORDS, 24, 99)}"


def jwt(chance: random.Random) -> Item:
    parts = [{"alg": chance.choice(["HS256", "RS256"]), "typ": "JWT"}, {"sub": some(chance, WORDS, 4, 40)}]
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join([*coded, some(chance, WORDS + "_-", 42) + "x"])


def private_key(chance: random.Random) -> Item:
    label = chance.choice(["RSA PRIVATE KEY", "PRIVATE KEY", "EC PRIVATE KEY", "OPENSSH PRIVATE KEY"])
    body = "\n".join(some(chance, WORDS + "+/", 64) for _ in range(chance.randint(1, 20)))
    return f"-----BEGIN {label}-----\n{body}\n-----END {label}-----"


def secret(chance: random.Random) -> Item:
    value = chance.choice([some(chance, string.hexdigits.lower()[:16], 32), some(chance, WORDS, 20, 64) + "7"])
    return chance.choice(
        [
            ('api_key = "', value, '"'),
            ("'client_secret': '", value, "'"),
            ("AUTH_TOKEN=", value + "042", "\n"),
            ('"password" : "', value, '",'),
            ("access-key: ", value + "042", "\n"),
        ]
    )


MAKERS: tuple[Callable[[random.Random], Item], ...] = (
    aws_key, card, email, email_reserved, github_token, google_key, iban, ipv4, ipv4_reserved, ipv6, ipv6_reserved,
    jwt, phone, private_key, secret, slack_token, stripe_key,
)  # fmt: skip
