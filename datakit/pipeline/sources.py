"""What a source is at this moment: the content parameters that identify it, and its files where they must be known.

A source that is pinned by a revision is identified by (URL, revision, selection) and need not be listed once it is
downloaded. Any other is identified by its listing. With `--offline` nothing remote is asked: a pinned source must be
downloaded already, and for any other the listing of its last download is trusted. Local sources are always looked at,
since that costs next to nothing: their hashes are remembered.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from datakit.download.hashes import HashCache
from datakit.download.listing import SourceFile, list_source, listing_digest, pinned, source_base
from datakit.download.stage import FORMAT_VERSION, NAME, Config
from datakit.engine.ledger.ledger import DriverLine, read_ledger
from datakit.errors import DatakitError, NoInputError, RecipeError
from datakit.pipeline.configure import parameters
from datakit.pipeline.root_layout import source_home, step_directory
from datakit.recipe import Source
from datakit.storage import globs, urls
from datakit.storage.fingerprint import fingerprint
from datakit.storage.manifest import FILE_NAME, find_manifest, read_manifest
from datakit.storage.os_errors import read_errors

LISTING = "listing"


@dataclass(frozen=True)
class Look:
    """How sources are looked at. `frozen`: nothing may be written, and what cannot be reached is no error (a plan)."""

    root: str
    offline: bool = False
    frozen: bool = False


@dataclass(frozen=True)
class SourceState:
    """A source now. `files` is None where they are not known and not needed; `note` says what a person should know."""

    parameters: dict[str, Any]
    base: str
    files: tuple[SourceFile, ...] | None = None
    note: str = ""

    def operations(self) -> dict[str, Any]:
        """What the download step is told beside its parameters."""
        return {"base": self.base, "files": [asdict(file) for file in self.files or ()]}

    def listed(self) -> dict[str, tuple[int, int, str]]:
        """What files that are read in place must still be when they are read: path -> (size, time in ns, xxh3-128)."""
        files = [(file, file.mtime_ns) for file in self.files or ()]
        return {file.path: (file.size, time, file.checksum) for file, time in files if time is not None}


def look_at(source: Source, config: Config, look: Look) -> SourceState:
    """The state of one source. Raises NoInputError, RecipeError, and whatever the listing raises."""
    url = pinned(source.url, source.revision)
    local = urls.is_local(globs.expand(url))
    if local and source.revision:
        raise RecipeError(f"source {source.name!r}: a local source has no revision; it is known by its content")
    if source.revision:
        return _pinned(source, url, config, look)
    if look.offline and not local:
        return _last_download(source, url, config, look)
    base, files = _list(source, url, config, look)
    return SourceState({**parameters(config), LISTING: listing_digest(files)}, base, tuple(files))


def _list(source: Source, url: str, config: Config, look: Look) -> tuple[str, list[SourceFile]]:
    """(what the paths are relative to, the files). What a store's driver raises becomes an error of ours."""
    with read_errors(url):
        cache = HashCache.of_source(look.root, source.name, frozen=look.frozen)
        files = list_source(url, config.include, config.exclude, cache)
        base = source_base(url)
    if urls.is_local(base) and urls.is_local(look.root):
        inside = urls.relative(look.root, base) + "/"
        if any(file.path.startswith(inside) for file in files):
            raise RecipeError(
                f"source {source.name!r}: its files include the output root {look.root}, so every run would change it; "
                f'add exclude = ["{inside}**"] or choose another --root'
            )
    return base, files


def _pinned(source: Source, url: str, config: Config, look: Look) -> SourceState:
    content = {**parameters(config), "url": source.url, "revision": source.revision}
    state = SourceState(content, url)
    directory = step_directory(
        source_home(look.root, source.name), NAME, fingerprint(NAME, FORMAT_VERSION, content, [])
    )
    if find_manifest(directory) is not None:
        return state
    if look.offline:
        if look.frozen:
            return SourceState(content, url, note=f"source {source.name}: not downloaded yet; its size is unknown")
        raise _not_downloaded(source)
    try:
        base, files = _list(source, url, config, look)
    except DatakitError as error:
        if not look.frozen or isinstance(error, NoInputError):
            raise
        return SourceState(content, url, note=f"source {source.name}: its size is unknown ({_first_line(error)})")
    return SourceState(content, base, tuple(files))


def _last_download(source: Source, url: str, config: Config, look: Look) -> SourceState:
    """The state as the last download found it, which `--offline` trusts."""
    home, asked = source_home(look.root, source.name), parameters(config)
    found: list[tuple[float, str, dict[str, Any]]] = []
    for info in urls.listing(home):
        directory, _, name = info.path.rpartition("/")
        if name == FILE_NAME and directory.startswith(f"{NAME}-") and "/" not in directory:
            manifest = read_manifest(urls.join(home, directory))
            if {key: value for key, value in manifest.parameters.items() if key != LISTING} == asked:
                found.append((_last_run(urls.join(home, directory)), directory, manifest.parameters))
    if not found:
        raise _not_downloaded(source)
    _, directory, content = max(found, key=lambda entry: entry[:2])
    return SourceState(
        content, url, note=f"source {source.name}: not listed (--offline); {directory} is taken as it is"
    )


def _last_run(directory: str) -> float:
    return max((line.time for line in read_ledger(directory) if isinstance(line, DriverLine)), default=0.0)


def _not_downloaded(source: Source) -> NoInputError:
    return NoInputError(f"source {source.name!r} ({source.url}) is not downloaded yet; run once without --offline")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
