"""Defines what one row of `datakit bench moe` measures, refuses cases in which an option would have no effect, and
counts the FLOPs.

FLOPs are those of the useful products: 6 x tokens x hidden x (width x choices + shared) for the forward pass, and three
times as many for forward and backward. The router, sorting, and what remat computes again are not counted. With the
policy "pad", every expert's buffer counts as if it were full.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from datakit.errors import UsageError

Implementation = Literal["production", "baseline", "fused", "preweight", "fused_preweight", "scatter"]
Distribution = Literal["random", "runs", "skewed"]
Parallel = Literal["none", "data", "staged", "overlapped"]
Packing = Literal["counts", "argsort", "tuple_sort", "score_sort"]
Quantization = Literal["none", "int8_weights", "int8_routed", "int8_all"]
GROUPED = ("ragged", "tokamax")  # backends with a product of their own, which the other implementations are built from


@dataclass(frozen=True)
class Case:
    """One layer and how it is computed. docs/models.md explains the options."""

    tokens: int = 4096
    hidden: int = 256
    width: int = 512
    experts: int = 8
    choices: int = 2
    shared: int = 0  # width of an expert that all tokens share; 0: none
    shared_fused: bool = False  # compute the shared expert's gate and up as one product instead of two
    dtype: Literal["float32", "bfloat16"] = "float32"
    backend: Literal["auto", "tiles", "ragged", "tokamax", "dense"] = "auto"
    implementation: Implementation = "production"
    distribution: Distribution = "random"
    passes: Literal["forward", "forward_backward"] = "forward_backward"
    parallel: Parallel = "none"
    devices: int = 1
    # Number of devices that share one copy of the experts with parallel staged or overlapped; 0: all devices
    expert_parallel: int = 0
    exchange: Literal["auto", "ring", "all_to_all", "ragged_all_to_all"] = "auto"
    packing: Packing = "counts"
    queue: Literal["full", "prequeue"] = "full"
    remat: Literal["none", "expert_mlp", "combine"] = "none"
    quantization: Quantization = "none"
    capacity: float = 0.0  # accepted assignments as a multiple of an even load; 0: all
    policy: Literal["none", "drop", "pad"] = "none"
    stages: bool = False  # time the parts of the layer one by one

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(Case).items():
            if get_args(hint) and getattr(self, name) not in get_args(hint):
                raise UsageError(f"{name} is {getattr(self, name)!r}; use one of {', '.join(map(str, get_args(hint)))}")
        for name in ("tokens", "hidden", "width", "experts", "choices", "devices"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; use at least 1")
        if (
            self.choices > self.experts
            or min(self.shared, self.expert_parallel) < 0
            or not 0 <= self.capacity < math.inf
        ):
            raise UsageError(
                f"{self}: choices must be at most experts; shared, expert_parallel and capacity must not be negative"
            )
        for problem in _problems(self):
            raise UsageError(f"{problem}; change or remove the option ({self.described()})")

    @property
    def grouped(self) -> bool:
        """True if the layer is built from grouped products, not from the trainer's own function."""
        return self.implementation != "production"

    @property
    def per_expert(self) -> int:
        """The number of assignments that an expert accepts at most."""
        return math.ceil(self.capacity * self.tokens * self.choices / self.experts)

    @property
    def pieces(self) -> int:
        """The number of equal parts in which the tokens are processed."""
        return self.devices * (2 if self.parallel == "overlapped" else 1)

    @property
    def exchanging(self) -> bool:
        """True if devices share the experts and exchange tokens."""
        return self.parallel in ("staged", "overlapped")

    @property
    def expert_devices(self) -> int:
        """The number of devices that share one copy of the experts."""
        return (self.expert_parallel or self.devices) if self.exchanging else 1

    @property
    def flops(self) -> float:
        """Useful FLOPs of one call on all devices."""
        rows = self.experts * self.per_expert if self.policy == "pad" else self.tokens * self.choices
        forward = 6.0 * self.hidden * (rows * self.width + self.tokens * self.shared)
        return forward * (3 if self.passes == "forward_backward" else 1)

    def key(self) -> dict[str, Any]:
        """Return all fields, which identify the case in a file of rows."""
        return dataclasses.asdict(self)

    def described(self) -> str:
        """Return the fields that differ from their defaults."""
        fields = ((field.name, getattr(self, field.name), field.default) for field in dataclasses.fields(self))
        changed = {name: value for name, value, default in fields if value != default}
        return ", ".join(f"{name} {value}" for name, value in changed.items()) or "the defaults"


def _problems(case: Case) -> Iterator[str]:
    """Yield why options of a case contradict each other or have no effect."""
    forward = case.passes == "forward"
    if case.grouped and case.backend not in ("auto", *GROUPED):
        yield f"implementation {case.implementation} needs the backend {' or '.join(GROUPED)}"
    if not case.grouped and case.packing != "counts":
        yield f"packing {case.packing} has no effect with the implementation production"
    if case.shared_fused and not (case.shared and case.grouped):
        yield "shared_fused has no effect without shared, and with the implementation production"
    if case.queue == "prequeue" and not (case.grouped and forward):
        yield "queue prequeue needs passes forward and an implementation other than production"
    if case.remat != "none" and forward:
        yield f"remat {case.remat} has no effect on a forward pass"
    if case.remat == "combine" and not case.grouped:
        yield "remat combine has no effect with the implementation production"
    if (case.capacity > 0) != (case.policy != "none"):
        yield "capacity and policy have an effect only together"
    if case.policy == "pad" and case.implementation != "fused":
        yield "policy pad needs the implementation fused"
    if case.quantization == "int8_all" and not case.shared:
        yield "quantization int8_all has the effect of int8_routed without shared"
    if case.stages and not (case.grouped and forward and case.policy != "pad"):
        yield "stages needs passes forward, an implementation other than production, and no policy pad"
    yield from _problems_on_devices(case)


def _problems_on_devices(case: Case) -> Iterator[str]:
    if (case.devices > 1) != (case.parallel != "none"):
        yield "devices and parallel have an effect only together"
    if case.parallel != "none" and case.grouped:
        yield f"parallel {case.parallel} needs the implementation production"
    if case.exchange != "auto" and not case.exchanging:
        yield f"exchange {case.exchange} has no effect with parallel {case.parallel}"
    if case.expert_parallel and not case.exchanging:
        yield f"expert_parallel {case.expert_parallel} has no effect with parallel {case.parallel}"
    if case.expert_parallel == 1 and case.exchanging:
        yield f"expert_parallel 1 leaves parallel {case.parallel} nothing to exchange; use parallel data"
    if case.devices % case.expert_devices:
        yield f"expert_parallel {case.expert_parallel} must be a divisor of devices ({case.devices})"
    if case.experts % case.expert_devices:
        name = "expert_parallel" if case.expert_parallel else "devices"
        yield f"parallel {case.parallel} needs a number of experts that {name} divides"
    if case.tokens % case.pieces:
        yield f"tokens must be a multiple of {case.pieces}"


def matrix(axes: Mapping[str, Sequence[Any]]) -> list[Case]:
    """Return one case for each combination of values. Raises UsageError if an option has no effect in one of them."""
    names = list(axes)
    return [Case(**dict(zip(names, values, strict=True))) for values in itertools.product(*axes.values())]
