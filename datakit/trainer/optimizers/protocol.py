"""Defines what an optimizer file contains: a class `Config`, derived from `Optimizer`. Its fields are the settings, and
its methods are the update rule of one weight. `docs/optimizers.md` explains how to write an optimizer.

The rule sees one weight at a time, so it needs no knowledge of the model or of the mesh. The trainer does the rest:
gradients are converted to fp32 and clipped per family, moments are created and sharded like their weights, learning
rates follow the schedule, and metrics and alarms are derived from the groups.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from datakit.trainer.models.shapes import Array, Float
from datakit.trainer.models.weights import Group, Weight
from datakit.trainer.optimizers.settings import Settings, input_names

Moments = dict[str, Array]  # name -> fp32 array with the shape of the weight


@dataclass(frozen=True)
class WeightStep:
    """One weight in a step: its values, gradient, moments and rate. All arrays are fp32."""

    path: str  # in the table, such as "blocks/query"
    weight: Weight  # its row in the table; the first `weight.stack` axes index independent matrices
    value: Float[Array, "*shape"]  # before the step
    gradient: Float[Array, "*shape"]  # clipped
    moments: Moments  # those that `Optimizer.moments` names, after the previous step; zeros at first
    rate: Float[Array, ""]  # the learning rate of the weight's group in this step
    count: Float[Array, ""]  # number of steps, including this one


@dataclass(frozen=True)
class Optimizer(Settings):
    """The settings of an optimizer and its update rule. A file's `Config` must define `moments` and `update`."""

    def moments(self, path: str, weight: Weight) -> tuple[str, ...]:
        """Return the names of the arrays that are kept for a weight from step to step.

        path: of the weight in the table, such as "blocks/query".
        """
        raise NotImplementedError(f"{type(self).__module__}: Config does not define moments()")

    def update(self, step: WeightStep) -> tuple[Float[Array, "*shape"], Moments]:
        """Return the value and the moments of one weight after the step."""
        raise NotImplementedError(f"{type(self).__module__}: Config does not define update()")

    def constants(self) -> Optimizer:
        """Return a copy for the compiled step, in which the settings that are inputs of the step are None. So equal
        copies mean equal programs, and a program that uses such a setting by mistake fails when it is traced.
        """
        settings = copy.copy(self)
        for name in input_names(self):
            object.__setattr__(settings, name, None)
        return settings

    def group(self, path: str, weight: Weight) -> Group:
        """Return the group that a weight belongs to. Each group has its own learning rate, norm and alarm. The
        default is the group in the table.
        """
        return weight.group

    def peak(self, group: Group) -> float:
        """Return the peak learning rate of a group."""
        return self.learning_rate

    def family(self, group: Group) -> str:
        """Return the name of the family to which a group belongs; the weights of a family are clipped together."""
        return "all"

    def keeps_norm(self, group: str) -> bool:
        """Return True if the norms of this group's matrices never change, so that a change raises an alarm."""
        return False
