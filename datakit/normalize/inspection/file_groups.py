"""Groups the files of a raw source into the sources of a draft recipe: by folder, format and name pattern.

Here, a folder is a directory (with everything in it) directly below the deepest one that contains all files. If there
are more than `MOST_FOLDERS` folders, they count as one. Numbers in a name are replaced by `*`, so that the parts
`web-00000-of-00010.jsonl`, `web-00001-of-00010.jsonl`, ... share one pattern. The files of one format in a folder form
a single group if they have more than `MOST_PATTERNS` patterns, have patterns that overlap, or hold one document each.
Each file of a group matches the patterns of that group alone.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from datakit.errors import UnreadableError
from datakit.normalize import formats
from datakit.printable import one_line
from datakit.signed_urls import split_query
from datakit.storage import globs, urls
from datakit.storage.urls import FileInfo

MOST_FOLDERS = 12
MOST_PATTERNS = 4
SPECIAL = re.compile("[*?\\[\\]\ud800-\udfff]")  # what a pattern cannot name; surrogates are bytes that are not UTF-8
ABOUT = re.compile(r"(readme|license|licence|notice|changelog|citation)\b", re.IGNORECASE)


@dataclass(frozen=True)
class FileGroup:
    """Files that become one source. include: the patterns that select them; empty to select all files at `url`.
    folder: the path of `url` below the place that was listed, "" for the place itself.
    """

    name: str
    url: str
    include: tuple[str, ...]
    format: str
    files: tuple[FileInfo, ...]
    folder: str = ""

    def pattern_of(self, path: str) -> str:
        """Return a pattern, relative to `url`, that matches the listed file `path` and hardly any other."""
        return pattern_of(path.removeprefix(f"{self.folder}/" if self.folder else ""))

    def without(self, paths: Collection[str]) -> FileGroup:
        """Return the group without some files."""
        return replace(self, files=tuple(info for info in self.files if info.path not in paths))

    @property
    def extensions(self) -> tuple[str, ...]:
        """The files' extensions, the most frequent first; `.jsonl.gz` counts as one extension."""
        return _extensions(self.files)


@dataclass(frozen=True)
class _Part:
    """The files of a future group. folder: the path of their folder below `globs.Place.base`; "" for the base."""

    folder: str
    format: str
    stem: str
    patterns: tuple[str, ...]
    files: tuple[FileInfo, ...]


def group_files(url: str, files: Sequence[FileInfo]) -> tuple[list[FileGroup], list[str]]:
    """Return the groups, and a message about each file that is in none of them."""
    known, problems = _with_format(files)
    shared = os.path.commonpath([os.path.dirname(info.path) for info, _ in known]) if known else ""
    folders = {_folder(info, shared) for info, _ in known}
    flat = len(folders) == 1 or len(folders) > MOST_FOLDERS

    def place(entry: tuple[FileInfo, str]) -> tuple[str, str]:
        return "" if flat else _folder(entry[0], shared), entry[1]

    parts = [
        part
        for (folder, name), entries in groupby(sorted(known, key=lambda entry: (*place(entry), entry[0].path)), place)
        for part in _parts(folder, name, tuple(info for info, _ in entries), flat or folder != shared)
    ]
    if len(parts) == 1 and not problems:
        return [FileGroup(_stem(url), url, (), parts[0].format, parts[0].files)], []
    return _named(url, parts), problems


def _with_format(files: Sequence[FileInfo]) -> tuple[list[tuple[FileInfo, str]], list[str]]:
    """Return the data files with their formats, and messages about the other files."""
    known, problems, about = [], [], set[str]()
    for info in files:
        try:
            known.append((info, formats.format_of(info.path)))
        except UnreadableError as error:
            if ABOUT.match(urls.name(info.path)):
                about.add(info.path)
            else:
                problems.append(str(error))
    about |= _not_data(known)
    problems += [
        f"{one_line(path)} is left out of the draft: judging by its name, it is not data" for path in sorted(about)
    ]
    return [(info, name) for info, name in known if info.path not in about], problems


def _not_data(files: Sequence[tuple[FileInfo, str]]) -> set[str]:
    """Return the paths of the files that are probably not data: TOML files and, if all text files are about the data
    (README, LICENSE), the text files. Never return the paths of all files.
    """
    tables = {info.path for info, _ in files if info.path.endswith(".toml")}
    tables = tables if len(tables) < len(files) else set()
    texts = {info.path for info, name in files if name == formats.TEXT} - tables
    if len(texts | tables) < len(files) and all(ABOUT.match(urls.name(path)) for path in texts):
        return texts | tables
    return tables


def _folder(info: FileInfo, shared: str) -> str:
    """Return the directory directly below `shared` that holds the file, or `shared` if the file is directly in it."""
    rest = info.path[len(shared) :].lstrip("/")
    return os.path.join(shared, rest.partition("/")[0]) if "/" in rest else shared


def _parts(folder: str, name: str, files: tuple[FileInfo, ...], deep: bool) -> list[_Part]:
    """Split the files of one folder and format by name pattern. deep: True if they may be in subfolders."""
    anchor = "" if deep else "/"
    by_stem: dict[str, list[FileInfo]] = {}
    for info in files:
        by_stem.setdefault(_pattern(info.path), []).append(info)
    parts = [
        _Part(folder, name, stem, tuple(f"{anchor}{stem}{last}" for last in _extensions(group)), tuple(group))
        for stem, group in by_stem.items()
    ]
    matchers = [globs.matcher([pattern.lstrip("/") for pattern in part.patterns]) for part in parts]
    if name != formats.TEXT and len(parts) <= MOST_PATTERNS and all(
        sum(bool(one.fullmatch(urls.name(info.path))) for one in matchers) == 1 for info in files
    ):  # fmt: skip
        return parts if len(parts) > 1 else [_Part(folder, name, "", parts[0].patterns, files)]
    return [_Part(folder, name, "", tuple(f"{anchor}*{last}" for last in _extensions(files)), files)]


def _pattern(path: str) -> str:
    """Return a glob for a file's name without its extension; wildcards replace numbers and special characters."""
    name = urls.name(path)
    return re.sub(r"\d+", "*", SPECIAL.sub("?", name.removesuffix(_extension(path))))


def _extension(path: str) -> str:
    stem, last = os.path.splitext(path)
    return os.path.splitext(stem)[1] + last if formats.compression_of(path) else last


def _extensions(files: Iterable[FileInfo]) -> tuple[str, ...]:
    return tuple(name for name, _ in Counter(_extension(info.path) for info in files).most_common())


def _named(url: str, parts: Sequence[_Part]) -> list[FileGroup]:
    groups: list[FileGroup] = []
    place = globs.locate(url)
    for part in parts:
        words = [part.folder.rpartition("/")[2] or _stem(url), part.stem.partition("*")[0].strip("-_.")]
        if len({other.format for other in parts if other.folder == part.folder}) > 1:
            words.append(part.format)
        name = base = as_name("-".join(word for word in words if word))
        number = 1
        while name in {group.name for group in groups}:
            number += 1
            name = f"{base}-{number}"
        patterns = part.patterns
        if place.pattern is not None and part.folder:
            patterns = tuple(f"{part.folder}{one}" if one[0] == "/" else f"{part.folder}/**/{one}" for one in patterns)
        here = url if place.pattern is not None or not part.folder else urls.join(url, part.folder)
        folder = part.folder if here != url else ""
        groups.append(FileGroup(name, here, patterns, part.format, part.files, folder))
    return groups


def _stem(url: str) -> str:
    return as_name((urls.name(split_query(url)[0].rstrip("/*")) or "texts").split(".", maxsplit=1)[0])


def pattern_of(path: str) -> str:
    """Return a pattern that matches a path, and hardly any other.

    >>> pattern_of("a/b[1].txt")
    '/a/b?1?.txt'
    """
    return "/" + SPECIAL.sub("?", path)


def as_name(text: str) -> str:
    """Turn `text` into a valid name for a recipe or a source."""
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_") else "-" for letter in text)
    return kept.strip("-_")[:80] or "texts"
