"""Writes the files in `locks/`: the SHA-256 of every package that an environment installs, for `--require-hashes`.

    python -m tests.support.release.dependency_hashes python3.11 python3.12 python3.13

Each interpreter's pip resolves all dependencies under `constraints.txt`, and reports which wheels it would install on
this machine. So the hashes are those of Linux wheels for this machine's processor (and of the source archives of
SOURCE_ONLY). They come from the index that pip is
configured to use, and no file names that index. Versions that are not pinned yet are added to `constraints.txt`.
Takes a few minutes per interpreter.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import REPOSITORY

CONSTRAINTS, LOCKS = REPOSITORY / "constraints.txt", REPOSITORY / "locks"
PYTHONS = ("3.11", "3.12", "3.13")
SOURCE_ONLY = ("jsonpath-rw",)  # packages without a wheel; mlcroissant, which only tests use, needs this one
HEAD = (
    "# For `pip install --require-hashes`: Linux on x86-64, Python 3.11 to 3.13.\n"
    "# Written by: python -m tests.support.release.dependency_hashes python3.11 python3.12 python3.13\n"
)


@dataclass(frozen=True)
class Wheel:
    """A wheel that pip would install. `requires`: the requirements in its metadata."""

    name: str
    version: str
    sha256: str
    requires: tuple[str, ...]


@dataclass(frozen=True)
class Resolution:
    """The wheels that an interpreter's pip would install, by package, with its version and marker values."""

    python: str
    environment: dict[str, str]
    wheels: dict[str, Wheel]

    def closure(self, requirements: Iterable[str]) -> set[str]:
        """Return the packages that these requirements need, directly and indirectly."""
        found: set[tuple[str, str]] = set()
        waiting = [(Requirement(text), "") for text in requirements]
        while waiting:
            wanted, extra = waiting.pop()
            if wanted.marker is not None and not wanted.marker.evaluate({**self.environment, "extra": extra}):
                continue
            name = canonicalize_name(wanted.name)
            for inner in {"", *wanted.extras}:
                if (name, inner) not in found:
                    found.add((name, inner))
                    waiting += [(Requirement(text), inner) for text in self.wheels[name].requires]
        return {name for name, _ in found}


def groups() -> dict[str, list[str]]:
    """Return the requirements of each lock file, from `pyproject.toml`: `runtime` is the package alone, `release` is
    what builds and checks it, and `all` is both with all extras except `gpu`, because CI has no GPU and its libraries
    take 3 GB. An extra that names datakit itself only repeats other extras.
    """
    document = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    project, build = document["project"], document["build-system"]["requires"]
    extras = project["optional-dependencies"]
    locked = [text for extra, texts in extras.items() if extra != "gpu" for text in texts]
    every = [*project["dependencies"], *build, *locked]
    return {
        "all": [text for text in every if Requirement(text).name != project["name"]],
        "release": [*build, *extras["release"]],
        "runtime": project["dependencies"],
    }


def pinned() -> dict[str, str]:
    """Return the version of each package in `constraints.txt`."""
    return {canonicalize_name(name): version for name, version in _pins()}


def _pins() -> list[tuple[str, str]]:
    lines = [line.partition("==") for line in CONSTRAINTS.read_text().splitlines()]
    return [(name, version) for name, _, version in lines]


def resolve(python: str) -> Resolution:
    """Return what this interpreter's pip would install."""
    options = ["--quiet", "--dry-run", "--ignore-installed", "--only-binary", ":all:", "--report", "-"]
    options += ["--no-binary", ",".join(SOURCE_ONLY)]
    command = [python, "-m", "pip", "install", *options, "--constraint", str(CONSTRAINTS), *groups()["all"]]
    report = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    wheels = [_wheel(entry) for entry in report["install"]]
    environment = report["environment"]
    return Resolution(
        environment["python_version"], environment, {canonicalize_name(wheel.name): wheel for wheel in wheels}
    )


def _wheel(entry: dict[str, Any]) -> Wheel:
    metadata, digests = entry["metadata"], entry["download_info"]["archive_info"]["hashes"]
    requires = tuple(metadata.get("requires_dist", ()))
    return Wheel(metadata["name"], metadata["version"], digests["sha256"], requires)


def lock_text(resolutions: list[Resolution], requirements: list[str]) -> str:
    """Return the text of a lock file. A package that only some versions of Python need has a marker."""
    hashes: dict[str, set[str]] = defaultdict(set)
    pythons: dict[str, list[str]] = defaultdict(list)
    for resolution in resolutions:
        for name in resolution.closure(requirements):
            pin = f"{name}=={resolution.wheels[name].version}"
            hashes[pin].add(resolution.wheels[name].sha256)
            pythons[pin].append(resolution.python)
    lines = []
    for pin in sorted(hashes):
        wanted = [f'python_version == "{python}"' for python in pythons[pin]]
        marker = "" if len(wanted) == len(resolutions) else f" ; {' or '.join(wanted)}"
        digests = [f"    --hash=sha256:{digest}" for digest in sorted(hashes[pin])]
        lines.append(" \\\n".join([pin + marker, *digests]) + "\n")
    return HEAD + "".join(lines)


def add_pins(resolutions: list[Resolution]) -> None:
    """Add the packages to `constraints.txt` that it does not pin yet."""
    pins, known = dict(_pins()), pinned()
    for resolution in resolutions:
        pins |= {wheel.name: wheel.version for name, wheel in resolution.wheels.items() if name not in known}
    CONSTRAINTS.write_text("".join(f"{name}=={pins[name]}\n" for name in sorted(pins, key=str.lower)))


def main(pythons: list[str]) -> None:
    """Write `constraints.txt` and the lock files."""
    resolutions = [resolve(python) for python in pythons]
    if tuple(resolution.python for resolution in resolutions) != PYTHONS:
        raise SystemExit(f"give an interpreter of each of these versions, in this order: {', '.join(PYTHONS)}")
    add_pins(resolutions)
    LOCKS.mkdir(exist_ok=True)
    for name, requirements in groups().items():
        (LOCKS / f"{name}.txt").write_text(lock_text(resolutions, requirements))


if __name__ == "__main__":
    main(sys.argv[1:])
