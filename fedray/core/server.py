"""The arguments of a server step, and the exchanges of a round with clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from fedray.base.errors import UserError
from fedray.base.streams import Streams
from fedray.base.trees import ServerState, Tensors
from fedray.core.client import Samples, Setting
from fedray.core.payload import Payload
from fedray.core.sums import Total
from fedray.models import Classifier

if TYPE_CHECKING:
    from fedray.language.tower import TextTower

Downlinks: TypeAlias = Mapping[int, Payload | None]
"""The download of each client by id; clients that share an object share one transfer."""
Uplinks: TypeAlias = Mapping[int, Any]
"""The uploads of clients, sorted by client id."""


@dataclass(frozen=True)
class Server:
    """The server in a round, with its text tower, models and random streams.

    Attributes:
        round: the round, from 1; 0 is before the first round.
        setting: facts of the federation that server and clients share.
        tower: the text tower with the texts of the classes, if the method requires text.
        device: the device of the server's steps.
        initial: returns the initial weights of an architecture.
        architectures: the architecture of each client.
        empty: returns a model of an architecture, with weights that are not initialised.
        joined: ids of the clients that have joined by this round, sorted.
        public: the public images, if the method's `requires.public` is set.
    """

    round: int
    setting: Setting
    tower: TextTower
    device: torch.device
    initial: Callable[[str], Tensors]
    architectures: tuple[str, ...]
    empty: Callable[[str], Classifier]
    joined: Sequence[int] = ()
    public: Samples = None  # type: ignore[assignment]

    @property
    def streams(self) -> Streams:
        """The experiment's random streams."""
        return self.setting.streams

    @property
    def newcomers(self) -> Sequence[int]:
        """Ids of the clients that have not joined yet."""
        return range(len(self.joined), self.setting.clients)

    def check_width(self, vectors: Tensor) -> None:
        """Raise a UserError unless the width of text vectors [C, V] is `model.feature_dim`."""
        self.tower.check_width(vectors.shape[1], self.setting.feature_dim)

    @property
    def architecture(self) -> str:
        """The architecture of all clients; a UserError if clients have different ones.

        If models differ in size alone (`PromptMethod.size`), it is the first client's.
        """
        distinct = sorted({name.partition("/")[0] for name in set(self.architectures)})
        if len(distinct) > 1:
            raise UserError(
                "this method shares whole models, but model.group gives the clients "
                f"{len(distinct)} architectures ({', '.join(distinct)}); set model.group to one "
                "architecture, for example cnn4"
            )
        return self.architectures[0]

    @property
    def model(self) -> Classifier:
        """A model of the clients' architecture; a UserError if clients have different ones."""
        return self.empty(self.architecture)


class Exchange(ABC):
    """The communication of a method with its clients in one round.

    Attributes:
        server: the server in this round.
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
        """Send clients their downloads, run the step of this name, and return the uploads.

        These are sorted by client, without clients that did not reply.
        """

    @abstractmethod
    def total(self, step: str, down: Downlinks) -> Total:
        """Call clients as `call` does, and return the sums of their uploads, as these declare."""

    def give(
        self, state: ServerState, step: str, payloads: Downlinks, *, version: int = 0
    ) -> ServerState:
        """Send a gift to the clients that do not hold it; return the state with their versions.

        A client holds the gift once its step has succeeded. A client that is absent receives the
        gift in the next call of `give`.

        Args:
            state: the server's state; its entry "given" is `{step: versions [N]}`.
            step: the client step that receives the gift; see `declared.gift`.
            payloads: the gift of each client that needs it, by id.
            version: the version of the gift; clients that hold another version receive this one.
        """
        held = held_versions(state, step, self.server.setting).clone()
        due = [c for c in payloads if held[c] != version and c not in self.absent]
        if due:
            self.call(step, {client: payloads[client] for client in due})
        if not (due and self.replied):
            return state
        held[sorted(self.replied)] = version
        return {**state, "given": {**state.get("given", {}), step: held}}


def held_versions(state: ServerState, step: str, setting: Setting) -> Tensor:
    """Return the version of a step's gift that each client holds, int64 [N]; -1 for none."""
    nobody = torch.full((setting.clients,), -1)
    held: Tensor = state.get("given", {}).get(step, nobody)
    return held
