"""Defines a case: a tree that a stranger could have made, a command, and how the command must end.

The folders of a case, `Place`, lie side by side: `work` (the tree and the working directory), `root` (the output),
`temporary`, `home`, `outside` (files that no command may open) and `ran` (where planted code would leave a file).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SECRET_FILE = "secret.jsonl"
OPENED = "planted_module"  # on the import path of every case; importing it leaves a file in `ran`


@dataclass(frozen=True)
class Place:
    """The folders of one case. document: a word for the texts of documents, which no message may quote. outside_text:
    the text of the file outside. finished: returns a folder with `root`, a finished root of the dataset `shelf`.
    trained: returns a folder with a finished training run. bucket: a folder of an S3 server for this case; "" if the
    case uses none. No case may change what these hold for others.
    """

    folder: Path
    document: str
    outside_text: str
    finished: Callable[[], Path]
    trained: Callable[[], Path]
    bucket: str = ""

    @property
    def work(self) -> Path:
        return self.folder / "work"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def temporary(self) -> Path:
        return self.folder / "temporary"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def outside(self) -> Path:
        return self.folder / "outside"

    @property
    def ran(self) -> Path:
        return self.folder / "ran"

    @property
    def secret(self) -> Path:
        return self.outside / SECRET_FILE

    def make(self) -> None:
        """Create the folders, the secret file outside, and the module that no command may import."""
        for folder in (self.work, self.temporary, self.home, self.outside, self.ran, self.folder / "planted"):
            folder.mkdir(parents=True)
        self.secret.write_text(json.dumps({"text": self.outside_text}) + "\n")
        (self.folder / "planted" / f"{OPENED}.py").write_text(f"open({str(self.ran / 'imported')!r}, 'w').close()\n")

    def write(self, path: str, data: bytes | str) -> Path:
        """Write a file below `work`."""
        file = self.work / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data.encode() if isinstance(data, str) else data)
        return file

    def recipe(self, *, url: str = "texts", source: str = "", more: str = "", name: str = "r") -> Path:
        """Write `r.toml` with one source. source, more: further lines of its table, and further tables."""
        quoted = json.dumps(url)
        return self.write(
            f"{name}.toml", f'name = "{name}"\n[[sources]]\nname = "s"\nurl = {quoted}\n{source}\n{more}\n'
        )

    def lines(self, count: int = 5, column: str = "text") -> bytes:
        """Return good JSON lines, one document each."""
        rows = ({column: f"{self.document} number {number} of some"} for number in range(count))
        return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@dataclass(frozen=True)
class Limits:
    """The most that a command may use: seconds, bytes of memory of any one process, and bytes written by all."""

    seconds: float = 180.0  # a busy machine needs long; a command that waits for something never ends
    memory: int = 1200 << 20
    written: int = 96 << 20


@dataclass(frozen=True)
class Expectation:
    """How a command ends: its exit code (or one of several, if that depends on the version of a library), what it says
    (fragments of its output, in any order), and what it must not say. counts: the counters of the normalize steps, all
    others being 0; None: they are not compared.
    """

    code: int | tuple[int, ...]
    says: tuple[str, ...] = ()
    silent_on: tuple[str, ...] = ()
    counts: dict[str, int] | None = None


@dataclass(frozen=True)
class Case:
    """A case. words: the command, in which `{root}`, `{work}` and `{bucket}` stand for the folders. shows_text: the
    command is asked for texts. alters: the command may write to `work`. follows_links: the command may read the
    file outside, to which links or descriptions of arrays in a finished step lead.
    """

    name: str
    build: Callable[[Place], None]
    ends: Expectation
    words: tuple[str, ...] = ("run", "r.toml", "--root", "{root}", "--workers", "1", "--until", "normalize")
    limits: Limits = Limits()
    environment: dict[str, str] = field(default_factory=dict)
    shows_text: bool = False
    alters: bool = False
    follows_links: bool = False


def done(documents: int, **counts: int) -> Expectation:
    """Expect a run that makes this many documents. counts: records left out, by reason."""
    return Expectation(0, counts={"records_out": documents, **counts})


def partial(*says: str) -> Expectation:
    """Expect that the run keeps what is good, and says what it could not use."""
    return Expectation(3, says)


def refused(*says: str, code: int | tuple[int, ...] = 2) -> Expectation:
    """Expect a message with these fragments."""
    return Expectation(code, says)


DOCUMENT = b"DOCUMENT"  # stands for the case's word in the content of files
SAME_LENGTH = DOCUMENT * 5  # stands for it in content that a function makes, which another length would damage
TOLERANT = "[normalize]\nmax_quarantined = 1000\nmax_document_bytes = 8388608\n"


def texts(
    *files: tuple[str, bytes | Callable[[], bytes]], source: str = "", more: str = TOLERANT
) -> Callable[[Place], None]:
    """Return a function that writes these files, and a recipe over them. source, more: as in `Place.recipe`."""

    def build(place: Place) -> None:
        for name, content in files:
            data = content() if callable(content) else content
            placeholder = SAME_LENGTH if callable(content) else DOCUMENT
            place.write(f"texts/{name}", data.replace(placeholder, place.document.encode()))
        place.recipe(source=source, more=more)

    return build
