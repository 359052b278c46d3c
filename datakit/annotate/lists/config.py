"""Defines the settings of the annotators `urls` and `words`. Only `annotator` loads the kernels, which takes time."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from datakit.annotate.annotator import Annotator
from datakit.annotate.input_files import check_optional_sha256
from datakit.errors import RecipeError, suggestion
from datakit.toml_config import key

if TYPE_CHECKING:
    import pyarrow as pa

DOMAINS, SUBSTRINGS, WORDS = "domains", "substrings", "words"
URL_KINDS, TEXT_KINDS = (DOMAINS, SUBSTRINGS), (WORDS, SUBSTRINGS)
NAME_RULE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
MOST_LISTS = 256
PATH = key("A local text file with one entry per line, relative to the recipe's file, or a pattern with `*`.",
           "lists/adult.txt.gz")  # fmt: skip
HASH = key("If given, files with another sha256 are refused.",
           "8f3472cfe8738a7b6099e8e999c3cbfae0dcd15696aac7d7738a8039db603e83")  # fmt: skip


def _check_file(path: str, kind: str, kinds: Sequence[str], sha256: str) -> None:
    if not path:
        raise RecipeError("path is empty; give the path of a list")
    if kind not in kinds:
        raise RecipeError(f"kind is {kind!r}; {suggestion(kind, kinds)}")
    check_optional_sha256(sha256)


def _check_names(names: Sequence[str], suffixes: Sequence[str], others: Sequence[str]) -> None:
    """Raise RecipeError for names of lists that cannot be names of columns, or of which two would give one column."""
    if not 0 < len(names) <= MOST_LISTS:
        raise RecipeError(f"there are {len(names)} lists; add from 1 to {MOST_LISTS} tables such as [....lists.adult]")
    used = dict.fromkeys(others, "another column")
    for name in names:
        if not NAME_RULE.fullmatch(name):
            raise RecipeError(f"the list {name!r} cannot be a column; use the letters A to Z, digits and '_'")
        for column in (f"{name}{suffix}".lower() for suffix in suffixes):  # SQL does not tell upper from lower case
            if column in used:
                raise RecipeError(f"the list {name!r} gives the column {column!r}, as does {used[column]}; rename it")
            used[column] = f"the list {name!r}"


def _read(lists: Mapping[str, UrlList | WordList], table: str, kinds: Sequence[str]) -> dict[str, pa.Array]:
    """Return the entries of the lists of some kinds, by name, in the order of the names."""
    from datakit.annotate.lists.list_files import read_list

    place = f"[annotate.{table}.lists"
    chosen = [(name, one) for name, one in sorted(lists.items()) if one.kind in kinds]
    return {name: read_list(one.path, one.sha256, one.kind, f"{place}.{name}]") for name, one in chosen}


@dataclass(frozen=True)
class UrlList:
    """A list of the annotator `urls`."""

    path: Annotated[str, PATH]
    kind: Annotated[
        str,
        key("`domains`: each entry is a domain, which stands for itself and its subdomains; `substrings`: each entry "
            "may be anywhere in the URL, in upper or lower case.", DOMAINS, URL_KINDS),
    ] = DOMAINS  # fmt: skip
    sha256: Annotated[str, HASH] = ""

    def __post_init__(self) -> None:
        _check_file(self.path, self.kind, URL_KINDS, self.sha256)


@dataclass(frozen=True)
class WordList:
    """A list of the annotator `words`."""

    path: Annotated[str, PATH]
    kind: Annotated[
        str,
        key("`words`: each entry is a word or a phrase; `substrings`: each entry may be anywhere in the text, also "
            "inside a word. Neither distinguishes upper and lower case.", WORDS, TEXT_KINDS),
    ] = WORDS  # fmt: skip
    sha256: Annotated[str, HASH] = ""

    def __post_init__(self) -> None:
        _check_file(self.path, self.kind, TEXT_KINDS, self.sha256)


@dataclass(frozen=True)
class UrlsConfig:
    """The settings of the annotator `urls`. lists: by name; their order has no effect."""

    VERSION: ClassVar[int] = 1

    lists: dict[str, UrlList]
    column: Annotated[str, key("The column of the documents that holds their URLs.", "url")] = "url"

    def __post_init__(self) -> None:
        if not self.column:
            raise RecipeError("column is empty; name the column that holds the URLs")
        _check_names([*self.lists], ("", "_unknown"), ())

    def check(self, _place: str) -> None:
        """Read the lists. Raises what `read_list` raises, which names the list."""
        _read(self.lists, "urls", URL_KINDS)

    def annotator(self) -> Annotator:
        """Return the annotator with its lists and kernels loaded. Raises what `read_list` raises."""
        from datakit.annotate.lists.urls_annotator import UrlsAnnotator

        parameters = {"column": self.column, "lists": {name: one.kind for name, one in sorted(self.lists.items())}}
        domains, substrings = (_read(self.lists, "urls", [kind]) for kind in URL_KINDS)
        return UrlsAnnotator(self.VERSION, parameters, domains, substrings).warmed()


@dataclass(frozen=True)
class WordsConfig:
    """The settings of the annotator `words`. lists: by name; their order has no effect."""

    VERSION: ClassVar[int] = 1

    lists: dict[str, WordList]

    def __post_init__(self) -> None:
        _check_names([*self.lists], ("", "_entries", "_share"), ("spans",))

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of spans, which an edit may name: the names of the lists."""
        return tuple(sorted(self.lists))

    def check(self, _place: str) -> None:
        """Read the lists. Raises what `read_list` raises, which names the list."""
        _read(self.lists, "words", TEXT_KINDS)

    def annotator(self) -> Annotator:
        """Return the annotator with its lists and kernels loaded. Raises what `read_list` raises."""
        from datakit.annotate.lists.words_annotator import WordsAnnotator
        from datakit.annotate.warming import warmed

        parameters = {"lists": {name: one.kind for name, one in sorted(self.lists.items())}}
        words, substrings = (_read(self.lists, "words", [kind]) for kind in TEXT_KINDS)
        return warmed(WordsAnnotator(self.VERSION, parameters, words, substrings))
