"""Runs client steps of one experiment in this process; what every executor does in the end."""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from fedray.core import (
    BadPayload,
    Call,
    Client,
    ClientState,
    EvalSet,
    HeldOut,
    Payload,
    Setting,
    Skeleton,
)
from fedray.core.state import contiguous, map_tensors
from fedray.data.federated import EvalSet as IndexedSet
from fedray.errors import Failure, NotFinite, UserError
from fedray.evaluation.testing import TESTS
from fedray.federation import Reply, ScoreReply
from fedray.files import is_full
from fedray.records import Traffic
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import (
    check_speed,
    free_memory,
    is_out_of_memory,
    out_of_memory,
)
from fedray.runtime.isolation import Isolation, PrivateCopies
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
        self._isolation = Isolation(device)
        self._settings = (-1, assembly.setting)
        check_speed(assembly.experiment.precision, device)

    def step(
        self,
        name: str,
        round_: int,
        client: int,
        state: ClientState | None,
        down: Payload | None,
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
            OSError: nor is a disk without room.
        """
        try:
            with self._isolated(name, round_, client) as context:
                given, started = self._given(context, state), time.perf_counter()
                reply, after = self._step(name, context, given, down)
                seconds = time.perf_counter() - started
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            if is_full(error):
                raise
            log.debug("client %d, round %d, step %s", client, round_, name, exc_info=True)
            self._check_memory(error, name, round_, client)
            return Reply(failure=failure_of(error)), state
        return replace(reply, seconds=seconds), after

    def _step(
        self, name: str, context: Client, state: ClientState, down: Payload | None
    ) -> tuple[Reply, ClientState]:
        """Run a step on copies of what it is given; check all that it gives."""
        algorithm, private = self.assembly.algorithm, PrivateCopies()
        context.optimizer_state.update(private.of(state.optimizer))
        uplink, after = self.call(
            name,
            context,
            ClientState(private.of(state.model), private.of(state.memory)),
            None if down is None else down.map(lambda _, tensor: private.copy(tensor)),
        )
        traffic = Traffic()
        if uplink is None and name == "client_update" and algorithm.uploads:
            expected = " or ".join(payload.__name__ for payload in algorithm.uploads)
            raise BadPayload(f"{name} uploads nothing, expected {expected}")
        if uplink is not None:
            call = Call(algorithm, name, context, down)
            uplink, traffic = self.assembly.gate.up(uplink, call)
        check_numbers(context.reports, context.train_losses)
        loss = context.train_losses[-1] if context.train_losses else None
        return Reply(uplink, traffic, loss, context.reports), _kept(after, context, private)

    def call(self, name: str, client: Client, state: ClientState, down: Payload | None) -> Any:
        """Call the method's step `name`; returns the upload, or None, and the next state."""
        return getattr(self.assembly.algorithm, name)(client, state, down)

    def test(
        self, name: str, round_: int, client: int, state: ClientState | None, down: Payload | None
    ) -> ScoreReply:
        """Run a test of `evaluation.testing` for one client; arguments as of `step`.

        Raises:
            UserError: what the user can mend is not a client's failure.
            OSError: nor is a disk without room.
        """
        private, context = PrivateCopies(), self.client(client, round_)
        try:
            given = self._given(context, state)
            copied = ClientState(private.of(given.model), private.of(given.memory))
            sent = None if down is None else down.map(lambda _, tensor: private.copy(tensor))
            held_out = self.held_out(client, round_)
            return ScoreReply(TESTS[name](self.assembly.algorithm, context, copied, sent, held_out))
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            if is_full(error):
                raise
            self._skeletons.pop(context.architecture, None)
            log.debug("client %d, round %d, test %s", client, round_, name, exc_info=True)
            self._check_memory(error, name, round_, client)
            return ScoreReply(failure=failure_of(error))

    def _check_memory(self, error: BaseException, step: str, round_: int, client: int) -> None:
        """What does not fit is not a client's failure, and every client after it would fail.

        Raises:
            UserError: when the error says that memory is used up.
        """
        if is_out_of_memory(error):
            free_memory(self.device)
            where = f"client {client}, round {round_}, step {step}"
            raise out_of_memory(self.assembly.experiment, self.device, where) from error

    def _given(self, context: Client, state: ClientState | None) -> ClientState:
        return state if state is not None else self.assembly.algorithm.init_client(context)

    def client(self, client: int, round_: int) -> Client:
        """Return the client as a step sees it: without the images that it is measured on."""
        models, data = self.assembly.models, self.assembly.data.at(round_)
        architecture = models.architectures[client]
        validation = data.validation if self.assembly.algorithm.requires.validation else None
        return Client(
            id=client,
            round=round_,
            setting=self._setting(round_),
            train=self._training_samples(data.train[client]),
            architecture=architecture,
            skeleton=self._skeleton(architecture),
            initial=partial(models.initial, architecture, client),
            device=self.device,
            validation=None if validation is None else self._samples(validation[client]),
            method=self.assembly.algorithm.name,
        )

    def held_out(self, client: int, round_: int) -> HeldOut:
        """Return the images that a client's model is measured on."""
        data = self.assembly.data.at(round_)
        return HeldOut(
            test=self._samples(data.test[client]),
            eval_sets=self._shared(data.eval_sets),
            validation=None if data.validation is None else self._samples(data.validation[client]),
            validation_sets=self._shared(data.validation_sets),
        )

    def _shared(self, sets: Mapping[str, IndexedSet]) -> dict[str, EvalSet]:
        return {
            name: EvalSet(self._samples(shared.index), shared.classes)
            for name, shared in sets.items()
        }

    def _setting(self, round_: int) -> Setting:
        """What both sides know, with the learning rate of the round."""
        if self._settings[0] != round_:
            setting, lr = self.assembly.setting, self.assembly.lr(round_)
            if lr != setting.training.lr:
                setting = replace(setting, training=replace(setting.training, lr=lr))
            self._settings = (round_, setting)
        return self._settings[1]

    @cached_property
    def _samples(self) -> SampleMaker:
        return self.assembly.models.samples(self.device)

    @cached_property
    def _training_samples(self) -> SampleMaker:
        if self.assembly.setting.training.augment.is_identity:
            return self._samples
        return self.assembly.models.samples(self.device, training=True)

    def _skeleton(self, architecture: str) -> Skeleton:
        if architecture not in self._skeletons:
            empty = self.assembly.models.empty(architecture, self.device)
            self._skeletons[architecture] = Skeleton(empty)
        return self._skeletons[architecture]

    @contextmanager
    def _isolated(self, step: str, round_: int, client: int) -> Iterator[Client]:
        """Give the client to its step, which runs isolated from all other steps."""
        context = self.client(client, round_)
        seed = self.assembly.streams.entropy(f"layers/{step}", round_=round_, client=client)
        try:
            with self._isolation.step(seed):
                yield context
        except BaseException:
            # The next client of this architecture gets a new model: this one may be half changed.
            self._skeletons.pop(context.architecture, None)
            raise


def failure_of(error: BaseException) -> Failure:
    """What an exception says, also of one that cannot say it."""
    try:
        return Failure.of(error)
    except Exception:
        return Failure(type(error).__name__)


def _kept(state: Any, context: Client, private: PrivateCopies) -> ClientState:
    """A step's next state as it is kept: of the client alone, on the CPU.

    Raises:
        TypeError: when it is no state, or holds anything but tensors.
    """
    if not isinstance(state, ClientState):
        raise TypeError(f"the next state is a {type(state).__name__}, expected a ClientState")
    lent = {tensor.data_ptr() for tensor in context.skeleton.tensors.values()}

    def own(tensor: Tensor) -> Tensor:
        kept = private.original(tensor).detach().cpu()
        if kept.dtype in UNKEPT:
            raise TypeError(f"the state holds {kept.dtype}, which is not kept; use float32")
        return kept.clone() if kept.data_ptr() in lent else kept  # the next client's weights

    parts = (state.model, state.memory, context.optimizer_state)
    return ClientState(*(map_tensors(own, contiguous(part)) for part in parts))


UNKEPT = (torch.bfloat16, torch.complex32)
"""Types that NumPy has not, in which states travel."""
REPORT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,99}")
"""What a report may be called; trackers take no other names."""


def check_numbers(reports: Mapping[str, float], train_losses: Sequence[float]) -> None:
    """Refuse reports and training losses that cannot be averaged and written down.

    Raises:
        ValueError: naming the report.
    """
    for loss in train_losses:
        if not _is_number(loss):
            raise _no_number(loss)(f"client.train_losses holds {loss!r}, expected a finite number")
    for name, value in reports.items():
        if not isinstance(name, str) or not REPORT.fullmatch(name):
            raise ValueError(f"client.reports has the name {name!r}, expected letters and digits")
        if not _is_number(value):
            message = f"client.reports[{name!r}] is {value!r}, expected a finite number"
            raise _no_number(value)(message)


def _no_number(value: object) -> type[Exception]:
    return NotFinite if isinstance(value, float) else ValueError


def _is_number(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value)  # type: ignore[arg-type]
