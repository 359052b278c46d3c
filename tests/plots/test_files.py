"""Writing figures to files."""

from __future__ import annotations

from pathlib import Path

import pytest

from datakit.errors import UsageError
from datakit.plots.files import check_target, new_figure, save, short

pytest.importorskip("matplotlib")


@pytest.mark.parametrize(("kind", "head"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_existing_file_is_replaced(tmp_path: Path, kind: str, head: bytes) -> None:
    target = tmp_path / f"figure.{kind}"
    target.write_bytes(b"old")
    save(new_figure(str(target), (1, 1)), str(target))
    assert target.read_bytes().startswith(head)


def test_counts_are_rounded_up_to_the_next_unit() -> None:
    assert [short(n) for n in (999, 999_499, 999_950, 5 * 10**15)] == ["999", "999 k", "1 M", "5,000 T"]


def test_unknown_kind_of_file_is_refused() -> None:
    with pytest.raises(UsageError, match=r"figure\.bmp: the name must end in \.png, \.svg or \.pdf"):
        check_target("figure.bmp")
