"""What a method keeps, trains and sends, by component: counted in real exchanges.

One client of each architecture takes part in a round, with an image of each class that it holds:
everything has the size that it has in a run. It is the first, or the second where clients train
nothing before they have been sent something (FedPCL). Trained is what an optimiser steps; sent is
what passes the gate.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from fedray.config import Experiment
from fedray.core import ClientState, Payload
from fedray.core.state import StateTree, leaves
from fedray.data import FederatedData
from fedray.federation import Federation, Reply, RoundExchange
from fedray.models.prompted import PromptedClip
from fedray.records import Traffic
from fedray.runtime.assembly import Assembly
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor

CPU = torch.device("cpu")
CHEAP = {"local_epochs": 1, "drop_last": False, "finetune_epochs": 0, "faults": {}}
"""What changes no count, and costs time or refuses few images."""
WHOLE = ("prototypes", "logits", "text_embeddings", "images", "statistics")
"""Kinds of payload that are components by themselves; weights and prompts have names."""


@dataclass
class Component:
    """One part of what a side has or sends, in numbers; `memory` in bytes.

    Attributes:
        parameters: that it holds, those that stay as they are included.
        trained: of these, those that an optimiser steps.
        memory: of the parameters.
        up: that a client sends in a round.
        down: that a client is sent in a round.
        first: that a client sends and is sent before the first round.
    """

    parameters: int = 0
    trained: int = 0
    memory: int = 0
    up: int = 0
    down: int = 0
    first: int = 0

    def hold(self, tensors: Iterable[Tensor]) -> None:
        """Count tensors that the side holds."""
        for tensor in tensors:
            self.parameters += tensor.numel()
            self.memory += tensor.numel() * tensor.element_size()


@dataclass
class Cost:
    """What the server, or a client of one architecture, has, trains and sends.

    Attributes:
        side: "server", or "client 0 (cnn2)".
        components: by name.
        up: the client's traffic in a round by kind, as result.json counts it.
        down: likewise.
    """

    side: str
    components: dict[str, Component] = field(default_factory=dict)
    up: Traffic = field(default_factory=Traffic)
    down: Traffic = field(default_factory=Traffic)

    def part(self, name: str) -> Component:
        """A component, new where it was not there."""
        return self.components.setdefault(name, Component())

    @property
    def total(self) -> Component:
        """The sum of all components."""
        rows = [asdict(each) for each in self.components.values()]
        return Component(**{name: sum(r[name] for r in rows) for name in asdict(Component())})

    def tree(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "side": self.side,
            "components": {name: asdict(each) for name, each in self.components.items()},
            "total": asdict(self.total),
            "up_bytes": self.up.bytes,
            "down_bytes": self.down.bytes,
        }


def costs(experiment: Experiment) -> list[Cost]:
    """What a client of each architecture costs, then what the server does.

    Raises:
        UserError: when data or weights are not there.
        ClientError: when a client's step fails.
    """
    assembly = with_few_images(experiment)
    names = assembly.models.architectures
    shown = {names.index(name): Cost(f"client ({name})") for name in dict.fromkeys(names)}
    executor = _Watched(assembly, shown)
    federation = Federation(
        assembly.algorithm,
        executor,
        assembly.gate,
        assembly.plan,
        assembly.server(CPU),
        assembly.streams,
    )
    with stepped_tensors() as seen:
        state = _training_round(federation, executor, sorted(shown))
    for client, cost in shown.items():
        _add_model(cost, executor.model(client))
    server = Cost("server")
    _add_server(server, state, [seen[each] for each in seen if each not in executor.seen])
    if federation.server.text is not None:
        server.part("text encoder").hold(federation.server.text.encoder.weights())
    return [*shown.values(), server]


def with_few_images(experiment: Experiment) -> Assembly:
    """The experiment's parts, where every client has an image of each of its classes, at least two.

    Batch normalisation cannot train on one.
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
    """The first image of each class, in their order; at least so many, where there are as many."""
    _, first = np.unique(data.images.labels[indices], return_index=True)
    return indices[np.sort(first)] if len(first) >= least else indices[:least]


def _training_round(
    federation: Federation, executor: _Watched, participants: Sequence[int]
) -> StateTree:
    """The server's state after what precedes round 1, and the round that is counted."""
    method, everyone = federation.algorithm, federation.plan.joined(0)
    exchange = RoundExchange(federation, 0, everyone)
    state = method.give(method.prepare(method.init_server(exchange.server), exchange), exchange)
    state = method.round(state, RoundExchange(federation, 1, participants))
    if not executor.seen:
        executor.count_anew()
        state = method.round(state, RoundExchange(federation, 2, participants))
    return state


@contextmanager
def stepped_tensors() -> Iterator[dict[int, Tensor]]:
    """Collect, by their ids, the tensors that optimisers step because they have a gradient."""
    seen: dict[int, Tensor] = {}

    def note(optimizer: Optimizer, *_: Any) -> None:
        for group in optimizer.param_groups:
            seen.update({id(each): each for each in group["params"] if each.grad is not None})

    handle = register_optimizer_step_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


class _Watched(SerialExecutor):
    """Runs clients in this process and counts what those that are shown train and send.

    Attributes:
        seen: what any client's optimiser has stepped, by id.
    """

    def __init__(self, assembly: Assembly, shown: dict[int, Cost]) -> None:
        super().__init__(assembly, CPU)
        self.seen: dict[int, Tensor] = {}
        self._gate = assembly.gate
        self._shown = shown
        self._counted: set[tuple[int, str]] = set()

    def _step(self, name: str, round_: int, client: int, down: Payload | None) -> Reply:
        with stepped_tensors() as seen:
            reply = super()._step(name, round_, client, down)
        self.seen |= seen
        if client in self._shown:
            self._note(client, round_, down, reply, list(seen.values()))
        return reply

    def count_anew(self) -> None:
        """Forget what a round has sent; what preceded the first round stays."""
        for cost in self._shown.values():
            cost.up, cost.down = Traffic(), Traffic()
            for part in cost.components.values():
                part.up = part.down = 0

    def model(self, client: int) -> nn.Module:
        """The client's empty model."""
        return self._runtime.client(client, 1).skeleton.model

    def _note(
        self, client: int, round_: int, down: Payload | None, reply: Reply, trained: list[Tensor]
    ) -> None:
        cost = self._shown[client]
        if down is not None:
            _add_traffic(cost, down, "first" if round_ == 0 else "down")
            if round_:
                cost.down += self._gate.down(down)[1]
        if reply.uplink is not None:
            _add_traffic(cost, reply.uplink, "first" if round_ == 0 else "up")
            if round_:
                cost.up += reply.traffic
        self._note_trained(client, cost, trained, reply.uplink)

    def _note_trained(
        self, client: int, cost: Cost, trained: list[Tensor], sent: Payload | None
    ) -> None:
        """Count each tensor once, by the model's name for it or that of what is kept or sent."""
        names = {id(p): name for name, p in self.model(client).named_parameters()}
        state = self.states.get(client, ClientState({}))
        named = [(path[0], tensor) for path, tensor in leaves(state.memory)]
        for item in () if sent is None else sent.items():
            field_, _, name = item.place.partition(".")
            if isinstance(item.value, Tensor) and name not in names.values():
                named.append((name or field_, item.value))
        for tensor in trained:
            place = names.get(id(tensor)) or _alike(tensor, named) or "other"
            if place == "other" or (client, place) not in self._counted:
                self._counted.add((client, place))
                part = cost.part(component_of(place))
                part.trained += tensor.numel()
                if id(tensor) not in names:  # it holds what it trains beside the model
                    part.hold([tensor])


def component_of(place: str, kind: str = "weights") -> str:
    """What a tensor belongs to: the first part of its name, or the kind of what travels."""
    return kind if kind in WHOLE else place.split(".")[0]


def _add_traffic(cost: Cost, payload: Payload, way: str) -> None:
    for item in payload.items():
        field_, _, name = item.place.partition(".")
        part = cost.part(component_of(name or field_, item.kind))
        numbers = item.value.numel() if isinstance(item.value, Tensor) else 1
        setattr(part, way, getattr(part, way) + numbers)


def _add_model(cost: Cost, model: nn.Module) -> None:
    """What the client holds: its model, and the frozen towers around prompts."""
    sent, cost.components = cost.components, {}
    for name, parameter in model.named_parameters():
        place = component_of(name)
        if place in sent:  # the model's own first, in its order
            cost.components[place] = sent.pop(place)
        cost.part(place).hold([parameter])
    if isinstance(model, PromptedClip):
        for name, tower in model.clip.towers.items():
            cost.part(name).hold(tower.parameters())
    cost.components |= sent


def _add_server(cost: Cost, state: StateTree, trained: Sequence[Tensor]) -> None:
    """What the server holds between rounds, and of that what it trains."""
    held = []
    for path, tensor in leaves(state):
        place = component_of(path[-1]) if path[0] == "model" else path[0]
        cost.part(place).hold([tensor])
        held.append((place, tensor))
    stepped = Counter((_alike(t, held) or "text encoder", t.shape) for t in trained)
    for (place, shape), times in stepped.items():  # every server step trains copies of its own
        there = sum(name == place and tensor.shape == shape for name, tensor in held)
        cost.part(place).trained += shape.numel() * min(times, max(there, 1))


def _alike(tensor: Tensor, named: Sequence[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor of that shape."""
    return next((name for name, other in named if other.shape == tensor.shape), None)
