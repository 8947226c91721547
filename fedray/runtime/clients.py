"""Runs client steps of one experiment in this process; what every executor does in the end."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

import torch

from fedray.core import Client, ClientState, EvalSet, Payload, Skeleton
from fedray.core.state import contiguous
from fedray.errors import Failure, UserError
from fedray.evaluation.testing import TESTS
from fedray.federation import Reply, ScoreReply
from fedray.records import Traffic
from fedray.runtime.assembly import Assembly
from fedray.runtime.models import SampleMaker

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
            name: a method of the algorithm, `(client, state, down) -> (uplink, next state)`.
            round_: the round.
            client: the client's id.
            state: what it kept; None is the beginning.
            down: what it was sent.

        Returns:
            The reply and the next state; after a failure, the state as it was.

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
                    uplink, traffic = self.assembly.gate.up(
                        uplink, round_=round_, client=client, step=name, down=down
                    )
            _check_reports(context.reports)
            after = _kept(after)
        except UserError:
            raise
        except Exception as error:
            log.debug("client %d, round %d, step %s", client, round_, name, exc_info=True)
            return Reply(failure=Failure.of(error)), state
        loss = context.train_losses[-1] if context.train_losses else None
        return Reply(uplink, traffic, loss, context.reports), after

    def test(
        self, name: str, round_: int, client: int, state: ClientState | None, down: Payload | None
    ) -> ScoreReply:
        """Run a test of `evaluation.testing` for one client; arguments as of `step`.

        Raises:
            UserError: what the user can mend is not a client's failure.
        """
        algorithm = self.assembly.algorithm
        try:
            with self._isolated(name, round_, client):
                context = self.client(client, round_)
                before = state if state is not None else algorithm.init_client(context)
                return ScoreReply(TESTS[name](algorithm, context, before, down))
        except UserError:
            raise
        except Exception as error:
            log.debug("client %d, round %d, test %s", client, round_, name, exc_info=True)
            return ScoreReply(failure=Failure.of(error))

    def client(self, client: int, round_: int) -> Client:
        """The client as a step sees it."""
        models, data = self.assembly.models, self.assembly.data
        architecture = models.architectures[client]
        return Client(
            id=client,
            round=round_,
            setting=self.assembly.setting,
            train=self._samples(data.train[client]),
            test=self._samples(data.test[client]),
            architecture=architecture,
            skeleton=self._skeleton(architecture),
            initial=partial(models.initial, architecture, client),
            device=self.device,
            validation=None if data.validation is None else self._samples(data.validation[client]),
            eval_sets={
                name: EvalSet(self._samples(shared.index), shared.classes)
                for name, shared in data.eval_sets.items()
            },
        )

    @cached_property
    def _samples(self) -> SampleMaker:
        return self.assembly.models.samples(self.device)

    def _skeleton(self, architecture: str) -> Skeleton:
        if architecture not in self._skeletons:
            empty = self.assembly.models.empty(architecture, self.device)
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


def _kept(state: Any) -> ClientState:
    """A step's next state as it is kept.

    Raises:
        TypeError: when it is no state, or holds anything but tensors.
    """
    if not isinstance(state, ClientState):
        raise TypeError(f"the next state is a {type(state).__name__}, expected a ClientState")
    return ClientState(contiguous(state.model), contiguous(state.memory))


def _check_reports(reports: dict[str, float]) -> None:
    """Refuse what cannot be averaged and written down.

    Raises:
        ValueError: naming the report.
    """
    for name, value in reports.items():
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"client.reports[{name!r}] is {value!r}, expected a finite number")
