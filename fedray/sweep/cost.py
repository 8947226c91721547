"""How long a trial takes beside another, before either has run: roughly, from its experiment."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fedray.sweep.ledger import Trial, TrialBook

if TYPE_CHECKING:
    from fedray.config import Experiment
    from fedray.runtime.assembly import Assembly

log = logging.getLogger(__name__)

CLIENT_SECONDS = 2e-3
"""Of one client's step or test besides its batches, on a laptop's core."""
BATCH_SECONDS = 4e-4
"""Of one batch besides its arithmetic."""
FLOPS = 2e10
"""Arithmetic of a core in a second."""
TEXT_SECONDS = 1e-2
"""Of one text through a tower of width 384 (MiniLM), forward and backward."""


class Costs:
    """The estimates for trials; configurations that cost the same are looked at once.

    Args:
        book: the trials.
    """

    def __init__(self, book: TrialBook) -> None:
        self._book = book
        self._known: dict[str, float] = {}

    def round(self, trial: Trial) -> float:
        """Seconds of one round of all seeds, of a trial alone on a laptop's core; roughly.

        Of an experiment that cannot be looked at, as of the others: the trial will say what is
        wrong with it.
        """
        experiment = self._book.experiment_of(trial)
        method = experiment.algorithm
        key = f"{method.name} {method.params.get('server_epochs')} " + experiment.model_dump_json(
            include=_DECIDES, by_alias=True
        )
        if key not in self._known:
            try:
                self._known[key] = round_seconds(experiment)
            except Exception as error:
                log.debug("trial %d cannot be estimated: %s", trial.number, error)
                return fmean(self._known.values() or [1.0]) * self._book.seeds_of_a_trial
        return self._known[key] * self._book.seeds_of_a_trial

    def rounds(self, trial: Trial) -> int:
        """How many rounds it has, the one before training apart."""
        return self._book.experiment_of(trial).rounds

    def whole(self, trial: Trial) -> float:
        """Seconds of all its rounds; roughly."""
        return self.round(trial) * self.rounds(trial)

    def in_order(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials in the order in which they should begin, see `starting_order`."""
        order = starting_order([self.whole(trial) for trial in trials])
        return [trials[position] for position in order]


def starting_order(costs: Sequence[float]) -> list[int]:
    """Positions in an order that ends together: the longest first, of equals the first.

    A shortest one comes second: how long it takes, beside the longest, tells how long all others
    will take, and it hardly matters where it is placed.
    """
    order = sorted(range(len(costs)), key=lambda position: (-costs[position], position))
    if len(order) > 2 and costs[order[-1]] < costs[order[0]]:
        order.insert(1, order.pop())
    return order


_DECIDES = {
    "participation",
    "local_epochs",
    "batch_size",
    "drop_last",
    "eval_every",
    "finetune_epochs",
    "data",
    "model",
    "text",
    "evaluation",
    "workers",
}
"""What of an experiment, besides its method, the time of a round depends on."""


def round_seconds(experiment: Experiment) -> float:
    """Seconds of one round on a laptop's core; roughly.

    Clients' steps by the batches that they train on and the arithmetic of their models, tests by
    images, and the server's own training by its epochs over the classes' texts.

    Raises:
        UserError: when the experiment's data cannot be had.
    """
    from fedray.runtime.assembly import Assembly

    assembly = Assembly(experiment)
    data, models = assembly.data, assembly.models
    flops = {name: _forward_flops(assembly, name) for name in dict.fromkeys(models.architectures)}
    trained = tested = 0.0
    for client, architecture in enumerate(models.architectures):
        image = flops[architecture] / FLOPS
        images = experiment.local_epochs * len(data.train[client])
        batches = max(images / experiment.batch_size, 1)
        trained += CLIENT_SECONDS + batches * BATCH_SECONDS + 3 * image * images
        tested += CLIENT_SECONDS + image * len(data.test[client])
    seconds = trained * experiment.participation + tested / max(experiment.eval_every, 1)
    return seconds / experiment.workers + _server_seconds(assembly)


def _forward_flops(assembly: Assembly, architecture: str) -> float:
    """Arithmetic of one image through a model's convolutions and linear maps.

    Of a prompted CLIP it is a guess.
    """
    from fedray.models import Pixels

    if assembly.algorithm.requires.prompts:
        return 1e9
    found: list[float] = []

    def note(layer: nn.Module, _: Any, output: torch.Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        found.append(2.0 * weight[0].numel() * output.numel())

    model = assembly.models.empty(architecture).eval()
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(note)
    with torch.no_grad():
        model(Pixels.of(torch.zeros(1, *assembly.data.images.shape)))
    return sum(found)


def _server_seconds(assembly: Assembly) -> float:
    """The server's own epochs, if the method has any, over the texts of all classes."""
    epochs = float(getattr(assembly.algorithm.hp, "server_epochs", 0) or 0)
    if not assembly.algorithm.requires.text:
        return epochs * BATCH_SECONDS * assembly.setting.clients
    width = assembly.setting.feature_dim / 384
    return (epochs + 1) * assembly.setting.num_classes * TEXT_SECONDS * width**2
