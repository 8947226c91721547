"""How clients' learning rate changes over rounds: pure functions of the round."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from fedray.config import Frozen, LearningRate
from fedray.data.configurable import Configurable
from fedray.registry import Registry

Rounds = Annotated[int, Field(ge=1, le=100_000)]
"""A number of rounds."""


class ScheduleParams(Frozen):
    """Parameters of every schedule."""

    warmup_rounds: int = Field(0, ge=0, le=100_000)
    """W, rounds of warm-up before the schedule begins with `lr`; 0: none."""
    warmup_lr: LearningRate = 1e-5
    """Where the warm-up starts. CoOp: 1e-5."""
    warmup: Literal["constant", "linear"] = "linear"
    """linear: up to `lr` in equal steps; constant: all of the warm-up with `warmup_lr` (CoOp)."""


class Schedule(Configurable, ABC):
    """A learning rate for each round; round 1 is the first."""

    paper: ClassVar[str] = "-"
    """Where it is from."""
    Params: ClassVar[type[Frozen]] = ScheduleParams
    params: ScheduleParams

    @property
    def changes(self) -> bool:
        """True if rounds may have different learning rates."""
        return True

    def __call__(self, lr: float, round_: int, rounds: int) -> float:
        """Return the learning rate of round `round_`, from 1, of `rounds` (T)."""
        warmup, done = self.params.warmup_rounds, round_ - 1
        if done < warmup:
            start = self.params.warmup_lr
            constant = self.params.warmup == "constant"
            return start if constant else start + (lr - start) * done / warmup
        return self.rate(lr, done - warmup, rounds - warmup)

    @abstractmethod
    def rate(self, lr: float, done: int, rounds: int) -> float:
        """Return the learning rate after the warm-up.

        Args:
            lr: the key `lr`.
            done: completed rounds since the warm-up, from 0.
            rounds: rounds after the warm-up.
        """


schedules: Registry[type[Schedule]] = Registry("learning rate schedule", "fedray.core.schedules")


@schedules.add
class Constant(Schedule):
    """The same learning rate in every round after the warm-up."""

    name = "constant"

    @property
    def changes(self) -> bool:
        """True with a warm-up."""
        return self.params.warmup_rounds > 0

    def rate(self, lr: float, done: int, rounds: int) -> float:
        """Return `lr`."""
        return lr


class StepParams(ScheduleParams):
    """Parameters of `steps`."""

    milestones: tuple[Rounds, ...] = ()
    """Rounds, counted from the first, after which the rate is multiplied by `factor`."""
    every: Rounds | None = None
    """Instead of milestones: rounds between multiplications, from the warm-up on; 1 decays the rate
    exponentially."""
    factor: float = Field(0.1, gt=0, le=1)
    """The factor of the rate."""

    @model_validator(mode="after")
    def _has_one_of_both(self) -> StepParams:
        if bool(self.milestones) == (self.every is not None):
            raise ValueError(
                "needs either milestones or every; set lr_schedule.milestones=[30, 60] or "
                "lr_schedule.every=30"
            )
        if any(later <= earlier for earlier, later in pairwise(self.milestones)):
            raise ValueError(f"milestones={list(self.milestones)} must rise")
        return self


@schedules.add
class Steps(Schedule):
    """Multiplied by a factor after given rounds, or at a regular interval."""

    name = "steps"
    Params = StepParams
    params: StepParams

    def rate(self, lr: float, done: int, rounds: int) -> float:
        """Return `lr` times the factor to the power of its number of uses so far."""
        if self.params.every is not None:
            return lr * self.params.factor ** (done // self.params.every)
        reached = done + self.params.warmup_rounds
        return lr * self.params.factor ** sum(each <= reached for each in self.params.milestones)


class CosineParams(ScheduleParams):
    """Parameters of `cosine`."""

    final_lr: float = Field(0.0, ge=0, le=1e6)
    """Where it ends."""
    period: Rounds | None = None
    """Rounds from `lr` to `final_lr`, which then stays; null: all rounds after the warm-up. CoOp
    counts the warm-up in: its period is the number of all rounds."""


@schedules.add
class Cosine(Schedule):
    """From the learning rate to a final one along half a cosine."""

    name = "cosine"
    paper = "Loshchilov and Hutter, ICLR 2017, arXiv:1608.03983"
    Params = CosineParams
    params: CosineParams

    def rate(self, lr: float, done: int, rounds: int) -> float:
        """Return final + (lr - final) * (1 + cos(pi * done / period)) / 2, then `final`."""
        final, share = self.params.final_lr, min(done / (self.params.period or rounds), 1)
        return final + (lr - final) * (1 + math.cos(math.pi * share)) / 2
