"""Runs the program `git` so that neither the repository nor the user's settings decide what it does.

No configuration file of the user or the machine is read, and only the protocol of the repository's URL is allowed.
There is no working tree, so no hooks, filters, attributes, submodules or large-file downloads (LFS) come into play.
Redirects to other addresses are refused, and nothing asks for a password. Credentials, if needed, come from `~/.netrc`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

from datakit.download.git.address import COMMIT, Address
from datakit.errors import NoInputError, RootError, StorageError
from datakit.printable import one_line

POLL_SECONDS = 2.0
LIST_SECONDS = 120.0
BINARY_FROM = "32m"  # larger files count as binary in diffs, which would need many times their size in memory
NOTHING = os.devnull


def command(scheme: str, *arguments: str) -> list[str]:
    """Return a command line of `git`. scheme: the only protocol that it may use. Raises RootError without `git`."""
    program = shutil.which("git")
    if program is None:
        raise RootError("a source is a Git repository, but the program `git` is not installed; install it")
    settings = {
        "protocol.allow": "never",
        f"protocol.{scheme}.allow": "always",
        "protocol.version": "2",  # then a server answers a request for any commit
        "core.hooksPath": NOTHING,
        "core.fsmonitor": "false",
        "core.attributesFile": NOTHING,
        "credential.helper": "",
        "http.followRedirects": "false",
        "submodule.recurse": "false",
        "fetch.recurseSubmodules": "false",
        "core.bigFileThreshold": BINARY_FROM,
        "gc.auto": "0",
        "maintenance.auto": "false",
    }
    return [program, *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")), *arguments]


def environment() -> dict[str, str]:
    """Return the environment of `git`: this process's, without variables that change what `git` does."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("GIT_", "SSH_ASKPASS"))}
    return kept | {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": NOTHING,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "true",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "LC_ALL": "C",
    }


def commit_of(address: Address) -> str:
    """Return the id of the commit that a revision names now. Asks the repository, unless the revision is a commit's id.
    Raises NoInputError if there is no such revision or several, and StorageError if the repository does not answer.
    """
    revision = address.revision or "HEAD"
    if COMMIT.fullmatch(revision):
        return revision
    arguments = command(address.scheme, "ls-remote", "--", address.url, revision, f"{revision}^{{}}")
    try:
        done = subprocess.run(
            arguments,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIST_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise StorageError(f"{address.url} did not answer within {LIST_SECONDS:.0f} s; run again") from error
    if done.returncode:
        raise StorageError(f"{address.url} cannot be read: {_reason(done.stderr)}")
    lines = (line.split("\t") for line in done.stdout.decode("utf-8", "replace").splitlines())
    found = {name: commit for commit, name in lines}
    names = [name for name in (revision, f"refs/tags/{revision}", f"refs/heads/{revision}") if name in found]
    if len(names) != 1 or not COMMIT.fullmatch(found[names[0]]):
        if names:
            raise NoInputError(
                f"{address.url} has a branch and a tag named {revision!r}; name one as refs/heads/{revision} or "
                f"refs/tags/{revision}"
            )
        raise NoInputError(
            f"{address.url} has no branch or tag named {revision!r}; `git ls-remote {address.url}` lists them"
        )
    return found.get(f"{names[0]}^{{}}", found[names[0]])  # an annotated tag leads to a commit


def fetch(
    address: Address, commit: str, folder: Path, still_alive: Callable[[], None], *, history: bool = False
) -> None:
    """Fetch one commit, with or without its history, into a new bare repository at `folder`. Raises StorageError."""
    what, advice = "fetch the revision", "check the URL and the revision"
    _run(command(address.scheme, "init", "--quiet", "--bare", "--template=", str(folder)), still_alive, what, advice)
    depth = () if history else ("--depth=1",)
    options = ("--quiet", *depth, "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head")
    arguments = ("-C", str(folder), "fetch", *options, "--", address.url, commit)
    _run(command(address.scheme, *arguments), still_alive, what, advice)


def list_commits(folder: Path, commit: str, target: Path, still_alive: Callable[[], None]) -> None:
    """Write the ids of a commit and of all commits before it to the file `target`, one per line, parents before
    children. Raises StorageError.
    """
    with open(target, "wb") as output:
        arguments = ("-C", str(folder), "rev-list", "--topo-order", "--reverse", commit, "--")
        _run(command("file", *arguments), still_alive, "list the history", "it may be a shallow clone", output)


def _run(
    arguments: Sequence[str],
    still_alive: Callable[[], None],
    what: str,
    advice: str,
    output: int | BinaryIO = subprocess.DEVNULL,
) -> None:
    """Run `git`, calling `still_alive` every few seconds. what, advice: for the message of the StorageError."""
    with subprocess.Popen(
        arguments, env=environment(), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE
    ) as process:
        while True:
            try:
                _, errors = process.communicate(timeout=POLL_SECONDS)
                break
            except subprocess.TimeoutExpired:
                still_alive()
    if process.returncode:
        raise StorageError(f"git could not {what}: {_reason(errors)}; {advice}")


def _reason(errors: bytes) -> str:
    """Return the line in which `git` says what failed."""
    lines = [line for line in errors.decode("utf-8", "replace").splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines[-1:]
    return one_line(said[0]) if said else "it gave no reason"
