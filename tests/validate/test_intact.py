"""Tests that validation of any step finds altered files, and manifests that were altered and given a new checksum."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from datakit.pipeline.root_layout import steps_in
from datakit.storage import manifest as manifests
from datakit.storage.manifest import Manifest, read_manifest
from datakit.validate.finding import Finding
from datakit.validate.intact import findings_of
from tests.support.caches import random_cache
from tests.support.normalize.sources import normalize
from tests.support.paths import FIXTURES
from tests.support.small_shelf import step
from tests.support.trees import manifests as manifests_in

Plain = dict[str, Any]


def damage(directory: Path | str) -> list[Finding]:
    """Return what validation finds in a step."""
    return findings_of(str(directory), read_manifest(str(directory)))


def forge(directory: Path, change: Callable[[Plain], object]) -> None:
    """Change a manifest, and renew its checksum."""
    plain = copy.deepcopy(msgspec.to_builtins(read_manifest(str(directory))))
    change(plain)
    forged = manifests.sealed(msgspec.convert(plain, Manifest))
    (directory / "manifest.json").write_bytes(b"".join(manifests.pieces(forged)))


def test_every_step_of_a_run_is_intact(finished: Path) -> None:
    directories = steps_in(str(finished / "root"))
    assert {Path(directory).name.partition("-")[0] for directory in directories} == {
        "download", "normalize", "signatures", "dedup", "select", "consolidate", "train", "contract", "tokenize",
    }  # fmt: skip
    assert [found for directory in directories for found in damage(directory)] == []


@pytest.mark.parametrize(
    ("pattern", "file"),
    [
        ("sources/novels/normalize-*", "duplicates/part-*"),
        ("sources/novels/normalize-*", "origins/part-*"),
        ("sources/novels/normalize-*", "origins/files.parquet"),
        ("sources/novels/normalize-*", "data/novels/part-*"),
        ("sources/novels/signatures-*", "data/novels/part-*"),
        ("shelf/dedup-*", "data/letters/part-*"),
        ("shelf/consolidate-*", "README.md"),
        ("shelf/train-tokenizer-*", "tokenizer.json"),
    ],
)
def test_altered_file_of_any_step_is_found(finished_copy: Path, pattern: str, file: str) -> None:
    path = sorted(step(finished_copy / "root", pattern).glob(file))[0]
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    (found,) = damage(step(finished_copy / "root", pattern))
    assert (found.url, "has the same size, but xxh3" in found.difference) == (str(path), True)


def test_altered_list_of_quarantined_records_is_found(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\nbad\n{"text": "b"}\n')
    result = normalize(tmp_path, tmp_path / "in.jsonl", max_quarantined=1)
    listed = Path(result.directory) / "quarantine" / "records.jsonl"
    data = listed.read_bytes().replace(b"14", b"15")
    listed.unlink()
    listed.write_bytes(data)
    differences = [found.difference for found in damage(result.directory)]
    assert any("has the same size, but xxh3" in difference for difference in differences)
    assert any("says that the identity is" in difference for difference in differences)


def reversed_shards(plain: Plain) -> None:
    plain["partitions"].reverse()
    plain["details"]["shards"].reverse()


def renamed_source(plain: Plain) -> None:
    plain["details"]["sources"]["other"] = plain["details"]["sources"].pop("letters")
    for partition in plain["partitions"]:
        partition["source"] = partition["source"].replace("letters", "other")


def setting(*keys: str | int, value: Any) -> Callable[[Plain], None]:
    """A change of one value."""

    def change(plain: Plain) -> None:
        place: Any = plain
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


FORGERIES: dict[str, tuple[Callable[[Plain], None], str]] = {
    "end-of-text id": (setting("details", "contract", "eos", "id", value=7), "contract's eos is"),
    "no end of text": (setting("details", "contract", "eos", value=None), "contract's eos is None"),
    "end-of-text token": (setting("details", "contract", "eos", "token", value="x"), "contract's eos is"),
    "vocabulary": (setting("details", "contract", "vocabulary_size", value=500), "vocabulary_size is 500"),
    "golden strings": (setting("details", "contract", "golden", value=[]), "contract's golden is"),
    "order of shards": (reversed_shards, "order of the sources is letters, novels"),
    "name of a source": (renamed_source, "belongs to source 'other'"),
    "first id": (setting("partitions", 0, "first_id", value="0" * 32), "says that the ids of data/novels/shard-00000"),
    "identity": (setting("identity", value="0" * 32), "says that the identity is 0000"),
    "parameter": (setting("parameters", "add", value="both"), "says that the fingerprint is"),
    "format version": (setting("version", value=3), "says that the fingerprint is"),
    "quarantined records": (setting("quarantine", "records", value=1), "is missing or damaged"),
    "checksum of an input": (setting("inputs", 0, "checksum", value="0" * 32), "the step was made from 0000"),
    "histogram of lengths": (setting("details", "lengths", value={"64": 143}), "histogram of lengths"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_manifest_of_a_cache_is_found(finished_copy: Path, name: str) -> None:
    directory, (change, message) = step(finished_copy / "root", "shelf/tokenize-*"), FORGERIES[name]
    forge(directory, change)
    assert any(message in str(found) for found in damage(directory)), damage(directory)


def test_dropped_entry_of_a_loss_mask_is_found(tmp_path: Path) -> None:
    directory, _ = random_cache(tmp_path, np.uint16, [100, 5000], masks=True)
    assert damage(directory) == []

    def without_masks(plain: Plain) -> None:
        for shard in plain["details"]["shards"]:
            shard["loss_mask"] = None
        plain["details"]["loss_mask"] = plain["details"]["sources"]["web"]["targets"] = None

    forge(directory, without_masks)
    found = sorted(entry.url for entry in damage(directory) if entry.difference == "is not in the manifest")
    mask = directory / "data/web/shard-00001.loss_mask"
    assert found == [str(mask / "c/0"), str(mask / "zarr.json")]


def test_forged_sum_of_a_loss_mask_is_found(tmp_path: Path) -> None:
    directory, _ = random_cache(tmp_path, np.uint16, [100, 5000], masks=True)

    def one_more(plain: Plain) -> None:
        plain["details"]["shards"][1]["loss_mask"]["sum"] += 1
        plain["details"]["sources"]["web"]["targets"] += 1

    forge(directory, one_more)
    assert [found.difference.partition(" targets")[2] for found in damage(directory)] != []


def test_forged_rows_and_ids_of_documents_are_found(finished_copy: Path) -> None:
    directory = step(finished_copy / "root", "shelf/consolidate-*")
    forge(directory, setting("partitions", 0, "last_id", value="f" * 32))
    assert any("as its last id" in found.difference for found in damage(directory))


def test_replaced_input_is_found_and_a_missing_one_is_not_compared(finished_copy: Path) -> None:
    directory, above = step(finished_copy / "root", "shelf/tokenize-*"), step(finished_copy / "root", "shelf/select-*")
    forge(above, setting("counters", "select/marked_kept", value=1))
    (found,) = damage(directory)
    assert (found.url, "has the checksum" in found.difference) == (f"{above}/manifest.json", True)
    (above / "manifest.json").write_text(
        (above / "manifest.json").read_text().replace('marked_kept": 1', 'marked_kept": 2')
    )
    assert any("was altered after it was written" in str(found) for found in damage(directory))
    shutil.rmtree(above)
    assert damage(directory) == []


def test_file_that_the_manifest_does_not_describe_is_found(finished_copy: Path) -> None:
    directory = step(finished_copy / "root", "shelf/consolidate-*")
    (directory / "data" / "novels" / "more.parquet").write_bytes(b"")
    (directory / "notes.txt").write_text("somebody's own notes")
    found = [(Path(one.url).name, one.difference) for one in damage(directory)]
    assert found == [(name, "is not in the manifest") for name in ("more.parquet", "notes.txt")]


def test_steps_of_format_1_are_compared_as_far_as_possible(tmp_path: Path) -> None:
    root = shutil.copytree(FIXTURES / "root-0.1" / "data", tmp_path / "root")
    directories = [str(root / path) for path in manifests_in(str(root))]
    assert len(directories) == 13
    assert [str(found) for directory in directories for found in damage(directory)] == []
    cache = step(root, "shelf/tokenize-*")
    forged = read_manifest(str(cache))
    forged.details["contract"]["eos"]["id"] = 7
    plain = msgspec.structs.replace(forged, checksum="")
    (cache / "manifest.json").write_bytes(b"".join(manifests.pieces(plain)))
    assert any("contract's eos is" in found.difference for found in damage(cache))
