"""Schedules of the clients' learning rate, which are functions of the round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from fedray.config import Frozen, LearningRate
from fedray.data.configurable import Configurable
from fedray.registry import Registry

Rounds = Annotated[int, Field(ge=1, le=100_000)]
"""A number of rounds."""


class ScheduleParams(Frozen):
    """Parameters of every schedule."""

    warmup_rounds: int = Field(0, ge=0, le=100_000)
    """W, number of warm-up rounds before the schedule starts with `lr`; 0: no warm-up."""
    warmup_lr: LearningRate = 1e-5
    """Learning rate of the first warm-up round, from which it rises to `lr` in equal steps. CoOp:
    1e-5, in one warm-up round."""

    def switched_off(self) -> Mapping[str, str]:
        """Return the learning rate of the warm-up if there is none."""
        none = "lr_schedule.warmup_rounds=0 has no warm-up"
        return {} if self.warmup_rounds else {"warmup_lr": none}


class Schedule(Configurable):
    """A learning rate for each round; round 1 is the first."""

    Params: ClassVar[type[Frozen]] = ScheduleParams
    params: ScheduleParams

    @property
    def changes(self) -> bool:
        """True if rounds may have different learning rates."""
        return self.params.warmup_rounds > 0 or type(self).rate is not Schedule.rate

    def __call__(self, lr: float, round_: int, rounds: int) -> float:
        """Return the learning rate of round `round_`, from 1, of `rounds` (T)."""
        warmup, done = self.params.warmup_rounds, round_ - 1
        if done < warmup:
            start = self.params.warmup_lr
            return start + (lr - start) * done / warmup
        return self.rate(lr, done - warmup, rounds - warmup)

    def rate(self, lr: float, done: int, rounds: int) -> float:
        """Return the learning rate after the warm-up; by default `lr`.

        Args:
            lr: the key `lr`.
            done: completed rounds since the warm-up, from 0.
            rounds: rounds after the warm-up.
        """
        return lr


schedules: Registry[type[Schedule]] = Registry("learning rate schedule", "fedray.core.schedules")


@schedules.add
class Constant(Schedule):
    """The same learning rate in every round after the warm-up."""

    name = "constant"


class StepParams(ScheduleParams):
    """Parameters of `steps`."""

    milestones: tuple[Rounds, ...] = ()
    """Rounds after which the learning rate is multiplied by `factor`; warm-up rounds count."""
    every: Rounds | None = None
    """Number of rounds between two multiplications, counted after the warm-up; used instead of
    `milestones`. 1 decays the learning rate exponentially."""
    factor: float = Field(0.1, gt=0, le=1)
    """Factor by which the learning rate is multiplied."""

    @model_validator(mode="after")
    def _has_one_of_both(self) -> StepParams:
        if bool(self.milestones) == (self.every is not None):
            raise ValueError(
                "needs either milestones or every; set lr_schedule.milestones=[30, 60] or "
                "lr_schedule.every=30"
            )
        return self


@schedules.add
class Steps(Schedule):
    """A learning rate that is multiplied by a factor after given rounds or at regular intervals."""

    name = "steps"
    Params = StepParams
    params: StepParams

    def rate(self, lr: float, done: int, rounds: int) -> float:
        """Return `lr` times `factor` to the power of the number of multiplications so far."""
        if self.params.every is not None:
            return lr * self.params.factor ** (done // self.params.every)
        completed = done + self.params.warmup_rounds
        passed = sum(milestone <= completed for milestone in self.params.milestones)
        return lr * self.params.factor**passed


class CosineParams(ScheduleParams):
    """Parameters of `cosine`."""

    final_lr: float = Field(0.0, ge=0, le=1e6)
    """Learning rate at the end."""


@schedules.add
class Cosine(Schedule):
    """A learning rate that decays to a final value along half a cosine period."""

    name = "cosine"
    paper = "Loshchilov and Hutter, ICLR 2017, arXiv:1608.03983"
    Params = CosineParams
    params: CosineParams

    def rate(self, lr: float, done: int, rounds: int) -> float:
        """Return final + (lr - final) * (1 + cos(pi * done / rounds)) / 2."""
        final = self.params.final_lr
        return final + (lr - final) * (1 + math.cos(math.pi * (done / rounds))) / 2
