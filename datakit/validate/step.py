"""Finds the step to validate, compares its files with the manifest, and checks the manifest for contradictions.

Each partition's row count and first and last id are compared with the manifest, too. A token cache is compared by
`token_cache.py`. The files of a download whose source is read in place are not part of the step and are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from datakit.cache.layout import STAGE, read_details
from datakit.errors import NotFoundError
from datakit.storage import urls
from datakit.storage.latest import current_cache, current_step
from datakit.storage.manifest import FILE_NAME, Manifest, Partition, find_manifest, manifest_url
from datakit.validate import token_cache
from datakit.validate.files import READERS, Damage, DescribedFile, Progress, compare_files
from datakit.validate.manifest_claims import manifest_damage, undescribed_files

DOWNLOAD, COPIES = "download", "raw"
WITH_IDS = ("normalize", "signatures", "dedup", "consolidate")


def finished_step(place: str) -> tuple[str, Manifest]:
    """Return the directory and manifest of the step at a URL. A dataset's directory stands for its current token cache
    or, if it has none, for the last step of its last complete run.

    Raises NotFoundError if there is neither a finished step nor a dataset, UsageError if nothing records which step of
    a dataset is current, and CorruptError if a manifest or the dataset's record is damaged.
    """
    manifest = find_manifest(place)
    if manifest is not None:
        return place, manifest
    found = current_cache(place) or current_step(place)
    if found is None:
        raise NotFoundError(
            f"{place} holds no finished step (it has no {FILE_NAME}), and is not a dataset with a current step; "
            "`datakit status` shows unfinished steps"
        )
    return found


def find_damage(directory: str, manifest: Manifest, progress: Progress) -> tuple[int, list[Damage]]:
    """Compare every file with the manifest, and check the manifest's statements; return (number of bytes read, damage).

    Raises CorruptError if the manifest of a cache contradicts itself.
    """
    if manifest.stage == STAGE:
        return token_cache.find_damage(directory, manifest, read_details(directory, manifest), progress)
    files = list(_files(directory, manifest))
    total, damaged = compare_files(files, progress)
    broken = {damage.url for damage in damaged}
    damaged += manifest_damage(directory, manifest)
    damaged += undescribed_files(directory, {file.url for file in files})
    if manifest.stage in WITH_IDS:
        whole = [part for part in manifest.partitions if urls.join(directory, part.path) not in broken]
        with ThreadPoolExecutor(READERS, thread_name_prefix="datakit-validate") as pool:
            for part, difference in zip(
                whole, pool.map(lambda part: _row_difference(directory, part), whole), strict=True
            ):
                if difference:
                    damaged.append(Damage(manifest_url(directory), f"says that {part.path} has {difference}"))
    return total, damaged


def _files(directory: str, manifest: Manifest) -> Iterator[DescribedFile]:
    place = directory
    if manifest.stage == DOWNLOAD:
        place = urls.join(directory, COPIES)
    if manifest.stage != DOWNLOAD or urls.listing(place):
        for part in manifest.partitions:
            yield DescribedFile(urls.join(place, part.place), part.bytes, part.xxh3)
    for file in manifest.files:
        yield DescribedFile(urls.join(directory, file.path), file.bytes, file.xxh3)


def _row_difference(directory: str, partition: Partition) -> str:
    """Compare the recorded row count and first and last ids with the file's; return the difference, or "" if none."""
    from datakit.storage.parquet import open_shard, read_group

    url = urls.join(directory, partition.path)
    with open_shard(url) as shard:
        rows, groups = shard.metadata.num_rows, shard.metadata.num_row_groups
        first, last = (read_group(shard, group, url, ["id"])["id"] for group in (0, groups - 1)) if rows else ([], [])
        ends = (first[0].as_py(), last[-1].as_py()) if rows else (None, None)
    if rows != partition.rows:
        return f"{partition.rows} rows; it has {rows}"
    said = (partition.first_id, partition.last_id)
    return "" if said == ends else f"the ids {said[0]} to {said[1]}; it has {ends[0]} to {ends[1]}"
