"""Measures the tasks of the tokenize stage in CPU-seconds and page faults, and fastokens alone on the same texts.

    python -m benchmarks.tokenize_tasks [--rounds N] [--tasks N] [--clean DIR] [--tokenizer FILE] [--environment K=V]

A process with the environment of a fork server loads the tokenizer once and encodes nothing. In each round, the tasks
run in children forked from this process, and fastokens encodes the same texts in other children. The CPU time of tasks
is that of their whole children (reading, encoding, checking, writing, exit); the CPU time of fastokens is that of the
calls of `encode_batch_flat`, on one CPU. Because fastokens caches words, both are measured in two ways. In a run, a
child executes several tasks, one after another; tasks that follow a failure get a child each:

    kept       the tasks of the stage, all in one child
    tasks      the tasks of the stage, one child each
    each       fastokens, one child for each task
    together   fastokens, one child for the texts of all tasks
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks.tokenize import inputs, make_clean
from datakit.engine.task import Phase, Step, Task, TaskResult, decode, encode
from datakit.engine.worker import forkserver_client, forkserver_template
from datakit.engine.worker.preloaded_values import preloaded
from datakit.tokenize import stage
from datakit.tokenize.encoders.threads import limit_threads
from datakit.tokenize.encoders.tokenizer import Tokenizer
from datakit.tokenize.text_batches import text_batches
from tests.support.caches import contract
from tests.support.data import data_dir
from tests.support.engine.inline import run_task_inline

KINDS = ("kept", "tasks", "each", "together")
RATIOS = (("kept", "together"), ("tasks", "together"), ("tasks", "each"))
Cost = dict[str, float]


def in_child(work: Callable[[], bytes]) -> tuple[bytes, resource.struct_rusage]:
    """Run `work` in a forked process; return what it returned and what the process used."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
        with os.fdopen(write, "wb") as pipe:
            pipe.write(work())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    _, status, usage = os.wait4(pid, 0)
    assert status == 0, status
    return answer, usage


def cost(usage: resource.struct_rusage, before: resource.struct_rusage | None = None) -> Cost:
    """Return the usage since `before`, or in total if it is None. `peak` is in MiB."""
    names = {"user": "ru_utime", "system": "ru_stime", "faults": "ru_minflt"}
    used = {key: getattr(usage, name) - (getattr(before, name) if before else 0) for key, name in names.items()}
    return {**used, "cpu": used["user"] + used["system"], "peak": usage.ru_maxrss / 1024}


def added(costs: Iterable[Cost]) -> Cost:
    total: Cost = {}
    for one in costs:
        total = {
            key: max(total.get(key, 0), value) if key == "peak" else total.get(key, 0) + value
            for key, value in one.items()
        }
    return total


def encode_phase(clean: Path, tokenizer: str, directory: str) -> Phase:
    """Return the phase that encodes, planned as in a run. Children make the contract and copy the tokenizer."""
    parameters = {"tokenizer_sha256": hashlib.sha256(Path(tokenizer).read_bytes()).hexdigest()}
    operations = {"tokenizer_path": tokenizer}

    def make() -> bytes:
        contract(Path(directory), parameters, operations=operations)
        return b""

    in_child(make)
    settled = contract(Path(directory), parameters, operations=operations)  # finished, so only its manifest is read
    step = Step("tokenize", "texts", f"{directory}/cache", "0" * 32, parameters, (*inputs(clean), settled))
    plan = stage.plan(step)
    first = next(plan)
    answer, _ = in_child(lambda: encode(run_task_inline(first.tasks[0], first, step.directory)))
    return plan.send([decode(answer, TaskResult)])


def run_tasks(tasks: Iterable[Task], phase: Phase, directory: str) -> Cost:
    """Run these tasks in one child."""

    def work() -> bytes:
        for task in tasks:
            run_task_inline(task, phase, directory)
        return b""

    return cost(in_child(work)[1])


def run_fastokens(tasks: Iterable[Task], tokenizer: Tokenizer) -> Cost:
    """Encode the texts of these tasks in one child."""

    def work() -> bytes:
        encoder = tokenizer.encoder("fastokens")
        limit_threads(encoder, 1)
        costs: list[Cost] = []
        for task in tasks:
            for partition in task.arguments["partitions"]:
                for batch in text_batches(partition["url"], leaving=partition["leaving"]):
                    strings = batch.strings()
                    before = resource.getrusage(resource.RUSAGE_SELF)
                    tokenizer.fast.encode_batch_flat(strings)  # pyright: ignore[reportOptionalMemberAccess]
                    costs.append(cost(resource.getrusage(resource.RUSAGE_SELF), before))
        return json.dumps(added(costs)).encode()

    return json.loads(in_child(work)[0])


def measure(clean: Path, tokenizer: str, rounds: int, most: int) -> list[dict[str, Cost]]:
    """Return, for each round, the cost of each kind."""
    found: list[dict[str, Cost]] = []
    with tempfile.TemporaryDirectory(dir=clean.parent) as scratch:
        phase = encode_phase(clean, tokenizer, f"{scratch}/contract")
        loaded = next(preloaded(one.function, *one.arguments) for one in phase.preloads if one.function)
        forkserver_template._import_libraries()  # pyright: ignore[reportPrivateUsage]
        gc.freeze()
        tasks = sorted(phase.tasks, key=lambda task: -task.input_bytes)[: most or None]
        print(f"{len(tasks)} tasks, {sum(task.input_bytes for task in tasks) / 1e6:.0f} MB of text", file=sys.stderr)
        for number in range(rounds):
            directory = f"{scratch}/contract"
            costs = {kind: [] for kind in KINDS}
            for task in tasks:
                costs["tasks"].append(run_tasks([task], phase, directory))
                costs["each"].append(run_fastokens([task], loaded))
            remove_shards(directory)
            costs["kept"].append(run_tasks(tasks, phase, directory))
            costs["together"].append(run_fastokens(tasks, loaded))
            remove_shards(directory)
            found.append({kind: added(each) for kind, each in costs.items()})
            print(number, json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


def remove_shards(directory: str) -> None:
    for path in Path(directory).rglob("data"):
        subprocess.run(["rm", "-rf", str(path)], check=True)


def report(found: list[dict[str, Cost]]) -> None:
    """Print the medians and the ratios."""
    print("| | CPU s | user | system | faults | peak MiB |\n|---|--:|--:|--:|--:|--:|")
    for kind in KINDS:
        middle = {key: statistics.median(one[kind][key] for one in found) for key in found[0][kind]}
        figures = f"{middle['cpu']:.2f} | {middle['user']:.2f} | {middle['system']:.2f} | {middle['faults']:,.0f}"
        print(f"| {kind} | {figures} | {middle['peak']:.0f} |")
    for ours, fastokens in RATIOS:
        ratios = sorted(one[fastokens]["cpu"] / one[ours]["cpu"] for one in found)
        middle = statistics.median(ratios)
        print(f"fastokens ({fastokens}) / {ours}: {middle:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}; goal 0.75)")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=0, help="run only the N largest tasks")
    parser.add_argument("--clean", type=Path, help="a root with normalized and selected texts; default: the test texts")
    parser.add_argument("--tokenizer", default="gpt-neox-olmo-dolma-v1_5.json")
    parser.add_argument("--environment", nargs="*", default=[], help="further variables, as NAME=VALUE")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    tokenizer = str(data_dir() / "tokenizers" / arguments.tokenizer)
    if arguments.child:
        report(measure(arguments.clean, tokenizer, arguments.rounds, arguments.tasks))
        return
    with tempfile.TemporaryDirectory() as root:
        clean = arguments.clean or make_clean(Path(root))
        environment = forkserver_client._environment()  # pyright: ignore[reportPrivateUsage]
        more = dict(one.split("=", 1) for one in arguments.environment)
        options = ["--child", "--rounds", str(arguments.rounds), "--tasks", str(arguments.tasks), "--clean", str(clean)]
        subprocess.run(
            [sys.executable, "-m", "benchmarks.tokenize_tasks", *options, "--tokenizer", arguments.tokenizer],
            env={**environment, **more},
            check=True,
        )


if __name__ == "__main__":
    main()
