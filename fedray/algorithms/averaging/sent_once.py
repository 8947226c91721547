"""FedAvg of clients that keep tensors from before the first round: a simplex, texts, a head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import (
    Client,
    ClientState,
    Downlinks,
    Exchange,
    HyperParameters,
    LocalContext,
    Server,
    ServerState,
)


class SentOnce(FedAvg):
    """FedAvg that sends further tensors to all clients once, in `prepare`.

    A client whose `prepare` step failed gets the tensors with every model, for training and for
    tests, until one of its training steps succeeds. The server's state: `holds`, the clients that
    have the tensors [N].
    """

    with_kept: ClassVar[Any]
    """The payload of the model and, in its field `kept`, the tensors."""

    def kept(self, server: Server) -> Mapping[str, Tensor]:
        """Return the tensors that every client keeps, by name; the same in every round."""
        raise NotImplementedError

    def keep(self, state: ClientState, kept: Mapping[str, Tensor]) -> ClientState:
        """Return the client's state with the tensors of `kept` in its memory."""
        return ClientState(state.model, {**state.memory, **kept})

    def init_server(self, server: Server) -> ServerState:
        """Return the initial weights; no client has the tensors yet."""
        nobody = torch.zeros(self.setting.clients, dtype=torch.bool)
        return {**super().init_server(server), "holds": nobody}

    def round(self, state: ServerState, exchange: Exchange) -> ServerState:
        """Run one round; clients that trained in it have the tensors."""
        after = super().round(state, exchange)
        return {**after, "holds": state["holds"] | self.replied(exchange)}

    def replied(self, exchange: Exchange) -> Tensor:
        """Return which clients' steps succeeded in the last call [N]."""
        mask = torch.zeros(self.setting.clients, dtype=torch.bool)
        mask[sorted(exchange.replied)] = True
        return mask

    @classmethod
    def means_equally(cls, hparams: HyperParameters) -> bool:
        """Return True under FedAvg's condition: `round` sees uploads as FedAvg does."""
        return super().means_equally(hparams)

    def downlink(self, state: ServerState, clients: Sequence[int], server: Server) -> Downlinks:
        """Return the model, and with it the tensors for clients that do not have them."""
        down = super().downlink(state, clients, server)
        lacking = [client for client in clients if not state["holds"][client]]
        if not lacking:
            return down
        whole = self.with_kept(**vars(down[lacking[0]]), kept=self.kept(server))
        return {**down, **dict.fromkeys(lacking, whole)}

    def begin(self, client: Client, state: ClientState, down: Any) -> LocalContext:
        """Begin like FedAvg; keep tensors that come with the model."""
        if isinstance(down, self.with_kept):
            state = self.keep(state, down.kept)
        return super().begin(client, state, down)
