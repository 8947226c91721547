"""The optimisers of local training, and schedules of its learning rate, functions of the round.

Each training starts without running means.

Torch wraps methods of its optimisers so that `torch.compile` ignores them. When called, a wrapper
imports `torch._dynamo`, which takes 1.5 s and 100 MB in every process. Nothing here is compiled, so
the subclasses below have unwrapped methods, with gradients disabled as in torch. Steps and
numbers are those of torch; `differentiable=True` is not supported.
"""

from __future__ import annotations

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, TypeVar, cast

import torch
from pydantic import Field, StrictBool, model_validator
from torch import Tensor
from torch.autograd.graph import increment_version

from fedray.base.counts import note_step
from fedray.config import Entry, LearningRate
from fedray.config.registry import Registry

T = TypeVar("T", bound=torch.optim.Optimizer)
Decay = Annotated[float, Field(ge=0, le=1000)]
"""The strength of weight decay."""
Beta = Annotated[float, Field(ge=0, lt=1)]
"""The decay rate of a running mean."""

ON_THE_CPU = ("step",)
"""State that torch's optimisers keep on the CPU even for parameters on a GPU."""


class Optimizer(Entry, ABC):
    """A factory of the optimiser of local training; the key `lr` is the learning rate."""

    @abstractmethod
    def make(self, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
        """Return a new optimiser of `parameters`."""


optimizers: Registry[type[Optimizer]] = Registry("optimizer", "fedray.core.optimizers")


def _unwrapped(kind: type[T]) -> type[T]:
    """Return a subclass whose methods lack the wrappers for `torch.compile`."""
    names = ("add_param_group", "zero_grad", "step")
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(kind, name)) for name in names}
    methods["step"] = torch.no_grad()(methods["step"])
    return cast(type[T], type(f"Torch{kind.__name__}", (kind,), methods))


TorchSGD = _unwrapped(torch.optim.SGD)
TorchAdam = _unwrapped(torch.optim.Adam)
TorchAdamW = _unwrapped(torch.optim.AdamW)


@optimizers.add
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum, Nesterov's momentum and weight decay."""

    name = "sgd"
    paper = "Sutskever et al., ICML 2013"

    momentum: Beta = 0.0
    """rho, the momentum factor: the direction of a step is rho times the previous direction plus
    the gradient."""
    nesterov: StrictBool = False
    """Whether momentum is Nesterov's."""
    weight_decay: Decay = 0.0
    """The L2 penalty: weight_decay times the weights is added to the gradient."""

    @model_validator(mode="after")
    def _has_momentum(self) -> SGD:
        if self.momentum == 0 and self.nesterov:
            raise ValueError("nesterov=true needs momentum; set optimizer.momentum, say 0.9")
        return self

    def make(self, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
        """Return torch's SGD without dampening, or `PlainSGD` if it takes the same steps."""
        parameters = list(parameters)
        if self == PLAIN_SGD and all(parameter.is_cpu for parameter in parameters):
            return PlainSGD(parameters, lr)
        return TorchSGD(parameters, lr, **self.model_dump())


class PlainSGD(torch.optim.SGD):
    """Plain SGD on a CPU, w <- w - lr * gradient, equal to torch's SGD bit for bit.

    For small models, the profiler hooks and the choice of a kernel in torch's SGD take several
    times as long as the step.
    """

    add_param_group: Any = inspect.unwrap(torch.optim.SGD.add_param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step."""
        note_step(self)
        for group in self.param_groups:
            learning = [parameter for parameter in group["params"] if parameter.grad is not None]
            if learning:
                values, gradients = [p.data for p in learning], [p.grad for p in learning]
                torch._foreach_add_(values, gradients, alpha=-group["lr"])
                increment_version(learning)  # by which prompted models recognise a change

    step.hooked = True  # type: ignore[attr-defined]  # torch does not wrap a step with this mark


PLAIN_SGD = SGD()
"""SGD without momentum and weight decay."""


@optimizers.add
class Adam(Optimizer):
    """Adam, whose steps are scaled by running means of gradients and of their squares."""

    name = "adam"
    paper = "Kingma and Ba, ICLR 2015, arXiv:1412.6980"
    kind: ClassVar[type[torch.optim.Adam]] = TorchAdam

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """beta_1 and beta_2, the decay rates of the running means of gradients and their squares."""
    eps: float = Field(1e-8, gt=0, le=1)
    """epsilon, added to the root of the mean square for numerical stability."""
    weight_decay: Decay = 0.0
    """The L2 penalty: weight_decay times the weights is added to the gradient; `adamw` decouples
    it."""

    def make(self, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
        """Return torch's Adam or AdamW."""
        return self.kind(parameters, lr, **self.model_dump())


@optimizers.add
class AdamW(Adam):
    """Adam with decoupled weight decay, which acts on the weights and not on the gradient."""

    name = "adamw"
    paper = "Loshchilov and Hutter, ICLR 2019, arXiv:1711.05101"
    kind = TorchAdamW

    weight_decay: Decay = 0.01
    """The decoupled weight decay: a step subtracts weight_decay times `lr` times the weights."""


# --- schedules -----------------------------------------------------------------------------------

Rounds = Annotated[int, Field(ge=1, le=100_000)]
"""A number of rounds."""


class Schedule(Entry):
    """A learning rate for each round; round 1 is the first."""

    warmup_rounds: int = Field(0, ge=0, le=100_000)
    """W, number of warm-up rounds before the schedule starts with `lr`; 0: no warm-up."""
    warmup_lr: LearningRate = 1e-5
    """Learning rate of the first warm-up round, from which it rises to `lr` in equal steps. CoOp:
    1e-5, in one warm-up round."""

    def switched_off(self) -> Mapping[str, str]:
        """Return the learning rate of the warm-up if there is none."""
        none = "lr_schedule.warmup_rounds=0 has no warm-up"
        return {} if self.warmup_rounds else {"warmup_lr": none}

    @property
    def changes(self) -> bool:
        """True if rounds may have different learning rates."""
        return self.warmup_rounds > 0 or type(self).rate is not Schedule.rate

    def __call__(self, lr: float, round_: int, rounds: int) -> float:
        """Return the learning rate of round `round_`, from 1, of `rounds` (T)."""
        warmup, done = self.warmup_rounds, round_ - 1
        if done < warmup:
            return self.warmup_lr + (lr - self.warmup_lr) * done / warmup
        return self.rate(lr, done - warmup, rounds - warmup)

    def rate(self, lr: float, done: int, rounds: int) -> float:
        """Return the learning rate after the warm-up; by default `lr`.

        Args:
            lr: the key `lr`.
            done: completed rounds since the warm-up, from 0.
            rounds: rounds after the warm-up.
        """
        return lr


schedules: Registry[type[Schedule]] = Registry("learning rate schedule", "fedray.core.optimizers")


@schedules.add
class Constant(Schedule):
    """The same learning rate in every round after the warm-up."""

    name = "constant"


@schedules.add
class Steps(Schedule):
    """A learning rate that is multiplied by a factor after given rounds."""

    name = "steps"

    milestones: tuple[Rounds, ...] = Field(min_length=1)
    """Rounds after which the learning rate is multiplied by `factor`; warm-up rounds count."""
    factor: float = Field(0.1, gt=0, le=1)
    """Factor by which the learning rate is multiplied."""

    def rate(self, lr: float, done: int, rounds: int) -> float:
        """Return `lr` times `factor` to the power of the number of multiplications so far."""
        completed = done + self.warmup_rounds
        return lr * self.factor ** sum(milestone <= completed for milestone in self.milestones)


@schedules.add
class Cosine(Schedule):
    """A learning rate that decays to a final value along half a cosine period."""

    name = "cosine"
    paper = "Loshchilov and Hutter, ICLR 2017, arXiv:1608.03983"

    final_lr: float = Field(0.0, ge=0, le=1e6)
    """Learning rate at the end."""

    def rate(self, lr: float, done: int, rounds: int) -> float:
        """Return final + (lr - final) * (1 + cos(pi * done / rounds)) / 2."""
        final = self.final_lr
        return final + (lr - final) * (1 + math.cos(math.pi * (done / rounds))) / 2
