"""The license of a source is recognized in its card and its license files, and nothing of these files is quoted."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packaging.licenses import canonicalize_license_expression

from datakit.normalize.inspection import licenses
from datakit.normalize.inspection.licenses import SENTENCES, SPDX, LicenseEvidence, agreed, find_licenses
from datakit.storage import globs


def found(folder: Path, **files: str | bytes) -> tuple[LicenseEvidence, ...]:
    """The licenses found in a folder with these files; `__` in a name stands for a dot."""
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    place = globs.locate(str(folder))
    return find_licenses(place, globs.files_at(place))


def card(value: str) -> str:
    return f"---\nlanguage: en\nlicense:{value}\ntags:\n- a\n---\n# A card\nlicense: MIT\n"


@pytest.mark.parametrize(
    ("text", "license"),
    [
        (card(" cc-by-4.0"), "CC-BY-4.0"),
        (card(' "odc-by"'), "ODC-By-1.0"),
        (card("\n- mit"), "MIT"),
        (card(" Zlib"), "Zlib"),
        (card(" other\nlicense_name: mine\nlicense_link: https://x.org/terms"), "https://x.org/terms"),
        (card(" other\nlicense_link: javascript:alert(1)"), None),
        (card("\n- mit\n- apache-2.0"), None),
        (card(' "a b; rm -rf"'), None),
        (card(" other").replace("\n", "\r\n"), None),
        (card(" mit").replace("\n", "\r\n"), "MIT"),
    ],
)
def test_card_states_the_license_in_its_front_matter(tmp_path: Path, text: str, license: str | None) -> None:
    assert found(tmp_path, README__md=text) == (LicenseEvidence("README.md", license),)


@pytest.mark.parametrize(
    "text", ["# A card\nlicense: mit\n", "---\nlanguage: en\n---\nlicense: mit\n", "", "---\n", "\xff\xfe"]
)
def test_card_without_a_license_is_no_evidence(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, README__md=text) == ()


@pytest.mark.parametrize(("sentence", "license"), SENTENCES)
def test_license_files_are_recognized_by_a_sentence(tmp_path: Path, sentence: str, license: str) -> None:
    text = f"Some heading\n\n  {sentence.upper().replace(' ', chr(10) + '   ', 2)}\n\nand more\n"
    assert found(tmp_path, LICENSE=text) == (LicenseEvidence("LICENSE", license),)


def test_identifiers_are_those_of_spdx() -> None:
    for identifier in [*SPDX.values(), *(license for _, license in SENTENCES)]:
        assert canonicalize_license_expression(identifier) == identifier


def test_other_files_and_links_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("CC0 1.0 Universal")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "LICENSE").symlink_to(tmp_path / "outside")
    os.mkfifo(tmp_path / "in" / "COPYING")
    assert found(tmp_path / "in", licenses__jsonl="CC0 1.0 Universal") == ()


def test_file_is_read_up_to_a_limit(tmp_path: Path) -> None:
    with patch.object(licenses, "READ_BYTES", 300):
        assert found(tmp_path, LICENSE=" " * 400 + "CC0 1.0 Universal")[0].license is None
    assert found(tmp_path)[0].license == "CC0-1.0"


def test_license_is_agreed_if_nobody_contradicts() -> None:
    mit, unknown, other = (LicenseEvidence("f", license) for license in ("MIT", None, "CC0-1.0"))
    assert agreed((mit, unknown, mit)) == "MIT"
    assert agreed((mit, other)) is None
    assert agreed((unknown,)) is None
    assert agreed(()) is None


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(), st.binary())
def test_any_content_gives_an_identifier_a_link_or_nothing(
    tmp_path_factory: pytest.TempPathFactory, value: str, data: bytes
) -> None:
    folder = tmp_path_factory.mktemp("any")
    for one in found(folder, README__md=card(f" {value}"), LICENSE=data):
        assert one.license is None or licenses.IDENTIFIER.fullmatch(one.license) or one.license.startswith("https://")
        assert one.license is None or not set(one.license) & set(" \t\r\n\"'")
