"""Damages the files of a finished root: as a disk would, and as somebody would who also forges the manifests.

A forged manifest gets a new checksum, and all manifests downstream get the new checksum of their input. So only a check
of the content can find the damage.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datakit.storage import manifest as manifests
from datakit.storage.atomic import hash_file
from datakit.storage.manifest import Manifest, read_manifest

Plain = dict[str, Any]
Change = Callable[[Path], None]


def only(root: Path, pattern: str) -> Path:
    """Return the only path that matches."""
    (found,) = root.glob(pattern)
    return found


def first(root: Path, pattern: str, number: int = 0) -> Path:
    """Return one of the paths that match, in order."""
    return sorted(root.glob(pattern))[number]


def overwrite(path: Path, data: bytes) -> None:
    """Replace a file, which may be a link to a shared one."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def flip(pattern: str, place: float = 0.5) -> Change:
    """Flip one bit of a file."""

    def change(root: Path) -> None:
        path = first(root, pattern)
        data = bytearray(path.read_bytes())
        data[min(int(len(data) * place), len(data) - 1)] ^= 1
        overwrite(path, bytes(data))

    return change


def write(pattern: str, name: str, data: bytes = b"x") -> Change:
    """Write a file into a directory."""
    return lambda root: overwrite(only(root, pattern) / name, data)


def cut(pattern: str) -> Change:
    """Cut the last 100 bytes off a file."""
    return lambda root: overwrite(first(root, pattern), first(root, pattern).read_bytes()[:-100])


def remove(pattern: str) -> Change:
    """Remove a file."""
    return lambda root: first(root, pattern).unlink()


def edit(pattern: str, before: str, after: str) -> Change:
    """Replace a text in a file."""

    def change(root: Path) -> None:
        path = first(root, pattern)
        text = path.read_text()
        assert before in text
        overwrite(path, text.replace(before, after, 1).encode())

    return change


def lines(pattern: str, change_lines: Callable[[list[str]], list[str]]) -> Change:
    """Change the lines of a file."""

    def change(root: Path) -> None:
        path = first(root, pattern)
        overwrite(path, "".join(change_lines(path.read_text().splitlines(keepends=True))).encode())

    return change


def swapped(pattern: str, *, forged: bool) -> Change:
    """Swap the first two files that match; if `forged`, also their sizes and checksums in the manifest."""

    def change(root: Path) -> None:
        one, other = first(root, pattern, 0), first(root, pattern, 1)
        data = one.read_bytes(), other.read_bytes()
        overwrite(one, data[1])
        overwrite(other, data[0])
        if forged:
            reseal(root, step_of(one), str(one.relative_to(step_of(one))))
            reseal(root, step_of(one), str(other.relative_to(step_of(one))))

    return change


def step_of(path: Path) -> Path:
    """Return the directory of the step to which a file belongs."""
    return path if (path / "manifest.json").exists() else step_of(path.parent)


def forge(root: Path, directory: Path, change: Callable[[Plain], object]) -> None:
    """Change a manifest, and renew its checksum, also where other manifests state it."""
    before = read_manifest(str(directory))
    plain = copy.deepcopy(msgspec.to_builtins(before))
    change(plain)
    forged = manifests.sealed(msgspec.convert(plain, Manifest))
    overwrite(directory / "manifest.json", b"".join(manifests.pieces(forged)))
    for path in root.rglob("manifest.json"):
        below = read_manifest(str(path.parent))
        for number, entry in enumerate(below.inputs):
            if (path.parent / entry.path).resolve() == (directory / "manifest.json").resolve():
                forge(root, path.parent, setting("inputs", number, "checksum", value=forged.checksum))


def forged(pattern: str, *keys: str | int, value: Any) -> Change:
    """Change one value of a manifest."""
    return lambda root: forge(root, only(root, pattern), setting(*keys, value=value))


def setting(*keys: str | int, value: Any) -> Callable[[Plain], None]:
    """Return a change of one value; a function is applied to the old value."""

    def change(plain: Plain) -> None:
        place: Any = plain
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value(place[keys[-1]]) if callable(value) else value

    return change


def reseal(root: Path, directory: Path, name: str, **fields: Any) -> None:
    """Put the size and checksum of a file, and further fields of its partition, into the manifest, with the totals."""
    xxh3, size = hash_file(directory / name)

    def change(plain: Plain) -> None:
        for entry in (*plain["partitions"], *plain.get("files", ())):
            if entry["path"] == name:
                entry |= {"bytes": size, "xxh3": xxh3} | fields
        totals = manifests.totals_of(msgspec.convert(plain["partitions"], list[manifests.Partition]))
        if plain["stage"] in ("normalize", "signatures", "dedup", "select", "consolidate"):
            plain["totals"] = msgspec.to_builtins(totals)

    forge(root, directory, change)


def table(
    pattern: str, change_table: Callable[[pa.Table], pa.Table], *, counted: bool = True, number: int = 0
) -> Change:
    """Rewrite a Parquet file, and forge the manifest: size, checksum and, if `counted`, the rows and the ends."""

    def change(root: Path) -> None:
        path = first(root, pattern, number)
        changed = change_table(pq.read_table(path))
        path.unlink()
        pq.write_table(changed, path, compression="zstd")
        directory = step_of(path)
        name, fields = str(path.relative_to(directory)), {"rows": changed.num_rows} if counted else {}
        parts = {part.path: part for part in read_manifest(str(directory)).partitions}
        if counted and name in parts and parts[name].first_id is not None:
            fields |= {"first_id": changed["id"][0].as_py(), "last_id": changed["id"][-1].as_py()}
        if counted and name in parts and parts[name].text_bytes is not None:
            fields["text_bytes"] = sum(len(text.encode()) for text in changed["text"].to_pylist())
        reseal(root, directory, name, **fields)

    return change


def column(name: str, value: Callable[[list[Any]], list[Any]]) -> Callable[[pa.Table], pa.Table]:
    """Return a change of the values of one column."""

    def change(before: pa.Table) -> pa.Table:
        field = before.schema.field(name)
        place = before.schema.get_field_index(name)
        return before.set_column(place, field, pa.array(value(before[name].to_pylist()), field.type))

    return change


def at(row: int, value: Any) -> Callable[[list[Any]], list[Any]]:
    """Return a change of one row; a function is applied to the old value."""
    return lambda values: [(value(old) if callable(value) else value) if n == row % len(values) else old
                           for n, old in enumerate(values)]  # fmt: skip


def without(row: int) -> Callable[[pa.Table], pa.Table]:
    """Return a change that drops one row."""
    return lambda before: pa.concat_tables([before.slice(0, row), before.slice(row + 1)])


def reordered(*rows: int) -> Callable[[pa.Table], pa.Table]:
    """Return a change that puts these rows first."""
    return lambda before: before.take([*rows, *(n for n in range(before.num_rows) if n not in rows)])


def both(*changes: Change) -> Change:
    """Return a change that makes several changes."""

    def change(root: Path) -> None:
        for one in changes:
            one(root)

    return change


def shard_tokens(pattern: str, change_tokens: Callable[[np.ndarray, np.ndarray], None]) -> Change:
    """Change the tokens of a raw shard in place, given its tokens and its documents' starts, and forge the manifest."""

    def change(root: Path) -> None:
        place = first(root, pattern)
        lengths = np.fromfile(f"{place}.lengths", "<u4")
        path = place / "c/0"
        data = bytearray(path.read_bytes())
        tokens = np.frombuffer(data, "<u2")[: int(lengths.sum())]
        change_tokens(tokens, np.cumsum(lengths, dtype=np.int64) - lengths)
        overwrite(path, bytes(data))
        xxh3, directory = hash_file(path)[0], step_of(place)

        def seal(plain: Plain) -> None:
            for part in plain["partitions"]:
                if part["path"] == str(place.relative_to(directory)):
                    part["xxh3"] = xxh3

        forge(root, directory, seal)

    return change


def shard_list(pattern: str, suffix: str, name: str, change_file: Callable[[Path], None]) -> Change:
    """Change a list of a shard's documents, and forge the checksum `name` and the size in the manifest."""

    def change(root: Path) -> None:
        place = first(root, pattern)
        path, directory = Path(f"{place}{suffix}"), step_of(place)
        data = path.read_bytes()
        overwrite(path, data)  # no longer a link
        change_file(path)
        xxh3, size = hash_file(path)
        index = [part.path for part in read_manifest(str(directory)).partitions].index(
            str(place.relative_to(directory))
        )

        def seal(plain: Plain) -> None:
            plain["details"]["shards"][index][f"{name}_xxh3"] = xxh3
            if name == "documents":
                plain["details"]["shards"][index]["documents_bytes"] = size

        forge(root, directory, seal)

    return change


def json_line(number: int, **values: Any) -> Callable[[list[str]], list[str]]:
    """Return a change of a line of JSON."""

    def change(before: list[str]) -> list[str]:
        row = json.loads(before[number]) | values
        return [*before[:number], json.dumps(row) + "\n", *before[number + 1 :]] if number != -1 else [
            *before[:-1], json.dumps(row) + "\n"]  # fmt: skip

    return change
