"""Trees that strangers could have made: each command ends as expected, within its limits, opens nothing outside, runs
no planted code, quotes no document and leaks no secret. The cases are in `tests/support/hostile/kinds/`.
"""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.canary import Canaries, planted, watched
from tests.support.command_line import command
from tests.support.hostile.case import Case, Place
from tests.support.hostile.kinds import ALL
from tests.support.hostile.run import Launcher, failures, launched
from tests.support.processes import fake_devices
from tests.support.run_files import write_run_file
from tests.support.s3 import s3_server

# The cases of every run of the tests, which take a minute of CPU time; `make soak` runs all.
OFTEN = frozenset((
    "json-nested-100000-deep", "parquet-flipped-bits-0", "parquet-with-pickles", "arrow-offsets-behind-the-text",
    "archive-tar-gz", "wiki-many-laughs", "tar-names-lead-out", "git-hooks-filters-and-links",
    "bomb-line-gz", "name-not-utf-8", "name-toml-drafted", "name-in-the-list-of-bad-records",
    "link-to-a-file-outside", "link-to-the-environment", "link-each-to-all-of-12", "special-pipe-in-a-source",
    "special-pipe-for-inspect", "special-pipe-for-train", "manifest-path-up-validate", "manifest-path-up-why",
    "manifest-path-up-gc", "manifest-input-url-inspect", "manifest-cycle-of-two-why",
    "manifest-chain-of-double-inputs-inspect", "manifest-nested-deep", "latest-path-up", "latest-nested-deep",
    "ledger-nested-deep", "ledger-unsafe-message", "partial-nested-deep", "partial-unsafe",
    "tokenizer-names-a-module", "tokenizer-names-a-module-in-a-cache-show", "tokenizer-empty-in-a-cache-validate",
    "recipe-condition-reads-a-file", "recipe-nested-deep", "recipe-url-with-a-password",
    "cache-lengths-of-2^32-1-show", "cache-pipe-as-array-validate", "cache-pipe-as-tokenizer-show",
    "cache-vocabulary-of-2^62-show", "megatron-pointer-of-2^62", "levanter-shard-up", "keys-dots-up",
    "keys-unsafe-inspected",
))  # fmt: skip


@pytest.fixture(scope="module")
def canaries() -> Iterator[Canaries]:
    """Secrets in the environment of all commands; at the end, no process may have shown one."""
    with planted() as secrets, watched(secrets) as titles:
        yield secrets
    assert titles == []


@pytest.fixture(scope="module")
def launcher(canaries: Canaries) -> Iterator[Launcher]:
    with launched() as started:
        yield started


@pytest.fixture(scope="module")
def store(canaries: Canaries) -> Iterator[str]:
    """A bucket of an S3 server. The commands use the canaries as its secret key, which the server does not check."""
    with s3_server("hostile", "") as variables, pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_DEFAULT_REGION"):
            patch.setenv(name, variables[name])
        yield "s3://hostile"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run file, its cache and the finished run, all in `data`."""
    folder = tmp_path_factory.mktemp("trained")
    write_run_file(folder / "data")
    done = command("train", "data/run.toml", "--root", "data", cwd=folder, **fake_devices(1))
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case.name in OFTEN else pytest.mark.soak) for case in ALL],
    ids=lambda case: case.name,
)
def test_hostile_tree_ends_as_expected(
    case: Case, tmp_path: Path, launcher: Launcher, canaries: Canaries, request: pytest.FixtureRequest
) -> None:
    bucket = ""
    if "keys" in case.name:
        bucket = f"{request.getfixturevalue('store')}/{uuid.uuid4().hex}"
    words = (f"document{uuid.uuid4().hex}", f"outside{uuid.uuid4().hex}")
    finished, trained = (functools.partial(request.getfixturevalue, name) for name in ("finished", "trained"))
    place = Place(tmp_path, *words, finished, trained, bucket)
    place.make()
    case.build(place)
    if found := failures(case, place, launcher, canaries):
        pytest.fail("\n".join(found), pytrace=False)


def test_names_of_cases_are_unique() -> None:
    names = {case.name for case in ALL}
    assert len(names) == len(ALL) >= 150
    assert names >= OFTEN
