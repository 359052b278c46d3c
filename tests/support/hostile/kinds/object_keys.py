"""Object stores with legal keys that no file can have, keys that collide, and objects that are no data."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from tests.support.hostile.case import TOLERANT, Case, Expectation, Place, done, refused

COLLIDING = {
    "file-and-folder": ("x.jsonl", "x.jsonl/z.jsonl"),
    "double-slash": ("a/b.jsonl", "a//b.jsonl", "a///b.jsonl"),
    "leading-slash": ("a.jsonl", "/a.jsonl", "//a.jsonl"),
    "dots": ("a.jsonl", "./a.jsonl", "p/./a.jsonl", "p/a.jsonl"),
    "dots-up": ("a.jsonl", "../a.jsonl", "p/../a.jsonl", "../../../outside/secret.jsonl"),
    "case": ("a.jsonl", "A.jsonl"),
    "forms-of-a-letter": ("\u00e9.jsonl", "e\u0301.jsonl"),
    "escapes-of-urls": ("a b.jsonl", "a%20b.jsonl", "a+b.jsonl", "a%2Fb.jsonl", "a/b.jsonl"),
    "our-own-names": ("manifest.json", "ledger/a.json", "hashed~/a.json", "raw/a.json", "data/s/a.json"),
    "long": ("n" * 300 + ".jsonl", "n" * 301 + ".jsonl", "k/" * 200 + "m" * 500 + ".jsonl"),
    "signs-of-urls": ("a?b.jsonl", "a#b.jsonl", "a&b=c.jsonl", "a;b.jsonl", "a:b.jsonl", "s3:/b.jsonl"),
    "signs-of-patterns": ("*.jsonl", "[a].jsonl", "{a,b}.jsonl", "a.jsonl", "?.jsonl"),
    "unsafe": ("\u202etxt.live.jsonl", "del\x7f.jsonl", "tab\t.jsonl", "\u2028.jsonl"),
    "backslashes": ("a\\..\\..\\b.jsonl", "a\\b.jsonl", "C:\\a.jsonl"),
    "spaces": (" a.jsonl", "a .jsonl", " .jsonl"),
}


def put(place: Place, key: str, body: bytes) -> None:
    """Put an object below the case's folder of the store."""
    import boto3

    name, _, prefix = place.bucket.removeprefix("s3://").partition("/")
    client = boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1",
                          aws_access_key_id="test", aws_secret_access_key="test")  # fmt: skip
    client.put_object(Bucket=name, Key=f"{prefix}/{key}", Body=body)


def objects(keys: Iterable[str], more: str = TOLERANT, empty: Iterable[str] = ()) -> Callable[[Place], None]:
    """Return a function that puts an object with one document of its own at each key. empty: keys without content."""

    def build(place: Place) -> None:
        for number, key in enumerate(keys):
            put(place, f"source/{key}", place.lines(number + 1)[-len(place.lines(1)) :])
        for key in empty:
            put(place, f"source/{key}", b"")
        place.recipe(url=f"{place.bucket}/source", more=more)

    return build


def colliding(name: str) -> Case:
    """Return a case of keys that a file system could not hold together: each becomes a document of its own."""
    keys = COLLIDING[name]
    return Case(f"keys-{name}", objects(keys), done(len(keys)))


def case(name: str, keys: Iterable[str], ends: Expectation, **more: object) -> Case:
    return Case(f"keys-{name}", objects(keys, **more), ends)  # type: ignore[arg-type]


REMOTE_ROOT = ("run", "r.toml", "--root", "{bucket}/root", "--workers", "1", "--until", "normalize")
CASES = (
    *(colliding(name) for name in COLLIDING),
    case("ends-with-a-slash", ("a.jsonl", "folder.jsonl/"), refused("ends with a slash")),
    case("names-a-version", ("v.jsonl?versionId=3.jsonl",), refused("versionId")),
    case("markers-of-folders", ("a.jsonl",), done(1), empty=("empty/", "a/b/")),
    case("hidden", ("a.jsonl", ".hidden.jsonl", "a/.git/x.jsonl", "..\\..\\a.jsonl"), done(1)),
    case("no-format", ("a.jsonl", "passwd", ".env"), refused("passwd")),
    case("only-markers", (), refused(code=2), empty=("empty/",)),
    Case(
        "keys-collide-in-a-remote-root",
        objects((*COLLIDING["dots-up"], *COLLIDING["double-slash"][1:])),
        refused(code=0),
        words=REMOTE_ROOT,
    ),
    Case(
        "keys-unsafe-planned",
        objects((*COLLIDING["unsafe"], "\u202e.unknown")),
        refused(code=(0, 2)),
        words=("plan", "r.toml"),
    ),
    Case(
        "keys-unsafe-inspected",
        objects(COLLIDING["unsafe"]),
        refused(code=0),
        words=("inspect", "{bucket}/source"),
        shows_text=True,
    ),
)
