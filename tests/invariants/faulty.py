"""Methods whose clients misbehave, and workers that know them."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path
from typing import Any

import torch

from fedray.algorithms.personalised.local import Local
from fedray.algorithms.prototypes.fedproto import FedProto
from fedray.base.errors import UserError
from fedray.core import (
    Client,
    ClientState,
    LocalContext,
    Server,
    ServerState,
    Uplinks,
    algorithms,
)
from fedray.runtime import ray_executor, server


class FullDisk(Local):
    """Client 1 finds no room on the disk in round 2."""

    name = "full_disk"

    def client_update(self, client: Client, state: ClientState, down: Any) -> Any:
        if (client.id, client.round) == (1, 2):
            raise OSError(errno.ENOSPC, "No space left on device", "/scratch/file")
        return super().client_update(client, state, down)


class Broken(Local):
    """Client 1 raises in round 2."""

    name = "broken"

    def client_update(self, client: Client, state: ClientState, down: Any) -> Any:
        if (client.id, client.round) == (1, 2):
            raise ArithmeticError("no such thing")
        return super().client_update(client, state, down)


class BrokenTest(Local):
    """Client 1's model cannot be tested in round 2."""

    name = "broken_test"

    def client_update(self, client: Client, state: ClientState, down: Any) -> Any:
        return None, ClientState(state.model, {"round": torch.tensor(client.round)})

    def begin(self, client: Client, state: ClientState, down: Any) -> LocalContext:
        if client.id == 1 and state.memory.get("round") == 2:
            raise ArithmeticError("no such thing")
        return super().begin(client, state, down)


class BrokenServer(FedProto):
    """The server's step raises in round 2."""

    name = "broken_server"

    def server_update(self, state: ServerState, uplinks: Uplinks, server: Server) -> ServerState:
        if server.round == 2:
            raise ArithmeticError("no such thing")
        return super().server_update(state, uplinks, server)


class Mendable(Local):
    """A client finds what only the user can mend."""

    name = "mendable"

    def client_update(self, client: Client, state: ClientState, down: Any) -> Any:
        raise UserError("this.key=1 is too small; set this.key=2")


def register() -> None:
    """Make this process know the methods of this file."""
    for method in (FullDisk, Broken, BrokenTest, BrokenServer, Mendable):
        algorithms.add(method)


class Worker(ray_executor.Worker):
    """A worker whose process knows the methods of this file."""

    def __init__(self, *args: Any) -> None:
        register()
        super().__init__(*args)


class ServerActor(server.ServerActor):
    """A server that dies once, when it has written round 1 down and not yet handed it over.

    The checkpoint of that round is written beside the next one: the round may come again.
    """

    def __init__(self, experiment: str, out: str, began: float) -> None:
        super().__init__(experiment, out, began)
        self._died = Path(out).with_suffix(".died")

    def round_after(self, last: int) -> Any:
        done = super().round_after(last)
        if last == 0 and not self._died.exists():
            self._died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return done


class KnowingServer(server.ServerActor):
    """A server whose process, and whose workers' processes, know the methods of this file."""

    def __init__(self, *args: Any) -> None:
        register()
        server.Worker = Worker
        super().__init__(*args)
