"""The optimisers of local training: SGD, Adam, AdamW; and what they keep between rounds.

Torch wraps methods of its optimisers so that `torch.compile` leaves them alone, and each wrapper
imports `torch._dynamo` when it is called: 1.5 s and 100 MB in every process. Nothing here is
compiled, so the subclasses below call the wrapped functions (`inspect.unwrap`), with gradients off
as in torch. Steps and numbers are torch's; `differentiable=True` is not supported.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, StrictBool, model_validator
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_pre_hooks

from fedray.config import Frozen
from fedray.core.state import StateTree
from fedray.data.configurable import Configurable
from fedray.registry import Registry

Decay = Annotated[float, Field(ge=0, le=1000)]
"""What pulls weights to zero."""
Beta = Annotated[float, Field(ge=0, lt=1)]
"""How much of a running mean stays."""

ON_THE_CPU = ("step",)
"""State that torch's optimisers keep on the CPU, also for parameters on a GPU."""


class OptimizerParams(Frozen):
    """Parameters of every optimiser."""

    keep: StrictBool = False
    """Whether a client's running means (momentum) stay between its rounds, as part of its state;
    false: every round begins without."""


class Optimizer(Configurable, ABC):
    """Makes the optimiser of a client's local training; the learning rate is the key `lr`."""

    paper: ClassVar[str] = "-"
    """Authors, venue and arXiv number."""
    Params: ClassVar[type[Frozen]] = OptimizerParams
    params: OptimizerParams

    @abstractmethod
    def make(self, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
        """Return an optimiser of `parameters`, without memory."""


optimizers: Registry[type[Optimizer]] = Registry("optimizer", "fedray.core.optimizers")


class _NotCompiled(torch.optim.Optimizer):
    """Methods of torch's optimisers without the wrappers for its compiler."""

    add_param_group: Any = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad: Any = inspect.unwrap(torch.optim.Optimizer.zero_grad)


class TorchSGD(_NotCompiled, torch.optim.SGD):
    """`torch.optim.SGD`."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take torch's step."""
        return _SGD_STEP(self, closure)


class TorchAdam(_NotCompiled, torch.optim.Adam):
    """`torch.optim.Adam`."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take torch's step."""
        return _ADAM_STEP(self, closure)


class TorchAdamW(TorchAdam, torch.optim.AdamW):
    """`torch.optim.AdamW`, whose step is Adam's."""


_SGD_STEP: Any = inspect.unwrap(torch.optim.SGD.step)
_ADAM_STEP: Any = inspect.unwrap(torch.optim.Adam.step)


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
        """Return torch's SGD, without dampening."""
        momentum, decay = self.params.momentum, self.params.weight_decay
        parameters = list(parameters)
        if not momentum and not decay and all(p.device.type == "cpu" for p in parameters):
            return PlainSGD(parameters, lr)
        return TorchSGD(
            parameters, lr, momentum=momentum, weight_decay=decay, nesterov=self.params.nesterov
        )


class PlainSGD(TorchSGD):
    """w <- w - lr * gradient on a CPU, bit for bit as torch's SGD.

    The profiler's marks and the choice among kernels in torch's SGD take several times as long as
    the step of a small model.
    """

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Set all gradients to None."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step."""
        for hook in _global_optimizer_pre_hooks.values():  # tests count the trained parameters
            hook(self, (), {})
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.add_(parameter.grad, alpha=-group["lr"])

    step.hooked = True  # type: ignore[attr-defined]  # torch does not wrap a step with this mark


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
        """Return torch's Adam, or AdamW."""
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
    """Return an optimiser's running means by the name of the parameter, not copied.

    Args:
        optimizer: after its steps.
        names: the name of each parameter.
    """
    means = {
        name: {k: v for k, v in optimizer.state.get(tensor, {}).items() if isinstance(v, Tensor)}
        for tensor, name in names.items()
    }
    return {name: kept for name, kept in means.items() if kept}


def remember(
    optimizer: torch.optim.Optimizer, names: Mapping[Tensor, str], kept: StateTree
) -> None:
    """Give an optimiser the running means from `remembered`; the optimiser changes them in place.

    A tensor with a shape unlike its running mean's is another parameter, and starts without one.
    """
    for tensor, name in names.items():
        means = kept.get(name, {})
        if all(m.shape == tensor.shape for key, m in means.items() if key not in ON_THE_CPU):
            optimizer.state[tensor] = {
                key: m if key in ON_THE_CPU else m.to(tensor.device) for key, m in means.items()
            }
