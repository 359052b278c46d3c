"""URLs with patterns name the files they should, on a disk."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from datakit.errors import UnreadableError
from datakit.storage.globs import MOST_PATHS, Place, expand, files_at, locate, matcher, regular, select

NAMES = ("a.py", "b.txt", "lib/c.py", "lib/tests/d.py", "lib/.hidden.py")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in NAMES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def found(url: str, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> list[str]:
    place = locate(url)
    chosen = select(files_at(place, exclude), place, include, exclude)
    return [info.path for info in regular(chosen)[0]]


def test_directory_lists_all_visible_files_sorted(folder: Path) -> None:
    assert found(str(folder)) == ["a.py", "b.txt", "lib/c.py", "lib/tests/d.py"]


def test_glob_matches_from_its_first_magic_component(folder: Path) -> None:
    assert found(f"{folder}/*.py") == ["a.py"]
    assert found(f"{folder}/**/*.py") == ["a.py", "lib/c.py", "lib/tests/d.py"]


def test_single_file_is_the_only_file_of_its_place(folder: Path) -> None:
    assert locate(f"{folder}/a.py") == Place(str(folder), file="a.py")
    assert found(f"{folder}/a.py") == ["a.py"]


def test_existing_name_with_brackets_is_not_a_glob(folder: Path) -> None:
    (folder / "x[1].txt").write_text("")
    assert found(f"{folder}/x[1].txt") == ["x[1].txt"]


def test_includes_and_excludes_select_files(folder: Path) -> None:
    assert found(str(folder), include=("*.py",), exclude=("**/tests/**",)) == ["a.py", "lib/c.py"]


def test_directories_excluded_entirely_are_not_entered(folder: Path) -> None:
    assert not [info for info in files_at(Place(str(folder)), ("**/tests/**",)) if "tests" in info.path]


def test_hidden_directories_are_named_but_not_entered(folder: Path) -> None:
    (folder / ".git").mkdir()
    (folder / ".git" / "x.py").write_text("")
    place = Place(str(folder))
    assert regular(select(files_at(place), place, ("/*.py",), ()))[1] == ""
    assert regular(select(files_at(place), place, ("*.py",), ()))[1] == "2 hidden names (.git/, lib/.hidden.py)"


def test_dangling_links_are_refused_by_name_unless_excluded(folder: Path) -> None:
    for name in ("broken", "loop"):
        (folder / "lib" / name).symlink_to(name if name == "loop" else "nowhere")
    everything = select(files_at(Place(str(folder))), Place(str(folder)), (), ())
    with pytest.raises(UnreadableError, match=r"broken is a link to a file that does not exist \(and 1 more, .*loop"):
        regular(everything)
    assert regular(select(everything, Place(str(folder)), (), ("broken", "loop", ".*")))[1] == ""


def test_named_pipes_and_sockets_are_skipped_by_name(folder: Path) -> None:
    os.mkfifo(folder / "pipe.txt")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s.txt"))
        files, skipped = regular(files_at(Place(str(folder))))
    assert [info.path for info in files] == ["a.py", "b.txt", "lib/c.py", "lib/tests/d.py"]
    kinds = "2 entries that cannot be read (pipe.txt is a named pipe, s.txt is a socket)"
    assert skipped == f"{kinds}, 1 hidden name (lib/.hidden.py)"


def test_links_to_devices_are_skipped_by_name(folder: Path) -> None:
    (folder / "zero.txt").symlink_to("/dev/zero")
    chosen = select(files_at(Place(str(folder))), Place(str(folder)), ("/*.txt",), ())
    assert regular(chosen)[1] == "1 entry that cannot be read (zero.txt is a device)"


def test_links_out_of_the_folder_are_refused_by_name(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret.txt"
    secret.write_text("secret")
    (folder / "c.txt").symlink_to(secret)
    (folder / "d").symlink_to(secret.parent)
    (folder / "lib" / "up.txt").symlink_to("../b.txt")
    (folder / "lib" / "via").symlink_to("../d")
    with pytest.raises(UnreadableError, match=r"c\.txt is a link that leads out .*and 2 more.*outside_links = true"):
        found(str(folder))
    with pytest.raises(UnreadableError, match=r"lib/via is a link that leads out"):
        found(str(folder), ("lib/**/*.txt",))
    assert found(str(folder), ("/lib/*.txt",)) == ["lib/up.txt"], "no file below a refused directory can match"
    assert found(str(folder), exclude=("c.txt", "d/**", "via")) == [
        "a.py", "b.txt", "lib/c.py", "lib/tests/d.py", "lib/up.txt",
    ]  # fmt: skip


def test_links_out_of_the_folder_are_followed_if_asked(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "x.txt").write_text("x")
    (folder / "d").symlink_to(elsewhere)
    place = Place(str(folder))
    followed = regular(select(files_at(place, outside_links=True), place, ("*.txt",), ()))[0]
    assert [info.path for info in followed] == ["b.txt", "d/x.txt"]


def test_link_that_the_user_named_is_followed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    link = tmp_path_factory.mktemp("elsewhere") / "link"
    link.symlink_to(folder)
    assert found(f"{link}/lib", ("*.py",)) == found(f"{folder}/lib", ("*.py",)) == ["c.py", "tests/d.py"]
    (link.parent / "a.py").symlink_to(folder / "a.py")
    assert found(str(link.parent / "a.py")) == ["a.py"]


def test_directory_linked_to_its_parent_is_listed_once(folder: Path) -> None:
    (folder / "lib/loop").symlink_to(folder)
    assert [path for path in found(str(folder)) if path.endswith("c.py")] == ["lib/c.py"]


def test_directory_with_too_many_paths_is_refused(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "a.py").write_text("")
    for number in range(MOST_PATHS):
        (tmp_path / f"link{number}").symlink_to("shared")
    with pytest.raises(UnreadableError, match=r"more than 1,000 paths lead to .*/shared through links; remove"):
        found(str(tmp_path))
    (tmp_path / "link0").unlink()
    assert len(found(str(tmp_path))) == MOST_PATHS


def test_missing_directory_has_no_files(tmp_path: Path) -> None:
    assert found(f"{tmp_path}/missing") == []


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [("?.py", "a.py", True), ("[!a].py", "a.py", False), ("[ab].py", "b.py", True), ("/a.py", "lib/a.py", False)],
)
def test_pattern_matches_path(pattern: str, path: str, matches: bool) -> None:
    assert bool(matcher([pattern]).fullmatch(path)) == matches


@pytest.mark.parametrize("path", ["{stdlib}/json/__init__.py", "{packages}/numpy", "{catalog}/demo.toml"])
def test_placeholders_stand_for_folders_of_every_machine(path: str) -> None:
    assert Path(expand(path)).exists()


def test_placeholder_is_expanded_at_the_start_only() -> None:
    assert expand("/data/{stdlib}") == "/data/{stdlib}"
