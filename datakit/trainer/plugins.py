"""Loads models and optimizers: built-in ones by name, others by import path or from a Python file beside the run file.

    load_plugin("adamh", KIND)                    # built in
    load_plugin("my_package.lion", KIND)          # imported
    load_plugin("lion.py", KIND, folder)          # the file folder/lion.py

A file is loaded by its path, under a module name that contains the hash of its source. So it hides no other module, its
folder never enters `sys.path`, and files of the same name in different folders do not mix. It can import installed
packages, but not the files beside it. A process keeps the code that it loaded until a run file is read again, so
editing a file does not change a run that is being trained.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from dataclasses import dataclass
from importlib.abc import SourceLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from datakit.errors import UsageError, suggestion

SUFFIX = ".py"  # a name that ends with it is the path of a file
_loaded: dict[tuple[str, str], ModuleType] = {}  # (what, path of a file) -> its module
_sources: dict[str, str] = {}  # name of a module outside of this package -> SHA-256 of the source that was loaded


@dataclass(frozen=True)
class Kind:
    """A kind of plugin: the names that it must define, and the package of the built-in ones."""

    what: str  # "model" or "optimizer", for messages and names of modules
    package: str  # of the built-in modules
    built_in: tuple[str, ...]
    needed: tuple[str, ...]  # names that a module must define
    explained: str  # file that explains them


def load_plugin(name: str, kind: Kind, folder: Path | None = None) -> ModuleType:
    """Return the module of a plugin. `name` is a built-in name, an import path, or the path of a `.py` file.

    folder: the folder of the run file that is being read. A relative path is relative to it, and the file is read, even
    if this process has loaded it before. Without it, a file that this process has loaded is not read again. Raises
    UsageError if there is no such module, if it cannot be loaded, or if it does not define what is needed.
    """
    if name.endswith(SUFFIX):
        path = full_name(name, folder)
        if folder is not None or (kind.what, path) not in _loaded:
            start = "the current folder" if folder is None else "the run file"
            _loaded[kind.what, path] = _load_file(Path(path), kind, start)
        return _loaded[kind.what, path]
    module = _imported(name, kind, folder)
    if not _is_own(module) and module.__name__ not in _sources:
        _check(name, module, kind)
        _sources[module.__name__] = hashlib.sha256(Path(str(module.__file__)).read_bytes()).hexdigest()
    return module


def full_name(name: str, folder: Path | None = None) -> str:
    """Return a plugin's name, with the whole path if it is that of a file; it can then be loaded from any folder."""
    return str(Path(folder or "", name).resolve()) if name.endswith(SUFFIX) else name


def identity_of(module: ModuleType, kind: Kind) -> dict[str, str]:
    """Return what names a plugin's code in a fingerprint: as `kind`, its name, import path or file without its folder,
    and as `source`, the hash of its source. Modules of this package have no hash: the package's version stands for it.
    """
    name = module.__name__
    if _is_own(module):
        return {"kind": name.removeprefix(f"{kind.package}.")}
    shown = Path(str(module.__file__)).name if isinstance(module.__loader__, _FileLoader) else name
    return {"kind": shown, "source": _sources[name]}


def _is_own(module: ModuleType) -> bool:
    return module.__name__.partition(".")[0] == __name__.partition(".")[0]


def _imported(name: str, kind: Kind, folder: Path | None) -> ModuleType:
    path = f"{kind.package}.{name}" if name in kind.built_in else name
    own = f'for your own {kind.what}, give the path of its file, such as "mine.py", or its import path'
    unknown = f"no {kind.what} {name!r}; {suggestion(name, kind.built_in)} ({own})"
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(unknown)
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise UsageError(f"{kind.what} {name!r} cannot be imported: {error}") from error
        file = Path(folder or "", *name.split(".")).with_suffix(SUFFIX)
        if folder is not None and file.exists():
            hint = f'write kind = "{file.relative_to(folder)}" for the file beside the run file'
            raise UsageError(f"no {kind.what} {name!r} can be imported; {hint}") from error
        raise UsageError(unknown) from error


def _load_file(path: Path, kind: Kind, start: str) -> ModuleType:
    """Run a file as a module of its own, unless a file with the same name and source has been run. `start` says, for
    an error, what a relative path is relative to.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"the {kind.what} file {path} cannot be read: {error.strerror}; `kind` is relative to {start}"
        ) from error
    digest = hashlib.sha256(path.name.encode() + b"\0" + source).hexdigest()
    name = f"datakit_{kind.what}_{digest[:32]}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path, loader=_FileLoader(path, source))
        assert spec is not None  # since it has a loader
        sys.modules[name] = module = module_from_spec(spec)  # dataclasses look up their module there
        try:
            module.__loader__.exec_module(module)  # type: ignore[union-attr]
            _check(path.name, module, kind)
        except BaseException as error:
            del sys.modules[name]
            raise _refusal(path, kind, error) if isinstance(error, Exception) else error from error
        _sources[name] = hashlib.sha256(source).hexdigest()
    return sys.modules[name]


def _check(name: str, module: ModuleType, kind: Kind) -> None:
    """Raise UsageError if a module does not define everything that is needed."""
    missing = [needed for needed in kind.needed if not hasattr(module, needed)]
    if missing:
        raise UsageError(
            f"{kind.what} {name!r}: {module.__file__} does not define {', '.join(missing)}; see {kind.explained}"
        )


def _refusal(path: Path, kind: Kind, error: Exception) -> UsageError:
    """Return the error to raise for an error in a file; it names the last line of the file that the error passed."""
    if isinstance(error, UsageError):
        return error
    if isinstance(error, ModuleNotFoundError):
        return UsageError(
            f"{kind.what} {path}: {error}. The file can import installed packages, but not files beside it; keep the "
            f"{kind.what} in one file, or install it as a package and give its import path"
        )
    line, trace = None, error.__traceback__
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == str(path) else line
        trace = trace.tb_next
    at = f", line {line}" if line else ""
    return UsageError(f"{kind.what} {path}{at}: {type(error).__name__}: {error}")


class _FileLoader(SourceLoader):
    """Loads a module from bytes that were read already, without a cache of compiled code: Python's own cache compares
    only times and sizes, and misses an edit within a second.
    """

    def __init__(self, path: Path, source: bytes) -> None:
        self.path, self.source = path, source

    def get_filename(self, fullname: str) -> str:
        return str(self.path)

    def get_data(self, path: str) -> bytes:
        return self.source
