"""Links in sources, caches and recipes: out of the tree, in circles, to nothing, and to what the kernel shows of us."""

from __future__ import annotations

import os
from collections.abc import Callable

from tests.support.hostile.case import TOLERANT, Case, Place, done, refused

OUT = "leads out"


def linked(*links: tuple[str, str], good: bool = True, source: str = "") -> Callable[[Place], None]:
    """Return a function that makes links (name, target) in the source's folder, beside a good file."""

    def build(place: Place) -> None:
        (place.work / "texts").mkdir()
        if good:
            place.write("texts/good.jsonl", place.lines(3))
        for name, target in links:
            path = place.work / "texts" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target.format(outside=place.outside, secret=place.secret))
        place.recipe(source=source, more=TOLERANT)

    return build


def hard_link(place: Place) -> None:
    """Give a file of the source a second name."""
    place.write("texts/a.jsonl", place.lines(3))
    os.link(place.work / "texts/a.jsonl", place.work / "texts/b.jsonl")
    place.recipe(more=TOLERANT)


def doubling(levels: int) -> Callable[[Place], None]:
    """Return a function that makes folders of which each has two links to the next: 2^levels paths to one file."""

    def build(place: Place) -> None:
        for number in range(levels):
            folder = place.work / "texts" / f"level{number}"
            folder.mkdir(parents=True)
            for name in ("a", "b"):
                (folder / name).symlink_to(f"../level{number + 1}")
        place.write(f"texts/level{levels}/a.jsonl", place.lines(3))
        place.recipe(more=TOLERANT)

    return build


def each_to_all(count: int) -> Callable[[Place], None]:
    """Return a function that makes folders of which each has links to all others: count! paths."""

    def build(place: Place) -> None:
        for number in range(count):
            folder = place.work / "texts" / f"d{number}"
            folder.mkdir(parents=True)
            for other in range(count):
                (folder / f"l{other}").symlink_to(f"../d{other}")
        place.write("texts/d0/a.jsonl", place.lines(3))
        place.recipe(more=TOLERANT)

    return build


def recipe_like(url: str) -> Callable[[Place], None]:
    """Return a function that writes a recipe over a URL, with a link `texts` to the folder outside."""

    def build(place: Place) -> None:
        (place.work / "texts").mkdir()
        (place.work / "texts" / "d").symlink_to(place.outside)
        place.write("texts/good.jsonl", place.lines(3))
        place.recipe(url=url, more=TOLERANT)

    return build


CASES = (
    Case("link-to-a-file-outside", linked(("a.jsonl", "{secret}")), refused(OUT, "a.jsonl", "outside_links")),
    Case("link-to-a-file-outside-by-dots", linked(("a.jsonl", "../../outside/secret.jsonl")), refused(OUT)),
    Case("link-to-a-folder-outside", linked(("d", "{outside}")), refused(OUT, "texts/d")),
    Case("link-over-two-links", linked(("a", "b"), ("b", "{outside}")), refused(OUT)),
    Case(
        "link-into-a-folder-outside-through-a-link",
        linked(("d", "{outside}"), ("a.jsonl", "d/secret.jsonl")),
        refused(OUT),
    ),
    Case("link-to-the-environment", linked(("environ.txt", "/proc/self/environ")), refused(OUT)),
    Case("link-to-memory", linked(("mem.txt", "/proc/self/mem")), refused(OUT)),
    Case("link-to-open-files", linked(("fd", "/proc/self/fd")), refused(OUT)),
    Case("link-to-the-root-of-the-disk", linked(("all", "/")), refused(OUT)),
    Case("link-to-accounts", linked(("passwd.txt", "/etc/passwd")), refused(OUT)),
    Case("link-to-home", linked(("home", "../../home")), refused(OUT)),
    Case("link-to-standard-input", linked(("stdin.txt", "/dev/stdin")), refused(code=(0, 2))),
    Case("link-to-a-neighbor-with-the-same-prefix", linked(("a.jsonl", "../texts2/a.jsonl")), refused(code=2)),
    Case("link-to-nothing", linked(("a.jsonl", "nowhere")), refused("a link to a file that does not exist")),
    Case("link-to-itself", linked(("a.jsonl", "a.jsonl")), refused("a link to a file that does not exist")),
    Case(
        "link-circle-of-two",
        linked(("a.jsonl", "b.jsonl"), ("b.jsonl", "a.jsonl")),
        refused("does not exist"),
    ),
    Case("link-to-the-parent-folder", linked(("d/up", "..")), done(3)),
    Case("link-to-the-folder-itself", linked(("d", ".")), done(3)),
    Case("link-inside", linked(("again.jsonl", "good.jsonl")), done(3, duplicates=3)),
    Case(
        "link-with-escapes-in-its-target",
        linked(("a\x1b[2J.jsonl", "\x1b]0;owned\x07\u202e")),
        refused("does not exist", r"\x1b[2J"),
    ),
    Case("link-outside-that-is-excluded", linked(("a.jsonl", "{secret}"), source='exclude = ["a.jsonl"]'), done(3)),
    Case("link-outside-that-is-not-included", linked(("d", "{outside}"), source='include = ["/good.jsonl"]'), done(3)),
    Case("link-hard", hard_link, done(3, duplicates=3)),
    Case("link-doubling-30-levels", doubling(30), refused("more than 1,000 paths lead to")),
    Case("link-each-to-all-of-12", each_to_all(12), refused("more than 1,000 paths lead to")),
    Case(
        "link-outside-inspected",
        linked(("a.jsonl", "{secret}")),
        refused(code=(0, 2)),
        words=("inspect", "texts"),
        shows_text=True,
    ),
    Case("link-outside-planned", linked(("d", "{outside}")), refused(OUT), words=("plan", "r.toml")),
    Case("link-outside-below-a-glob", recipe_like("texts/*/*.jsonl"), refused(OUT)),
    Case("link-outside-behind-a-double-star", recipe_like("texts/**/*.jsonl"), refused(OUT)),
)
