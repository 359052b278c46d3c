"""Checks Ray's installation, token and address, and joins a Ray cluster to check that all nodes match this machine."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from datakit.doctor.finding import Finding, State, try_action
from datakit.engine.ray_backend import agreement, node_environment
from datakit.errors import DatakitError
from datakit.storage import stale_files

REFUSED_TOKEN = "InvalidAuthToken"  # printed by Ray, whose exception says only that connecting failed
VERSION_MISMATCH = "Version mismatch"  # part of Ray's message if the versions of Ray or Python differ
STATUS_REMEDY = "run `ray status` on the head node; see docs/operations.md"


def check_cluster(address: str, root: str | None) -> Iterator[Finding]:
    """Check the cluster at `address` ("local", "auto" or host:port); join it only if it is local or `root` is given."""
    try:
        yield Finding("ray", State.OK, f"ray {version('ray')}")
    except PackageNotFoundError:
        yield Finding("ray", State.PROBLEM, "ray is not installed", "run pip install '.[ray]' in datakit's checkout")
        return
    yield _authentication()
    if address != "local":  # a private cluster inherits this process's environment
        yield _credentials()
    if address == "auto":
        yield (found := _auto_address())
        if found.state is State.PROBLEM:
            return
    if root is None and address != "local":
        reach = (lambda: None) if address == "auto" else partial(agreement.assert_reachable, address)
        yield try_action("cluster", f"{address} answers", STATUS_REMEDY, reach)
        text = "not joined, so its nodes' versions and access to a root were not checked"
        yield Finding("cluster", State.WARNING, text, "give --root to check them")
    else:
        with stale_files.scratch_directory() as folder:
            yield _join(address, root or str(folder))
        stale_files.remove_dead_scratch()


def _join(address: str, root: str) -> Finding:
    """Join the cluster, and explain failures whose cause Ray only prints, or hides in a nested exception."""
    from datakit.engine.ray_backend.executor import RayExecutor

    remedy = STATUS_REMEDY
    with _captured_stderr() as printed:
        try:
            RayExecutor(address, root).close()
        except (DatakitError, OSError) as error:
            text, cause = str(error), " ".join(str(error.__cause__).split())
            if REFUSED_TOKEN in printed():
                text = f"{address} requires a token, but the token on this machine is missing or wrong"
                remedy = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN to the token the cluster was started with"
            elif VERSION_MISMATCH in cause:
                text, remedy = f"{address}: {cause}", "install the same versions of Ray and Python on all machines"
            return Finding("cluster", State.PROBLEM, text, remedy)
    text = f"{address}: joined; every node shares the root and has the same versions and files of datakit"
    return Finding("cluster", State.OK, text)


@contextlib.contextmanager
def _captured_stderr() -> Iterator[Callable[[], str]]:
    """Capture standard error, including libraries' output. Yields a function that returns the text captured so far."""
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lambda: os.pread(file.fileno(), 1 << 20, 0).decode(errors="replace")
        finally:
            os.dup2(original, 2)
            os.close(original)


def _authentication() -> Finding:
    """Check that a token is configured if Ray's token mode requires one, and that none is configured otherwise."""
    mode = os.environ.get("RAY_AUTH_MODE", "")
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", "~/.ray/auth_token")).expanduser()
    token = "RAY_AUTH_TOKEN" if os.environ.get("RAY_AUTH_TOKEN") else str(file) if file.exists() else None
    text = f"RAY_AUTH_MODE is {mode or 'not set'}, token: {token or 'none'}"
    if mode == "token" and token is None:
        return Finding("ray token", State.PROBLEM, text, "set RAY_AUTH_TOKEN to the cluster's token")
    if mode != "token" and token is not None:
        remedy = "set RAY_AUTH_MODE=token if the cluster requires it, or remove the token: a mismatch ends in a timeout"
        return Finding("ray token", State.WARNING, text, remedy)
    return Finding("ray token", State.OK, text)


def _credentials() -> Finding:
    """Report the environment variables that are sent to the nodes, and those for remote stores that are not sent."""
    try:
        sent, withheld = sorted(node_environment.sent_variables()), node_environment.withheld_variables()
    except DatakitError as error:
        return Finding("ray credentials", State.PROBLEM, str(error), f"correct {node_environment.FORWARD}")
    text = f"sent to the nodes: {', '.join(sent) or 'none'}"
    if withheld:
        text += f"; not sent, so the nodes need credentials of their own: {', '.join(withheld)}"
        remedy = f"if the nodes have none, set {node_environment.FORWARD}={','.join(withheld)}"
        return Finding("ray credentials", State.WARNING, text, remedy)
    return Finding("ray credentials", State.OK, text)


def _auto_address() -> Finding:
    """Check that the cluster still answers at the address that `auto` stands for."""
    try:
        return Finding("ray address", State.OK, f"auto means {agreement.auto_address()}, which answers")
    except DatakitError as error:
        return Finding("ray address", State.PROBLEM, str(error), agreement.AUTO_REMEDY)
