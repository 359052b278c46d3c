"""Plugins are found by name, import path or file, and a file that cannot be used is named."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from datakit.errors import UsageError
from datakit.trainer import optimizers
from datakit.trainer.optimizers import adamw
from datakit.trainer.plugins import Kind, full_name, identity_of, load_plugin

KIND = Kind("gadget", optimizers.__name__, ("adamh", "adamw"), ("Config",), "gadgets.py")
SOURCE = """
from __future__ import annotations
from dataclasses import dataclass

@dataclass(frozen=True)
class Config:
    rate: float = 0.1
"""


def test_built_in_names_and_import_paths() -> None:
    assert load_plugin("adamw", KIND) is adamw
    assert load_plugin("datakit.trainer.optimizers.adamw", KIND) is adamw
    assert identity_of(adamw, KIND) == {"kind": "adamw"}


def test_a_file_is_loaded_without_its_folder(tmp_path: Path) -> None:
    before = [*sys.path]
    (tmp_path / "json.py").write_text(SOURCE)  # the name of a module that everyone needs
    module = load_plugin("json.py", KIND, tmp_path)
    assert module.Config().rate == 0.1
    assert identity_of(module, KIND)["kind"] == "json.py"
    assert sys.path == before
    assert hasattr(__import__("json"), "loads")
    assert load_plugin(full_name("json.py", tmp_path), KIND) is module
    assert not (tmp_path / "__pycache__").exists()


def test_an_edited_file_is_another_module_when_a_run_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    first = load_plugin("mine.py", KIND, tmp_path)
    path.write_text(SOURCE.replace("0.1", "0.2"))
    assert load_plugin(str(path), KIND) is first
    second = load_plugin("mine.py", KIND, tmp_path)
    assert (first.Config().rate, second.Config().rate) == (0.1, 0.2)
    assert identity_of(first, KIND) != identity_of(second, KIND)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/mine.py").write_text(SOURCE)
    assert identity_of(load_plugin("elsewhere/mine.py", KIND, tmp_path), KIND) == identity_of(first, KIND)


def test_a_package_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_gadgets").mkdir()
    (tmp_path / "own_gadgets/first.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = identity_of(load_plugin("own_gadgets.first", KIND), KIND)
    (tmp_path / "first.py").write_text(SOURCE)
    assert found == identity_of(load_plugin("first.py", KIND, tmp_path), KIND) | {"kind": "own_gadgets.first"}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("x = 1\n", r"gadget 'mine.py': .*mine.py does not define Config; see gadgets.py"),
        ("def f(:\n", r"gadget .*mine.py: SyntaxError: .*line 1"),
        ("\n\nx = 1 / 0\n", r"gadget .*mine.py, line 3: ZeroDivisionError: division by zero"),
        ("import beside_it\n", r"gadget .*mine.py: No module named 'beside_it'. .* keep the gadget in one file, or"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(source: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(source)
    (tmp_path / "beside_it.py").write_text("")
    modules = {*sys.modules}
    with pytest.raises(UsageError, match=message):
        load_plugin("mine.py", KIND, tmp_path)
    assert {*sys.modules} == modules


def test_a_file_that_interrupts_is_forgotten(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise KeyboardInterrupt\n")
    modules = {*sys.modules}
    with pytest.raises(KeyboardInterrupt):
        load_plugin("mine.py", KIND, tmp_path)
    assert {*sys.modules} == modules


def test_unknown_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no gadget 'adamv'; did you mean 'adam[hw]'.*the path of its file, such as"):
        load_plugin("adamv", KIND, tmp_path)
    with pytest.raises(UsageError, match=r"the gadget file .*gone.py cannot be read: No such file or directory"):
        load_plugin("gone.py", KIND, tmp_path)
