"""Count the numbers that a method keeps, trains and sends, in a real exchange.

One client of each architecture takes part in a round, with one image of each of its classes, so
that payloads have the size of a run, unless that depends on training (FedKD's ranks). The counted
round is the first, or the second if clients must receive a payload before they train (FedPCL).
Tensors that an optimiser steps count as trained, tensors that pass the gate as sent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedray.base.counts import counted
from fedray.base.trees import leaves
from fedray.config import Experiment
from fedray.core import Downlinks, Total
from fedray.data import FederatedData
from fedray.federation import Federation, Reply, RoundExchange, Task, changed_state
from fedray.models.prompted import PromptedClip
from fedray.runtime.assembly import Assembly
from fedray.runtime.groups import GroupRunner
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor
from fedray.storage.run import Traffic

CPU = torch.device("cpu")
CHEAP = {
    "local_epochs": 1,
    "drop_last": False,
    "finetune_epochs": 0,
    "faults": {},
    "stacked": 1,
}
"""Overrides that save time or allow few images, without changing any count."""


@dataclass
class Cost:
    """Counts of the server, or of a client of one architecture.

    Attributes:
        side: "server", or "client (cnn2)".
        parameters: stored numbers, including frozen ones.
        memory: bytes of the parameters.
        trained: numbers that an optimiser steps.
        up: the client's uploads in a round by kind, as the rounds count them.
        down: the client's downloads in a round, likewise.
        first: numbers that a client sends and receives before the first round.
    """

    side: str
    parameters: int = 0
    memory: int = 0
    trained: int = 0
    up: Traffic = field(default_factory=Traffic)
    down: Traffic = field(default_factory=Traffic)
    first: int = 0

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Add stored tensors to the counts."""
        for tensor in tensors:
            self.parameters += tensor.numel()
            self.memory += tensor.numel() * tensor.element_size()


def costs(experiment: Experiment) -> list[Cost]:
    """Return the costs of a client of each architecture, then of the server.

    Raises:
        UserError: if data or weights are missing.
        ClientError: if a client's step fails.
    """
    assembly = _reduce_images(experiment)
    names = assembly.models.architectures
    shown = {names.index(name): Cost(f"client ({name})") for name in dict.fromkeys(names)}
    executor = _CountingExecutor(assembly, shown)
    method, server = assembly.algorithm, Cost("server")
    parts = method, executor, assembly.gate, assembly.plan, assembly.server(CPU)
    federation = Federation(*parts)
    exchange = RoundExchange(federation, 0, federation.plan.joined(0))
    state = method.init_server(exchange.server)
    for step in (method.prepare, method.give):
        state = changed_state(state, step(state, exchange))
    for number in (1, 2):
        for cost in shown.values():
            cost.up, cost.down = Traffic(), Traffic()
        with counted() as tally:
            after = method.round(state, RoundExchange(federation, number, sorted(shown)))
        state, server.trained = changed_state(state, after), tally.parameters
        if executor.has_trained:
            break
    server.hold(tensor for _, tensor in leaves(state))
    if method.requires.text:
        server.hold(federation.server.tower.encoder.weights())
    for client, cost in shown.items():
        executor.add_model(client, cost)
    return [*shown.values(), server]


def _reduce_images(experiment: Experiment) -> Assembly:
    """Return the experiment's parts with one training image per class and client.

    Every client has at least two images, because batch normalisation cannot train on one.
    """
    cheap = from_tree(experiment.tree(), CHEAP.items())
    data = Assembly(cheap).data
    validation = data.validation
    few = replace(
        data,
        train=tuple(_one_of_each(data, part, 2) for part in data.train),
        test=tuple(part[:1] for part in data.test),
        eval_sets={},
        validation=None if validation is None else tuple(v[:1] for v in validation),
    )
    return Assembly(cheap, few)


def _one_of_each(data: FederatedData, indices: np.ndarray, least: int) -> np.ndarray:
    """Return the first image of each class, or the first `least` images if there are fewer."""
    _, first = np.unique(data.images.labels[indices], return_index=True)
    return indices[np.sort(first)] if len(first) >= least else indices[:least]


class _CountingExecutor(SerialExecutor):
    """Serial executor that counts the numbers trained and sent by the clients of `shown`.

    Attributes:
        has_trained: True once any client's optimiser has stepped.
    """

    def __init__(self, assembly: Assembly, shown: dict[int, Cost]) -> None:
        super().__init__(assembly, CPU)
        self.has_trained = False
        self._gate = assembly.gate
        self._shown = shown

    def run(
        self, task: Task, name: str, round_: int, down: Downlinks
    ) -> tuple[dict[int, Reply], Total]:
        """Run a step as usual, and count its payloads and trained numbers."""
        replies, total = super().run(task, name, round_, down)
        for client, reply in replies.items():
            self.has_trained |= reply.work.parameters > 0
            if client not in self._shown:
                continue
            cost, payload = self._shown[client], down[client]
            sent = Traffic() if payload is None else self._gate.down(payload)[1]
            if round_ == 0:
                cost.first += int(sum(sent.params.values()) + sum(reply.traffic.params.values()))
            else:
                cost.down = Traffic.total([cost.down, sent])
                cost.up = Traffic.total([cost.up, reply.traffic])
            cost.trained = max(cost.trained, int(reply.work.parameters))
        return replies, total

    def add_model(self, client: int, cost: Cost) -> None:
        """Add a client's model, the frozen towers around prompts, and what it trains besides."""
        assert isinstance(self._runtime, GroupRunner)
        model = self._runtime.client(client, 1).skeleton.model
        cost.hold(model.parameters())
        if isinstance(model, PromptedClip):
            for tower in model.clip.towers.values():
                cost.hold(tower.parameters())
        if cost.trained > cost.parameters:
            cost.memory += 4 * (cost.trained - cost.parameters)
            cost.parameters = cost.trained
