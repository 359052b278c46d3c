"""Actions are pinned by digest and have few permissions; every dependency is pinned, with hashes that name no index."""

from __future__ import annotations

import re
import sys
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import REPOSITORY
from tests.support.release.dependency_hashes import CONSTRAINTS, LOCKS, PYTHONS, groups, pinned

WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.y*ml"))
USES = re.compile(r"^\s*(?:-\s+)?uses:\s*(\S.*)$", re.MULTILINE)
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+(\.\d+)+")
ENTRY = re.compile(r"([a-z0-9-]+)==(\S+)(?: ; (.*?))?((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")
INDEX = re.compile(r"index-url|find-links|trusted-host|://")
THIS_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def locked(group: str) -> dict[str, str]:
    """Return the versions of the packages that a lock file installs on this version of Python, by package."""
    text = (LOCKS / f"{group}.txt").read_text()
    body = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    entries = list(ENTRY.finditer(body))
    assert "".join(entry[0] for entry in entries) == body, f"{group}.txt has a line of another form"
    return {entry[1]: entry[2] for entry in entries if not entry[3] or f'"{THIS_PYTHON}"' in entry[3]}


@pytest.fixture(params=WORKFLOWS, ids=lambda path: path.name)
def workflow(request: pytest.FixtureRequest) -> Path:
    return request.param


def parsed(workflow: Path) -> dict[Any, Any]:
    return yaml.safe_load(workflow.read_text())


def test_actions_are_pinned_by_digest(workflow: Path) -> None:
    used = USES.findall(workflow.read_text())
    assert used
    assert [action for action in used if not PINNED.fullmatch(action)] == []


def test_one_action_has_one_digest() -> None:
    used = {action for path in WORKFLOWS for action in USES.findall(path.read_text())}
    assert len({action.split("@")[0] for action in used}) == len(used)


def test_workflows_may_only_read(workflow: Path) -> None:
    document = parsed(workflow)
    assert document["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in document["jobs"].values()), "no job needs more"


def test_checkouts_keep_no_token(workflow: Path) -> None:
    steps = [step for job in parsed(workflow)["jobs"].values() for step in job["steps"]]
    checkouts = [step for step in steps if step.get("uses", "").startswith("actions/checkout@")]
    assert checkouts
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_vulnerabilities_are_looked_up_every_week() -> None:
    audits = [path for path in WORKFLOWS if "make audit" in path.read_text()]
    assert [parsed(path)[True]["schedule"] for path in audits] == [[{"cron": "41 4 * * 1"}]]  # YAML reads `on` as true


@pytest.mark.parametrize("group", ["all", "release", "runtime"])
def test_every_requirement_is_locked(group: str) -> None:
    versions = locked(group)
    for text in groups()[group]:
        wanted = Requirement(text)
        assert wanted.specifier.contains(versions[canonicalize_name(wanted.name)]), text


@pytest.mark.parametrize("group", ["all", "release", "runtime"])
def test_what_locked_packages_require_is_locked(group: str) -> None:
    """Check the packages installed here, each with the extras that the lock file was resolved with."""
    versions, seen = locked(group), 0
    for package in distributions():
        if canonicalize_name(package.metadata["Name"]) in versions:
            seen += 1
            for text in package.requires or ():
                wanted = Requirement(text)
                if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                    assert canonicalize_name(wanted.name) in versions, f"{package.metadata['Name']} needs {text}"
    assert seen


def test_locked_versions_are_those_of_the_constraints() -> None:
    versions, everything = pinned(), locked("all")
    assert {name: versions.get(name) for name in everything} == everything
    for group in ("release", "runtime"):
        assert locked(group).items() <= everything.items()


def test_all_python_versions_that_ci_tests_are_locked() -> None:
    matrix = parsed(REPOSITORY / ".github" / "workflows" / "ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert tuple(matrix["python"]) == PYTHONS


def test_no_file_of_dependencies_names_an_index() -> None:
    files = [CONSTRAINTS, *LOCKS.iterdir(), *WORKFLOWS, REPOSITORY / "Makefile", REPOSITORY / "pyproject.toml"]
    assert [path.name for path in files if INDEX.search(path.read_text())] == []
