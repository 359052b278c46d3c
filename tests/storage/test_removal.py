"""Files and trees are removed on a disk and in an object store."""

from __future__ import annotations

from datakit.storage import atomic, removal, urls


def test_files_and_trees_are_removed(root: str) -> None:
    for name in ("keep", "tree/a", "tree/b/c", "single"):
        atomic.commit_bytes(b"x", urls.join(root, name))
    removal.remove(urls.join(root, "single"))
    removal.remove_tree(urls.join(root, "tree"))
    assert [info.path for info in urls.listing(root)] == ["keep"]
