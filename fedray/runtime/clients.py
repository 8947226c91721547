"""Runs client steps of one experiment in this process; what every executor does in the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial

import numpy as np
import torch

from fedray.client import Client, ClientState, Exam, Samples, Skeleton, plain
from fedray.comm import Payload, Traffic
from fedray.errors import ClientError, FedrayError, UserError
from fedray.evaluation import Score
from fedray.federation import Reply
from fedray.runtime.assembly import Assembly

log = logging.getLogger(__name__)


class ClientRuntime:
    """Client steps as pure functions of (state, downlink), for the clients of one experiment.

    Holds data and empty models per architecture, never a client's state.

    Args:
        assembly: the parts of the run.
        device: where steps run.
    """

    def __init__(self, assembly: Assembly, device: torch.device) -> None:
        self.assembly = assembly
        self.device = device
        self._skeletons: dict[str, Skeleton] = {}

    def step(
        self, name: str, round_: int, client: int, state: ClientState | None, down: Payload | None
    ) -> tuple[Reply, ClientState | None]:
        """Run the method's step `name` for one client.

        Args:
            name: a method of the algorithm, `(client, state, down) -> (uplink, new state)`.
            round_: the round.
            client: the client's id.
            state: what it kept; None is the beginning.
            down: what it was sent.

        Returns:
            The reply and the new state; after a failure, the old state.

        Raises:
            UserError: what the user can mend is not a client's failure.
        """
        algorithm = self.assembly.algorithm
        try:
            with self._isolated(name, round_, client):
                context = self.client(client, round_)
                before = state if state is not None else algorithm.init_client(context)
                uplink, after = getattr(algorithm, name)(context, before, down)
                traffic = Traffic()
                if uplink is not None:
                    uplink, traffic = self.assembly.gate.up(uplink, round_=round_, client=client)
        except UserError:
            raise
        except Exception as error:
            log.debug("client %d, round %d, step %s", client, round_, name, exc_info=True)
            return Reply(failure=f"{type(error).__name__}: {error}"), state
        return Reply(uplink, traffic, context.metrics), _plain_state(after)

    @torch.no_grad()
    def evaluate(
        self, round_: int, client: int, state: ClientState | None, down: Payload | None
    ) -> Score:
        """Test one client's model, as it starts its next round, on its own test split.

        Raises:
            ClientError: whatever goes wrong, with the client and the round.
        """
        algorithm = self.assembly.algorithm
        try:
            with self._isolated("evaluate", round_, client):
                context = self.client(client, round_)
                before = state if state is not None else algorithm.init_client(context)
                return algorithm.evaluate(context, before, down)
        except FedrayError:
            raise
        except Exception as error:
            cause = f"{type(error).__name__}: {error}"
            raise ClientError(client, round_, "evaluate", cause) from error

    def client(self, client: int, round_: int) -> Client:
        """The client as a step sees it."""
        architecture = self.assembly.architectures[client]
        data = self.assembly.data
        return Client(
            id=client,
            round=round_,
            setting=self.assembly.setting,
            train=self._samples(data.train[client]),
            test=self._samples(data.test[client]),
            architecture=architecture,
            skeleton=self._skeleton(architecture),
            initial=partial(self.assembly.initial, architecture, client),
            device=self.device,
            validation=None if data.validation is None else self._samples(data.validation[client]),
            exams={
                name: Exam(self._samples(shared.index), shared.classes)
                for name, shared in data.shared_tests.items()
            },
        )

    @cached_property
    def _samples(self) -> Callable[[np.ndarray], Samples]:
        return self.assembly.samples(self.device)

    def _skeleton(self, architecture: str) -> Skeleton:
        if architecture not in self._skeletons:
            empty = self.assembly.empty(architecture, self.device)
            self._skeletons[architecture] = Skeleton(empty)
        return self._skeletons[architecture]

    @contextmanager
    def _isolated(self, step: str, round_: int, client: int) -> Iterator[None]:
        """Give layers that draw by themselves (dropout) a stream of their own, then restore."""
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            seed = self.assembly.streams.entropy(f"layers/{step}", round_=round_, client=client)
            torch.default_generator.manual_seed(seed)
            if devices:
                torch.cuda.manual_seed(seed)
            yield


def _plain_state(state: ClientState) -> ClientState:
    return ClientState(plain(state.model), plain(state.memory))
