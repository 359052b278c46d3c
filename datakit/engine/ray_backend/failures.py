"""Ray's errors, told apart: what happened, whose affair it is, and the next step to take.

Whatever Ray loses is "infrastructure": the policy tries again elsewhere. Two of its errors would be the same at every
try, so they are "refused" and end the run at once: a runtime environment that cannot be made, and a node that lacks
datakit. The table is also in docs/operations.md.
"""

from __future__ import annotations

from dataclasses import dataclass

from ray import exceptions

from datakit.engine.executor import Attempt, Cause, Outcome

FAILED_IMPORT = "failed to import"  # Ray's words for a function that a worker could not load


@dataclass(frozen=True)
class Failure:
    """What an error of Ray means."""

    kind: type[Exception]
    what: str
    next_step: str
    cause: Cause = Cause.INFRASTRUCTURE


FAILURES = (
    Failure(
        exceptions.RuntimeEnvSetupError,
        "a node could not make the runtime environment",
        "mend the `runtime_env` of `ray.init` or of the Ray job (runtime_env_setup*.log on that node says more), or "
        "install what it holds on all nodes",
        Cause.REFUSED,
    ),
    Failure(
        exceptions.OwnerDiedError,
        "the process that owned the attempt died: a driver, or the Ray job around it",
        "run again; if it stays, look at what ends that process (memory of the head node, a job's time limit)",
    ),
    Failure(
        exceptions.NodeDiedError,
        "its node died, or could not be reached",
        "nothing, if nodes are meant to come and go; else `ray status`, and the machine itself",
    ),
    Failure(
        exceptions.LocalRayletDiedError,
        "Ray's daemon on its node (the raylet) died",
        "raylet.out and raylet.err in Ray's logs on that node; start Ray there again",
    ),
    Failure(
        exceptions.OutOfMemoryError,
        "Ray's memory monitor killed its worker, since the whole node was nearly out of memory",
        "see what else takes memory there; start the node with a smaller --memory or fewer --num-cpus",
    ),
    Failure(
        exceptions.WorkerCrashedError,
        "its Ray worker process died",
        "if it stays: `dmesg` on that node for kills by the kernel, and python-core-worker-*.log in Ray's logs there",
    ),
    Failure(
        exceptions.OutOfDiskError,
        "the disk with Ray's files is full",
        "free some on that node: Ray works only below 95 %",
    ),
    Failure(
        exceptions.TaskUnschedulableError,
        "no node can take it: the one that it was meant for is gone",
        "`ray status` shows which nodes are left",
    ),
    Failure(
        exceptions.AuthenticationError,
        "the cluster does not accept our token",
        "set RAY_AUTH_MODE=token and the cluster's RAY_AUTH_TOKEN, on all nodes and for the driver",
    ),
    Failure(
        exceptions.ObjectLostError,
        "its result was lost on the way",
        "nothing; if it stays, `ray status`, and Ray's logs on the nodes",
    ),
)
UNKNOWN = Failure(exceptions.RayError, "Ray reports an error", "`ray status`, and Ray's logs")
UNABLE = Failure(
    exceptions.RayTaskError,
    "a node cannot load datakit",
    "install the same version of datakit on all nodes",
    Cause.REFUSED,
)
BROKEN = Failure(exceptions.RayTaskError, "Ray could not run the attempt", "Ray's logs on that node: worker-*.err")


def failure_of(error: BaseException) -> Failure:
    """The line of the table for an error."""
    if isinstance(error, exceptions.RayTaskError):
        cause = error.cause
        return UNABLE if isinstance(cause, ImportError) or FAILED_IMPORT in str(cause) else BROKEN
    return next((failure for failure in FAILURES if isinstance(error, failure.kind)), UNKNOWN)


def describe(error: BaseException) -> str:
    """What happened and what to do, in a line. Of an exception in a task only the type: it may quote documents."""
    failure = failure_of(error)
    if isinstance(error, exceptions.RayTaskError):
        return f"{failure.what}: {type(error.cause).__name__}; next: {failure.next_step}"
    return f"{failure.what} ({type(error).__name__}: {first_line(error)}); next: {failure.next_step}"


def is_lasting(error: BaseException) -> bool:
    """Whether asking again is in vain."""
    return isinstance(error, exceptions.RayTaskError) or failure_of(error).cause is Cause.REFUSED


def outcome_of(error: exceptions.RayError, attempt: Attempt) -> Outcome:
    """The outcome of an attempt for which Ray raised this."""
    if isinstance(error, exceptions.TaskCancelledError):
        cause, message = Cause.CANCELLED, "the run was stopped"
    else:
        cause, message = failure_of(error).cause, describe(error)
    kind = type(error).__name__
    return Outcome(attempt.phase, attempt.task.key, attempt.number, cause, message=message, error_type=kind)


def first_line(error: BaseException) -> str:
    """The first line of its text that says anything, without the one that Ray puts before the reason."""
    text = getattr(error, "error_message", None) or str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
