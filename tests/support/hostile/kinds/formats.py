"""JSON arrays, wiki dumps, archives of samples, Dolma's attributes and Git repositories from strangers."""

from __future__ import annotations

import gzip
import json
import subprocess
import tarfile
from collections.abc import Callable
from functools import partial

import brotli
import pyarrow as pa

from tests.support.hostile.case import SAME_LENGTH, TOLERANT, Case, Place, done, refused, texts

WORD = SAME_LENGTH.decode()
WIKI, ARRAY, SAMPLES, DOLMA = (f'format = "{name}"' for name in ("mediawiki", "json-array", "webdataset", "dolma"))
PAGE = (
    f"<page><title>t</title><id>1</id><revision><id>1</id><timestamp>2024</timestamp><text>{WORD}</text></revision>"
    "</page>"
)
LONG = 64 << 20
RUNNING = ("uploadpack.packObjectsHook", "diff.external", "diff.evil.command", "diff.evil.textconv", "core.pager")


def dump(inside: str, start: str = "") -> Callable[[], bytes]:
    """Return a function that makes a dump of one good page and more."""
    return f"{start}<mediawiki>{PAGE}{inside}</mediawiki>".encode


def page_with(inside: str) -> str:
    return f"<page><title>t</title><id>2</id><revision><id>2</id><text>{inside}</text></revision></page>"


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Return a header of a tar archive with this size, whatever it is."""
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


def member(name: str, data: bytes = WORD.encode()) -> bytes:
    return header(name, len(data)) + data + bytes(-len(data) % 512)


def archive(*parts: bytes) -> Callable[[], bytes]:
    return lambda: b"".join(parts) + bytes(1024)


def with_a_long_member() -> bytes:
    return archive(member("a.txt"), member("b.txt", bytes(LONG)))()


def git_repository(place: Place, source: str = "") -> None:
    """A repository whose settings and hooks would run a program, with a link and a name that lead out."""
    folder, planted = place.work / "repo", f"touch {place.ran}/x"

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True)

    folder.mkdir()
    git("init", "-q", "-b", "main")
    (folder / "a.py").write_text(f"# {place.document}\n")
    (folder / "link.py").symlink_to(place.secret)
    (folder / ".gitattributes").write_text("* filter=evil diff=evil\n")
    (folder / ".gitmodules").write_text(
        f'[submodule "m"]\n\tpath = m\n\turl = {place.outside}\n\tupdate = !{planted}\n'
    )
    git("add", "-A")
    git("commit", "-qm", "one")
    for name in (*RUNNING, "filter.evil.smudge", "core.fsmonitor", "core.sshCommand"):
        git("config", name, planted)
    for hook in ("post-checkout", "reference-transaction", "pre-receive"):
        (folder / ".git" / "hooks" / hook).write_text(f"#!/bin/sh\n{planted}\n")
        (folder / ".git" / "hooks" / hook).chmod(0o755)
    place.recipe(url=f"git+file://{folder}", source=source, more=TOLERANT)


def dolma(entries: list[object]) -> Callable[[Place], None]:
    documents = b"".join(json.dumps({"id": str(n), "text": f"{WORD} {n}"}).encode() + b"\n" for n in range(3))
    attributes = b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)
    files = (("documents/a.jsonl", lambda: documents), ("attributes/q/a.jsonl", lambda: attributes))
    return texts(*files, source=DOLMA)


LAUGHS = '<!DOCTYPE x [<!ENTITY a "lol"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]>'
CASES = (
    Case("wiki-many-laughs", texts(("a.xml", dump(page_with("&b;"), LAUGHS)), source=WIKI), refused("document type")),
    Case(
        "wiki-external-entity",
        texts(("a.xml", dump("", '<!DOCTYPE x SYSTEM "../../outside/secret.jsonl">')), source=WIKI),
        refused("document type"),
    ),
    Case("wiki-unknown-entity", texts(("a.xml", dump(page_with("&b;"))), source=WIKI), done(1, quarantined=1)),
    Case(
        "wiki-page-of-64-mib",
        texts(("a.xml.gz", lambda: gzip.compress(dump(page_with("a" * LONG))())), source=WIKI),
        done(1, quarantined=1),
    ),
    Case(
        "wiki-million-elements",
        texts(("a.xml.gz", lambda: gzip.compress(dump("<page>" + "<a/>" * 1_000_000 + "</page>")())), source=WIKI),
        done(1, quarantined=1),
    ),
    Case(
        "wiki-100000-deep",
        texts(("a.xml", dump("<page>" + "<a>" * 100_000 + "</a>" * 100_000 + "</page>")), source=WIKI),
        done(1, quarantined=1),
    ),
    Case(
        "wiki-900-pages-without-an-end",
        texts(("a.xml", dump("<page>" * 900)), source=WIKI),
        done(1, quarantined=900),
    ),
    Case("array-of-100000-brackets", texts(("a.json", b"[" * 100_000)), refused("became a document")),
    Case(
        "array-with-an-open-quote",
        texts(("a.json.gz", lambda: gzip.compress(b'[{"text": "' + b"a" * LONG))),
        refused("became a document"),
    ),
    Case("array-of-a-million-commas", texts(("a.json", b"[" + b"," * 1_000_000 + b"]"), source=ARRAY),
         refused("became a document")),
    Case("array-twice-in-an-object", texts(("a.json", b'{"a": [{}], "b": [{}]}'), source=ARRAY),
         refused("a.json", "two arrays")),
    Case(
        "tar-names-lead-out",
        texts(("a.tar", archive(member("../../outside/new.txt"), header("l", 0, tarfile.SYMTYPE))), source=SAMPLES),
        done(1, members_ignored=1),
    ),
    Case(
        "tar-extended-header-of-an-exbibyte",
        texts(("a.tar", archive(member("a.txt"), header("x", 1 << 60, tarfile.XHDTYPE))), source=SAMPLES),
        refused("became a document"),
    ),
    Case(
        "tar-negative-size",
        texts(("a.tar", archive(member("a.txt"), member("b.txt"), header("c.txt", -512))), source=SAMPLES),
        done(1, quarantined=2),
    ),
    Case(
        "tar-member-of-an-exbibyte",
        texts(("a.tar", archive(member("a.txt"), member("b.txt"), header("c.txt", 1 << 60))), source=SAMPLES),
        done(1, quarantined=2),
    ),
    Case(
        "tar-member-of-64-mib",
        texts(("a.tgz", lambda: gzip.compress(with_a_long_member())), source=SAMPLES),
        done(1, quarantined=1),
    ),
    Case("dolma-out-of-order", dolma([{"id": n, "attributes": {}} for n in "021"]), refused("attributes/q/a.jsonl")),
    Case("dolma-attributes-nested-deep", dolma([{"id": "0", "attributes": {"a": 1}}, "[" * 100_000]),
         refused("attributes/q/a.jsonl")),
    Case("git-hooks-filters-and-links", git_repository, done(1)),
    Case("git-history-with-programs-for-diffs", partial(git_repository, source="history = true"), done(1)),
    Case(
        "lz4-line-of-64-mib",
        texts(("a.jsonl.lz4", lambda: pa.compress(b'{"text": "' + b"a" * LONG + b'"}\n', "lz4", asbytes=True))),
        refused("became a document"),
    ),
    Case(
        "brotli-line-of-64-mib",
        texts(("a.jsonl.br", lambda: brotli.compress(b'{"text": "' + b"a" * LONG + b'"}\n', quality=3))),
        refused("became a document"),
    ),
    Case(
        "brotli-gibibyte-of-line-ends",
        texts(("a.jsonl.br", lambda: brotli.compress(b"\n" * (1 << 30), quality=1))),
        refused("became a document"),
    ),
)  # fmt: skip
