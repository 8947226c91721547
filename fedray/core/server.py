"""What a server step sees, and how a round talks to clients."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor

from fedray.core.client import Setting
from fedray.core.payload import Payload
from fedray.core.state import Tensors
from fedray.errors import UserError
from fedray.models import Classifier
from fedray.streams import Streams

if TYPE_CHECKING:
    from fedray.language.tower import TextTower

Downlinks: TypeAlias = Mapping[int, Payload | None]
"""What each client is sent, by client id; one object for many is sent as one."""
Uplinks: TypeAlias = Mapping[int, Any]
"""What clients uploaded, sorted by client id."""


@dataclass(frozen=True)
class Server:
    """What a server step sees.

    Attributes:
        round: the round, from 1; 0 is before the first.
        setting: what both sides know.
        text: the text encoder with the classes' texts, for methods that require text.
        device: where the server computes.
        initial: the initial weights of an architecture.
        architectures: each client's architecture.
        empty: an empty model of an architecture, to ask about its structure.
        joined: ids of the clients that are part of the federation by this round, sorted.
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
        """Ids of the clients that are not part of the federation yet."""
        return range(len(self.joined), self.setting.clients)

    @property
    def tower(self) -> TextTower:
        """The text tower of a method that requires text."""
        if self.text is None:
            raise RuntimeError("this method does not require text, so it has no text tower")
        return self.text

    def check_width(self, vectors: Tensor) -> None:
        """Check that text vectors [C, V] are as wide as the features that align with them.

        Raises:
            UserError: with the key to set.
        """
        self.tower.check_width(vectors.shape[1], self.setting.feature_dim)

    @property
    def architecture(self) -> str:
        """The architecture of a method whose clients all have the same.

        Raises:
            UserError: when they have several.
        """
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
        """An empty model of the one architecture.

        Raises:
            UserError: when there are several.
        """
        return self.empty(self.architecture)


class Exchange(Protocol):
    """One round as a method sees it: who takes part, and a way to call their steps."""

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
        """Send each client its payload, run the method's client step, return the replies.

        Args:
            step: name of a method `(client, state, down) -> (uplink, next state)`.
            down: what each client gets; its keys are the clients that are called.

        Returns:
            Uplinks sorted by client id; a client that did not reply is not in it.
        """
