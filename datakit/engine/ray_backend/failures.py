"""Decides whether a Ray error leads to a retry of the attempt or ends the run; explains the error, and states what to
do.

Most errors have the cause "infrastructure", and the attempt is retried elsewhere. Two kinds of error would recur on
every try: a runtime environment that cannot be created, and a node without datakit. They have the cause "refused" and
end the run at once. A cancellation has a cause of its own. The table below (FAILURES) is also in docs/operations.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from ray import exceptions

from datakit.engine.executor import Attempt, Cause, Outcome

FAILED_IMPORT = "failed to import"  # part of Ray's message for a function that a worker could not load


@dataclass(frozen=True)
class Failure:
    """A kind of Ray error, its meaning, and the next step."""

    kind: type[Exception]
    what: str
    next_step: str
    cause: Cause = Cause.INFRASTRUCTURE


FAILURES = (
    Failure(
        exceptions.RuntimeEnvSetupError,
        "a node could not create the runtime environment",
        "fix the `runtime_env` of `ray.init` or of the Ray job (see runtime_env_setup*.log on that node), or install "
        "its packages on all nodes",
        Cause.REFUSED,
    ),
    Failure(
        exceptions.OwnerDiedError,
        "the process that owned the attempt died: a driver, or the Ray job around it",
        "run again; if it recurs, find out what ends that process (memory of the head node, a job's time limit)",
    ),
    Failure(
        exceptions.NodeDiedError,
        "its node died or became unreachable",
        "nothing, if nodes are expected to come and go; otherwise see `ray status` and the machine itself",
    ),
    Failure(
        exceptions.LocalRayletDiedError,
        "Ray's daemon on its node (the raylet) died",
        "see raylet.out and raylet.err in Ray's logs on that node; start Ray there again",
    ),
    Failure(
        exceptions.OutOfMemoryError,
        "Ray's memory monitor killed its worker because the node was nearly out of memory",
        "find out what else uses memory on that node; start the node with a smaller --memory or fewer --num-cpus",
    ),
    Failure(
        exceptions.WorkerCrashedError,
        "its Ray worker process died",
        "if it recurs: see `dmesg` on that node for kills by the kernel, and python-core-worker-*.log in Ray's logs",
    ),
    Failure(
        exceptions.OutOfDiskError,
        "the disk with Ray's files is full",
        "free space on that node: Ray needs its disk to be less than 95 % full",
    ),
    Failure(
        exceptions.TaskUnschedulableError,
        "no node can run it: the node to which it was sent is gone",
        "look at the remaining nodes with `ray status`",
    ),
    Failure(
        exceptions.AuthenticationError,
        "the cluster does not accept our token",
        "set RAY_AUTH_MODE=token and the cluster's RAY_AUTH_TOKEN, on all nodes and for the driver",
    ),
    Failure(
        exceptions.ObjectLostError,
        "its result was lost in transit",
        "nothing; if it recurs, see `ray status` and Ray's logs on the nodes",
    ),
)
UNKNOWN = Failure(exceptions.RayError, "Ray reports an error", "see `ray status` and Ray's logs")
IMPORT_FAILED = Failure(
    exceptions.RayTaskError,
    "a node cannot load datakit",
    "install the same version of datakit on all nodes",
    Cause.REFUSED,
)
NOT_RUN = Failure(
    exceptions.RayTaskError, "Ray could not run the attempt", "see worker-*.err in Ray's logs on that node"
)


def failure_of(error: BaseException) -> Failure:
    """Return the table entry that describes an error."""
    if isinstance(error, exceptions.RayTaskError):
        cause = error.cause
        return IMPORT_FAILED if isinstance(cause, ImportError) or FAILED_IMPORT in str(cause) else NOT_RUN
    return next((failure for failure in FAILURES if isinstance(error, failure.kind)), UNKNOWN)


def describe(error: BaseException) -> str:
    """Return one line that states what happened and what to do. For an exception in a task, the line shows only the
    exception's type, since its message may quote documents.
    """
    failure = failure_of(error)
    if isinstance(error, exceptions.RayTaskError):
        return f"{failure.what}: {type(error.cause).__name__}; next: {failure.next_step}"
    return f"{failure.what} ({type(error).__name__}: {first_line(error)}); next: {failure.next_step}"


def is_permanent(error: BaseException) -> bool:
    """Return True if a second probe of the node cannot succeed."""
    return isinstance(error, exceptions.RayTaskError) or failure_of(error).cause is Cause.REFUSED


def outcome_of(error: exceptions.RayError, attempt: Attempt) -> Outcome:
    """Return the outcome of an attempt for which Ray raised `error`."""
    if isinstance(error, exceptions.TaskCancelledError):
        cause, message = Cause.CANCELLED, "the run was stopped"
    else:
        cause, message = failure_of(error).cause, describe(error)
    return Outcome.of(attempt, cause, message=message, error_type=type(error).__name__)


def first_line(error: BaseException) -> str:
    """Return the first non-empty line of the message that Ray wrapped in the error, or else of the error's own text."""
    text = getattr(error, "error_message", None) or str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
