"""Base of methods whose loss reads the client's class counts n_i (FedETF, FedLC)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import Client, ClientState, LocalContext, Trained


class CountsClasses(FedAvg):
    """FedAvg with n_i, the class counts [C] of the round's images, as `memory["counts"]`.

    The counts are part of the memory only during a round or test, and are never stored.
    """

    def begin(self, client: Client, state: ClientState, down: Any) -> LocalContext:
        """Begin as FedAvg does, and count the client's images of each class."""
        local = super().begin(client, state, down)
        memory = {**local.state.memory, "counts": client.class_counts().to(client.device)}
        return replace(local, state=replace(local.state, memory=memory))

    def finish(self, local: LocalContext, trained: Trained) -> tuple[Any, ClientState]:
        """Finish as FedAvg does, and leave the counts out of the next state."""
        update, next_state = super().finish(local, trained)
        memory = {name: value for name, value in next_state.memory.items() if name != "counts"}
        return update, replace(next_state, memory=memory)
