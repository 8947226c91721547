"""Count the numbers that a method keeps, trains and sends, in a real exchange.

One client of each architecture takes part in a round, with one image of each of its classes, so
that payloads have the size of a run, unless that depends on training (FedKD's ranks). The counted
round is the first, or the second if clients must receive a payload before they train (FedPCL).
Tensors that an optimiser steps count as trained, tensors that pass the gate as sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedray.base.counts import counted
from fedray.base.trees import StateTree, leaves
from fedray.config import Experiment
from fedray.core import Downlinks, Total
from fedray.data import FederatedData
from fedray.federation import Federation, Reply, RoundExchange, Task, changed_state
from fedray.models.prompted import PromptedClip
from fedray.runtime.assembly import Assembly
from fedray.runtime.groups import GroupRunner
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor
from fedray.storage.run import Run, Traffic

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

    def tree(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        traffic = {
            f"{way}_{unit}": getattr(getattr(self, way), unit)
            for way in ("up", "down")
            for unit in ("params", "bytes")
        }
        counts = {
            name: getattr(self, name) for name in ("parameters", "memory", "trained", "first")
        }
        return {"side": self.side, **counts, **traffic}


def costs(experiment: Experiment) -> list[Cost]:
    """Return the costs of a client of each architecture, then of the server.

    Raises:
        UserError: if data or weights are missing.
        ClientError: if a client's step fails.
    """
    assembly = reduce_images(experiment)
    names = assembly.models.architectures
    shown = {names.index(name): Cost(f"client ({name})") for name in dict.fromkeys(names)}
    executor = _CountingExecutor(assembly, shown)
    federation = Federation(
        assembly.algorithm,
        executor,
        assembly.gate,
        assembly.plan,
        assembly.server(CPU),
    )
    server = Cost("server")
    state, server.trained = _training_round(federation, executor, sorted(shown))
    server.hold(tensor for _, tensor in leaves(state))
    if assembly.algorithm.requires.text:
        server.hold(federation.server.tower.encoder.weights())
    for client, cost in shown.items():
        executor.add_model(client, cost)
    return [*shown.values(), server]


def recorded_costs(run: Run) -> list[Cost]:
    """Return what a client and the server trained and sent in a run's last round, as recorded.

    Numbers of a client are means over the round's participants, by kind of payload.
    """
    done, client, server = run.rounds[-1], Cost("client"), Cost("server")
    count = len(done.participants) or 1
    client.up, client.down = (
        Traffic(*({kind: round(n / count) for kind, n in of.items()} for of in parts))
        for parts in ((way.params, way.bytes) for way in (done.up, done.down))
    )
    for cost, work in ((client, run.work("client")), (server, run.work("server"))):
        cost.trained = 0 if work is None else round(work.parameters)
    return [client, server]


def reduce_images(experiment: Experiment) -> Assembly:
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


def _training_round(
    federation: Federation, executor: _CountingExecutor, participants: Sequence[int]
) -> tuple[StateTree, int]:
    """Run the counted round; return the server's state after it, and what the server trains."""
    method, everyone = federation.algorithm, federation.plan.joined(0)
    exchange = RoundExchange(federation, 0, everyone)
    state = method.init_server(exchange.server)
    for step in (method.prepare, method.give):
        state = changed_state(state, step(state, exchange))
    for number in (1, 2):
        executor.reset_traffic()
        with counted() as tally:
            after = method.round(state, RoundExchange(federation, number, participants))
        state = changed_state(state, after)
        if executor.has_trained:
            break
    return state, tally.parameters


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

    def reset_traffic(self) -> None:
        """Reset the counts of a round's traffic; counts before the first round stay."""
        for cost in self._shown.values():
            cost.up, cost.down = Traffic(), Traffic()

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
