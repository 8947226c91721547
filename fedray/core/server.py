"""The server's side of a step, and the exchanges of a round with clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor

from fedray.core.client import Setting
from fedray.core.payload import Payload
from fedray.core.state import Tensors
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


class Exchange(Protocol):
    """The interface of one round for a method: its participants, and calls of their steps."""

    @property
    def server(self) -> Server:
        """The server's side of this round."""

    @property
    def participants(self) -> Sequence[int]:
        """Ids of the clients that take part in this round, sorted."""

    @property
    def everyone(self) -> Sequence[int]:
        """Ids of all clients that have joined, sorted."""

    @property
    def replied(self) -> Collection[int]:
        """Ids of the clients whose step succeeded in the last call, with or without an upload."""

    def call(self, step: str, down: Downlinks) -> dict[int, Any]:
        """Send each client its payload, run the method's client step, and return the uploads.

        Args:
            step: name of a method `(client, state, down) -> (upload, next state)`.
            down: the payload of each client that is called, by id.

        Returns:
            Uploads sorted by client id, without clients that did not reply.
        """

    def total(self, step: str, down: Downlinks) -> Total:
        """Return the sums over the uploads of a call; of a `SummingMethod`."""
