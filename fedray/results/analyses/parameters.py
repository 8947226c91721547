"""Count the numbers that a method keeps, trains and sends, by component, in a real exchange.

One client of each architecture takes part in a round, with one image of each of its classes, so
that all payloads have the size of a run. The counted round is the first, or the second if clients
must receive a payload before they train (FedPCL). Tensors that an optimiser steps count as trained,
tensors that pass the gate as sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedray.config import Experiment
from fedray.core import Client, ClientState, Payload
from fedray.counts import counted
from fedray.data import FederatedData
from fedray.federation import Federation, Reply, RoundExchange
from fedray.models.prompted import PromptedClip
from fedray.runtime.assembly import Assembly
from fedray.runtime.clients import ClientRuntime
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor
from fedray.storage.run import Run, Traffic
from fedray.trees import StateTree, leaves

CPU = torch.device("cpu")
CHEAP = {
    "local_epochs": 1,
    "drop_last": False,
    "finetune_epochs": 0,
    "faults": {},
    "stacked": 1,
}
"""Overrides that save time or allow few images, without changing any count."""
WHOLE = ("prototypes", "logits", "text_embeddings", "images", "statistics")
"""Kinds of payload that form one component each; weights and prompts are split by name."""


@dataclass
class PartCost:
    """Counts of one component of the server or of a client.

    Attributes:
        parameters: stored numbers, including frozen ones.
        trained: numbers that an optimiser steps.
        memory: bytes of the parameters.
        up: numbers that a client sends in a round.
        down: numbers that a client receives in a round.
        first: numbers that a client sends and receives before the first round.
    """

    parameters: int = 0
    trained: int = 0
    memory: int = 0
    up: int = 0
    down: int = 0
    first: int = 0

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Add stored tensors to the counts."""
        for tensor in tensors:
            self.parameters += tensor.numel()
            self.memory += tensor.numel() * tensor.element_size()


@dataclass
class Cost:
    """Counts of the server, or of a client of one architecture.

    Attributes:
        side: "server", or "client (cnn2)".
        components: counts by component.
        up: the client's uploads in a round by kind, as result.json counts them.
        down: the client's downloads in a round, likewise.
    """

    side: str
    components: dict[str, PartCost] = field(default_factory=dict)
    up: Traffic = field(default_factory=Traffic)
    down: Traffic = field(default_factory=Traffic)

    def part(self, name: str) -> PartCost:
        """Return a component, and create it if missing."""
        return self.components.setdefault(name, PartCost())

    @property
    def total(self) -> PartCost:
        """The sum of all components."""
        rows = [asdict(component) for component in self.components.values()]
        return PartCost(**{name: sum(r[name] for r in rows) for name in asdict(PartCost())})

    def tree(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {
            "side": self.side,
            "components": {name: asdict(component) for name, component in self.components.items()},
            "total": asdict(self.total),
            "up_bytes": self.up.bytes,
            "down_bytes": self.down.bytes,
        }


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
        assembly.streams,
    )
    with counted() as tally:
        state = _training_round(federation, executor, sorted(shown))
    for client, cost in shown.items():
        _add_model(cost, executor.model(client))
    server = Cost("server")
    _add_server(server, state, list(tally.trained.values()))
    if federation.server.text is not None:
        server.part("text encoder").hold(federation.server.text.encoder.weights())
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
    for kind in {**client.up.params, **client.down.params}:
        part = client.part(kind)
        part.up, part.down = (int(way.params.get(kind, 0)) for way in (client.up, client.down))
    for cost, work in ((client, run.client_work), (server, run.server_work)):
        cost.part("all").trained = 0 if work is None else round(work.parameters)
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
) -> StateTree:
    """Run the counted round and return the server's state after it."""
    method, everyone = federation.algorithm, federation.plan.joined(0)
    exchange = RoundExchange(federation, 0, everyone)
    state = method.give(method.prepare(method.init_server(exchange.server), exchange), exchange)
    state = method.round(state, RoundExchange(federation, 1, participants))
    if not executor.has_trained:
        executor.reset_traffic()
        state = method.round(state, RoundExchange(federation, 2, participants))
    return state


class _CountingRuntime(ClientRuntime):
    """Client runtime that records the tensors stepped by optimisers.

    Attributes:
        trained: the tensors stepped in the last client step.
        replied: called with the client, round, download, reply and next state of every step.
    """

    trained: list[Tensor]
    replied: Callable[..., None]

    def step(
        self,
        name: str,
        round_: int,
        client: int,
        state: ClientState | None,
        down: Payload | None,
        *,
        is_summed: bool = False,
    ) -> tuple[Reply, ClientState | None]:
        """Run a step as usual, and pass it on to `replied`."""
        reply, after = super().step(name, round_, client, state, down, is_summed=is_summed)
        self.replied(client, round_, down, reply, after)
        return reply, after

    def method_step(self, name: str) -> Callable[..., Any]:
        step = super().method_step(name)

        def recorded(client: Client, state: ClientState, down: Payload | None) -> Any:
            with counted() as tally:
                result = step(client, state, down)
            self.trained = list(tally.trained.values())
            return result

        return recorded


class _CountingExecutor(SerialExecutor):
    """Serial executor that counts the numbers trained and sent by the clients of `shown`.

    Attributes:
        has_trained: True once any client's optimiser has stepped.
    """

    def __init__(self, assembly: Assembly, shown: dict[int, Cost]) -> None:
        super().__init__(assembly, CPU)
        self.has_trained = False
        self._runtime: _CountingRuntime = _CountingRuntime(assembly, CPU)
        self._runtime.replied = self._count
        self._gate = assembly.gate
        self._shown = shown
        self._counted: set[tuple[int, str]] = set()

    def reset_traffic(self) -> None:
        """Reset the counts of a round's traffic; counts before the first round stay."""
        for cost in self._shown.values():
            cost.up, cost.down = Traffic(), Traffic()
            for part in cost.components.values():
                part.up = part.down = 0

    def model(self, client: int) -> nn.Module:
        """Return the client's empty model."""
        return self._runtime.client(client, 1).skeleton.model

    def _count(
        self,
        client: int,
        round_: int,
        down: Payload | None,
        reply: Reply,
        state: ClientState | None,
    ) -> None:
        self.has_trained |= bool(self._runtime.trained)
        if client not in self._shown:
            return
        cost = self._shown[client]
        if down is not None:
            _add_traffic(cost, down, "first" if round_ == 0 else "down")
            if round_:
                cost.down += self._gate.down(down)[1]
        if reply.uplink is not None:
            _add_traffic(cost, reply.uplink, "first" if round_ == 0 else "up")
            if round_:
                cost.up += reply.traffic
        self._count_trained(client, cost, state or ClientState({}), reply.uplink)

    def _count_trained(
        self, client: int, cost: Cost, state: ClientState, sent: Payload | None
    ) -> None:
        """Count each trained tensor once, by its name in the model, the memory or the upload."""
        names = {id(p): name for name, p in self.model(client).named_parameters()}
        named = [(path[0], tensor) for path, tensor in leaves(state.memory)]
        for item in () if sent is None else sent.items():
            field_, _, name = item.place.partition(".")
            if isinstance(item.value, Tensor) and name not in names.values():
                named.append((name or field_, item.value))
        for tensor in self._runtime.trained:
            place = names.get(id(tensor)) or _name_by_shape(tensor, named) or "other"
            if place == "other" or (client, place) not in self._counted:
                self._counted.add((client, place))
                part = cost.part(component_of(place))
                part.trained += tensor.numel()
                if id(tensor) not in names:  # a trained tensor outside the model is stored too
                    part.hold([tensor])


def component_of(place: str, kind: str = "weights") -> str:
    """Return a tensor's component: its kind of payload, or the first part of its name."""
    return kind if kind in WHOLE else place.split(".")[0]


def _add_traffic(cost: Cost, payload: Payload, way: str) -> None:
    for item in payload.items():
        field_, _, name = item.place.partition(".")
        part = cost.part(component_of(name or field_, item.kind))
        numbers = item.value.numel() if isinstance(item.value, Tensor) else 1
        setattr(part, way, getattr(part, way) + numbers)


def _add_model(cost: Cost, model: nn.Module) -> None:
    """Add the client's model, and the frozen towers around prompts."""
    sent, cost.components = cost.components, {}
    for name, parameter in model.named_parameters():
        place = component_of(name)
        if place in sent:  # list the model's components first
            cost.components[place] = sent.pop(place)
        cost.part(place).hold([parameter])
    if isinstance(model, PromptedClip):
        for name, tower in model.clip.towers.items():
            cost.part(name).hold(tower.parameters())
    cost.components |= sent


def _add_server(cost: Cost, state: StateTree, trained: list[Tensor]) -> None:
    """Add the tensors that the server stores between rounds, and count the trained ones."""
    held = []
    for path, tensor in leaves(state):
        place = component_of(path[-1]) if path[0] == "model" else path[0]
        cost.part(place).hold([tensor])
        held.append((place, tensor))
    stepped = Counter((_name_by_shape(t, held) or "text encoder", t.shape) for t in trained)
    for (place, shape), times in stepped.items():  # each server step trains new copies
        copies = sum(name == place and tensor.shape == shape for name, tensor in held)
        cost.part(place).trained += shape.numel() * min(times, max(copies, 1))


def _name_by_shape(tensor: Tensor, named: Sequence[tuple[str, Tensor]]) -> str | None:
    """Return the name of the first tensor of the same shape."""
    return next((name for name, other in named if other.shape == tensor.shape), None)
