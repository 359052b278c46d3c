"""Named pipes, sockets and devices wherever a file may be expected; a command that opened one would wait for ever."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from tests.support.hostile.case import TOLERANT, Case, Place, done, refused

Put = Callable[[Path], None]


def pipe(path: Path) -> None:
    os.mkfifo(path)


def socket_at(path: Path) -> None:
    """Leave a socket at a path, which may be longer than a socket's address."""
    with socket.socket(socket.AF_UNIX) as listener:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def terminal(path: Path) -> None:
    path.symlink_to("/dev/tty")


def link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name(f"{path.name}-target"))
    path.symlink_to(f"{path.name}-target")


KINDS: dict[str, tuple[Put, str]] = {
    "pipe": (pipe, "a named pipe"),
    "socket": (socket_at, "a socket"),
    "device": (device, "a device"),
    "link": (link_to_a_pipe, "a named pipe"),
}


def in_source(put: Put, name: str = "a.jsonl") -> Callable[[Place], None]:
    """Return a function that puts a special file beside a good one."""

    def build(place: Place) -> None:
        place.write("texts/good.jsonl", place.lines(3))
        put(place.work / "texts" / name)
        place.recipe(source='exclude = ["*-target"]', more=TOLERANT)

    return build


def at(put: Put, name: str) -> Callable[[Place], None]:
    """Return a function that puts a special file into the working directory."""
    return lambda place: put(place.work / name)


def as_tokenizer(put: Put) -> Callable[[Place], None]:
    """Return a function that writes a recipe whose tokenizer is a special file."""

    def build(place: Place) -> None:
        place.write("texts/good.jsonl", place.lines(3))
        put(place.work / "entry.json")
        place.recipe(more='[tokenize]\ntokenizer = "entry.json"\n')

    return build


def as_source(put: Put) -> Callable[[Place], None]:
    """Return a function that writes a recipe whose source is a special file."""

    def build(place: Place) -> None:
        put(place.work / "texts")
        place.recipe()

    return build


def as_root(put: Put) -> Callable[[Place], None]:
    """Return a function that puts a special file where the root is to be."""

    def build(place: Place) -> None:
        place.write("texts/good.jsonl", place.lines(3))
        place.recipe()
        put(place.root)

    return build


COMMANDS: dict[str, tuple[str, ...]] = {
    "run": ("run", "entry.toml", "--root", "{root}"),
    "plan": ("plan", "entry.toml"),
    "train": ("train", "entry.toml"),
    "preview": ("mixture", "preview", "entry.toml"),
    "inspect": ("inspect", "entry.toml"),
    "validate": ("validate", "entry.toml"),
    "import": ("cache", "import", "entry.toml", "new", "--tokenizer", "entry.toml"),
}
ANY_RUN = ("run", "r.toml", "--root", "{root}", "--workers", "1")
CASES = (
    *(Case(f"special-{kind}-in-a-source", in_source(put), done(3)) for kind, (put, _) in KINDS.items()),
    Case("special-terminal-in-a-source", in_source(terminal), done(3)),
    *(
        Case(f"special-{kind}-as-a-source", as_source(put), refused("texts", said))
        for kind, (put, said) in KINDS.items()
    ),
    *(
        Case(f"special-{kind}-as-a-tokenizer", as_tokenizer(put), refused("entry.json", said), words=ANY_RUN)
        for kind, (put, said) in KINDS.items()
    ),
    *(
        Case(
            f"special-{kind}-for-{command}",
            at(put, "entry.toml"),
            refused("entry.toml", *([] if command in ("validate", "import") else [said]), code=(1, 2, 4)),
            words=words,
        )
        for command, words in COMMANDS.items()
        for kind, (put, said) in KINDS.items()
        if kind in ("pipe", "socket")
    ),
    Case("special-device-for-run", at(device, "entry.toml"), refused("a device"), words=COMMANDS["run"]),
    *(
        Case(f"special-{kind}-as-a-root", as_root(put), refused(code=(1, 2, 4)), words=ANY_RUN)
        for kind, (put, _) in KINDS.items()
        if kind in ("pipe", "device")
    ),
)
