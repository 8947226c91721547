"""What takes the steps of local training: SGD, Adam, AdamW; and what it keeps between rounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, StrictBool, model_validator
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_pre_hooks

from fedray.config import Component, Frozen
from fedray.core.state import StateTree
from fedray.core.without_compiler import SGD as TorchSGD
from fedray.core.without_compiler import Adam as TorchAdam
from fedray.core.without_compiler import AdamW as TorchAdamW
from fedray.data.configurable import Configurable, build
from fedray.registry import Registry

Decay = Annotated[float, Field(ge=0, le=1000)]
"""What pulls weights to zero."""
Beta = Annotated[float, Field(ge=0, lt=1)]
"""How much of a running mean stays."""

ON_THE_CPU = ("step",)
"""What torch's optimisers keep on the CPU wherever the parameters are."""


class OptimizerParams(Frozen):
    """Parameters of every optimiser."""

    keep: StrictBool = False
    """Whether a client's running means (momentum) stay between its rounds, as part of its state;
    false: every round begins without."""


class Optimizer(Configurable, ABC):
    """Makes the optimiser of a client's local training; its learning rate is the key `lr`."""

    paper: ClassVar[str] = "-"
    """Where it is from."""
    Params: ClassVar[type[Frozen]] = OptimizerParams
    params: OptimizerParams

    @abstractmethod
    def make(self, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
        """The optimiser of `parameters`, without memory."""


optimizers: Registry[type[Optimizer]] = Registry("optimizer", "fedray.core.optimizers")


def build_optimizer(component: Component) -> Optimizer:
    """Make what the key `optimizer` names.

    Raises:
        UserError: when there is none of this name, or a parameter is unknown or out of bounds.
    """
    optimizer: Optimizer = build(component, "optimizer", "optimizer")
    return optimizer


class SGDParams(OptimizerParams):
    """Parameters of `sgd`."""

    momentum: Beta = 0.0
    """rho: a step follows rho times the step before, and the gradient; 0: the gradient alone."""
    nesterov: StrictBool = False
    """Whether the gradient is added once more, as Nesterov's momentum has it."""
    weight_decay: Decay = 0.0
    """What is added to the gradient, times the weights."""

    @model_validator(mode="after")
    def _has_momentum(self) -> SGDParams:
        if self.momentum == 0 and self.nesterov:
            raise ValueError("nesterov=true needs momentum; set optimizer.momentum, say 0.9")
        if self.momentum == 0 and self.keep:
            raise ValueError(
                "keep=true keeps nothing without momentum; set optimizer.momentum, say 0.9, or "
                "leave optimizer.keep out"
            )
        return self


@optimizers.add
class SGD(Optimizer):
    """Stochastic gradient descent, with momentum, Nesterov's momentum and weight decay."""

    name = "sgd"
    paper = "Sutskever et al., ICML 2013"
    Params = SGDParams
    params: SGDParams

    def make(self, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
        """Torch's SGD, without dampening."""
        momentum, decay = self.params.momentum, self.params.weight_decay
        parameters = list(parameters)
        if not momentum and not decay and all(p.device.type == "cpu" for p in parameters):
            return PlainSGD(parameters, lr)
        return TorchSGD(
            parameters, lr, momentum=momentum, weight_decay=decay, nesterov=self.params.nesterov
        )


class PlainSGD(TorchSGD):
    """w <- w - lr * gradient on a CPU, bit for bit as torch's SGD does it.

    Without the profiler's marks and the choice among kernels around it, which take several times as
    long as the step of a small model.
    """

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Let the gradients go."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step."""
        for hook in _global_optimizer_pre_hooks.values():  # who counts what is trained
            hook(self, (), {})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["lr"])

    step.hooked = True  # type: ignore[attr-defined]  # torch leaves a step that says so as it is


PLAIN_SGD = SGD()
"""Gradient descent and nothing else."""


class AdamParams(OptimizerParams):
    """Parameters of `adam`."""

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """beta_1 and beta_2, how much of the running means of gradients and of their squares stays."""
    eps: float = Field(1e-8, gt=0, le=1)
    """epsilon, what is added to the root of the mean square."""
    weight_decay: Decay = 0.0
    """What is added to the gradient, times the weights; decoupled: see `adamw`."""


@optimizers.add
class Adam(Optimizer):
    """Steps scaled by running means of gradients and of their squares."""

    name = "adam"
    paper = "Kingma and Ba, ICLR 2015, arXiv:1412.6980"
    Params = AdamParams
    params: AdamParams
    kind: ClassVar[type[torch.optim.Adam]] = TorchAdam

    def make(self, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
        """Torch's Adam, or AdamW."""
        betas, eps, decay = self.params.betas, self.params.eps, self.params.weight_decay
        return self.kind(parameters, lr, betas=betas, eps=eps, weight_decay=decay)


class AdamWParams(AdamParams):
    """Parameters of `adamw`."""

    weight_decay: Decay = 0.01
    """How much of the weights a step takes away, times the learning rate."""


@optimizers.add
class AdamW(Adam):
    """Adam, whose weight decay acts on the weights and not through the gradient."""

    name = "adamw"
    paper = "Loshchilov and Hutter, ICLR 2019, arXiv:1711.05101"
    Params = AdamWParams
    params: AdamWParams
    kind = TorchAdamW


# --- what stays between rounds -------------------------------------------------------------------


def remembered(optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str]) -> dict[str, Any]:
    """An optimiser's running means by the parameter's name, not copied.

    Args:
        optimizer: after its steps.
        names: the name of each parameter.
    """
    found: dict[str, Any] = {}
    for tensor, name in names.items():
        kept = optimizer.state.get(tensor, {})
        if means := {key: value for key, value in kept.items() if isinstance(value, Tensor)}:
            found[name] = means
    return found


def remember(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], kept: StateTree
) -> None:
    """Give an optimiser the running means that `remembered` gave; it changes them in place.

    A tensor of another shape than the running mean's is another parameter, and begins without.
    """
    for tensor, name in names.items():
        means = kept.get(name, {})
        if all(m.shape == tensor.shape for key, m in means.items() if key not in ON_THE_CPU):
            optimizer.state[tensor] = {
                key: m if key in ON_THE_CPU else m.to(tensor.device) for key, m in means.items()
            }
