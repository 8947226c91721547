"""The server's side of a step, and the exchanges of a round with clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from fedray.core.client import Setting
from fedray.core.payload import Payload
from fedray.core.state import ServerState, Tensors
from fedray.core.sums import Total
from fedray.errors import UserError
from fedray.models import Classifier
from fedray.streams import Streams

if TYPE_CHECKING:
    from fedray.language.tower import TextTower

Downlinks: TypeAlias = Mapping[int, Payload | None]
"""The payload of each client by id; clients that share an object share one transfer."""
Uplinks: TypeAlias = Mapping[int, Any]
"""The uploads of clients, sorted by client id."""


@dataclass(frozen=True)
class Server:
    """The server's side of a step.

    Attributes:
        round: the round, from 1; 0 is before the first.
        setting: facts that server and clients share.
        text: the text encoder with the classes' texts, for methods that require text.
        device: the device of the server's steps.
        initial: returns the initial weights of an architecture.
        architectures: each client's architecture.
        empty: returns an empty model of an architecture.
        joined: ids of the clients that have joined by this round, sorted.
    """

    round: int
    setting: Setting
    text: TextTower | None
    device: torch.device
    initial: Callable[[str], Tensors]
    architectures: tuple[str, ...]
    empty: Callable[[str], Classifier]
    joined: Sequence[int] = ()

    @property
    def streams(self) -> Streams:
        """The experiment's random streams."""
        return self.setting.streams

    @property
    def newcomers(self) -> Sequence[int]:
        """Ids of the clients that have not joined yet."""
        return range(len(self.joined), self.setting.clients)

    @property
    def tower(self) -> TextTower:
        """The text tower of a method that requires text."""
        if self.text is None:
            raise RuntimeError("this method does not require text, so it has no text tower")
        return self.text

    def check_width(self, vectors: Tensor) -> None:
        """Raise a UserError unless text vectors [C, V] are as wide as the features."""
        self.tower.check_width(vectors.shape[1], self.setting.feature_dim)

    @property
    def architecture(self) -> str:
        """The architecture of all clients; a UserError if they have several."""
        distinct = sorted(set(self.architectures))
        if len(distinct) > 1:
            raise UserError(
                "this method shares whole models, but model.group gives the clients "
                f"{len(distinct)} architectures ({', '.join(distinct)}); set model.group to one "
                "architecture, for example cnn4"
            )
        return distinct[0]

    @property
    def model(self) -> Classifier:
        """An empty model of the clients' one architecture; a UserError if they have several."""
        return self.empty(self.architecture)


class Exchange(ABC):
    """One round for a method: its participants, calls of their steps, and gifts that they keep.

    Attributes:
        server: the server's side of this round.
        participants: ids of the clients that take part in this round, sorted.
        everyone: ids of all clients that have joined, sorted.
        replied: ids of the clients whose step succeeded in the last call, with or without an
            upload.
        absent: ids of the clients that a call of this round did not reach.
    """

    server: Server
    participants: Sequence[int]
    everyone: Sequence[int]
    replied: Collection[int]
    absent: Collection[int]

    @abstractmethod
    def call(self, step: str, down: Downlinks) -> dict[int, Any]:
        """Send each client its payload, run the method's client step, and return the uploads.

        Args:
            step: name of a method `(client, state, down) -> (upload, next state)`.
            down: the payload of each client that is called, by id.

        Returns:
            Uploads sorted by client id, without clients that did not reply.
        """

    @abstractmethod
    def total(self, step: str, down: Downlinks) -> Total:
        """Call as `call` does, and return the sums over the uploads; for a `SummingMethod`."""

    def give(
        self,
        state: ServerState,
        name: str,
        payloads: Downlinks,
        *,
        version: int = 0,
        step: str = "keep",
    ) -> ServerState:
        """Send a gift to the clients that do not hold it; return the state that notes who does.

        A client holds the gift once its step has succeeded. A client that fails or is absent gets
        the gift when the method gives it again.

        Args:
            state: the server's state; its entry "given" is `{name: versions [N]}`.
            name: the gift's name.
            payloads: the gift of each client that needs it, by id.
            version: number of the gift's content; clients with another one get this one.
            step: the client step that receives the gift; see `Algorithm.keep`.
        """
        held = held_versions(state, name, self.server.setting)
        lacking = {
            client: payload
            for client, payload in payloads.items()
            if held[client] != version and client not in self.absent
        }
        if not lacking:
            return state
        self.call(step, lacking)
        return self.acknowledge(state, name, version)

    def acknowledge(self, state: ServerState, name: str, version: int) -> ServerState:
        """Return the state that notes a gift's version for all who replied to the last call."""
        if not self.replied:
            return state
        held = held_versions(state, name, self.server.setting).clone()
        held[sorted(self.replied)] = version
        return {**state, "given": {**state.get("given", {}), name: held}}


def held_versions(state: ServerState, name: str, setting: Setting) -> Tensor:
    """Return the version of a gift that each client holds, int64 [N]; -1 for none."""
    nobody = torch.full((setting.clients,), -1)
    held: Tensor = state.get("given", {}).get(name, nobody)
    return held
