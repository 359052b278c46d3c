"""Returns the path of one of datakit's own folders in a root (`.leases`, `.pins`, `.trash`, ...), and refuses a link in
its place. datakit creates and removes files in these folders; through a link, it could do so outside of the root.
"""

from __future__ import annotations

import os

from datakit.errors import RetentionError
from datakit.storage import urls


def own_folder(root: str, *names: str) -> str:
    """Return `<root>/<name>/<name>...`. Raises RetentionError if any of these folders is a link."""
    place = root
    for name in names:
        place = urls.join(place, name)
        if urls.is_local(place) and os.path.islink(urls.local_path(place)):
            raise RetentionError(
                f"{place} is a link, but datakit's own folders in a root must not be links; replace it with a folder"
            )
    return place


def file_names(folder: str) -> list[str]:
    """Return the sorted names of the files directly in a folder, without hidden ones; empty if it does not exist."""
    if not urls.is_local(folder):
        return sorted(info.path for info in urls.objects(folder) if "/" not in info.path and info.path[0] != ".")
    try:
        with os.scandir(urls.local_path(folder)) as entries:
            return sorted(entry.name for entry in entries if not entry.name.startswith(".") and not entry.is_dir())
    except FileNotFoundError:
        return []


def paths_below(root: str, url: str) -> list[str]:
    """Return the paths of `url` relative to the root: as it is written and, on a disk, with all links resolved. Paths
    that are not below the root are left out, so the list may be empty.
    """
    found = [url.removeprefix(f"{root}/")] if url.startswith(f"{root}/") else []
    if urls.is_local(root) and urls.is_local(url):
        real_root, real = (os.path.realpath(urls.local_path(place)) for place in (root, url))
        if real.startswith(f"{real_root.rstrip('/')}/"):
            found.append(os.path.relpath(real, real_root))
    return list(dict.fromkeys(found))
