"""Run the client steps and tests of one experiment in this process; all executors use it."""

from __future__ import annotations

import logging
import math
import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain, groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedray import core
from fedray.counts import counted
from fedray.errors import (
    ClientError,
    Failure,
    NoScalar,
    NotFinite,
    UserError,
    definition_line,
    plugin_line,
)
from fedray.evaluation.splits import splits_of
from fedray.evaluation.testing import TESTS
from fedray.federation import Counted, Reply
from fedray.runtime.assembly import Assembly
from fedray.runtime.devices import (
    check_speed,
    check_threads,
    free_memory,
    is_out_of_memory,
    out_of_memory,
)
from fedray.runtime.isolation import Isolation, PrivateCopies, generators
from fedray.runtime.memory import peak_device_memory
from fedray.runtime.models import SampleMaker
from fedray.runtime.printing import of_clients
from fedray.storage.files import is_full
from fedray.storage.run import Traffic, Work
from fedray.trees import (
    leaves,
    make_contiguous,
    map_tensors,
    map_together,
    moved_to,
    storage_of,
)

log = logging.getLogger(__name__)


class Member(NamedTuple):
    """A client that takes part in an exchange.

    Attributes:
        client: its id.
        state: its state; None before its first step.
        down: its download.
    """

    client: int
    state: core.ClientState | None
    down: core.Payload | None


class Finished(NamedTuple):
    """A client's step that has returned.

    Attributes:
        call: the call.
        uplink: the upload, which has not passed the gate.
        reply: the reply without upload.
        state: the next state.
    """

    call: core.Call
    uplink: Any
    reply: Reply
    state: core.ClientState


class ClientRuntime:
    """Runs the client steps of one experiment as pure functions of (state, download).

    Holds the data and an empty model per architecture, but no client's state.
    """

    def __init__(self, assembly: Assembly, device: torch.device) -> None:
        self.assembly = assembly
        self.device = device
        self._skeletons: dict[str, core.Skeleton] = {}
        self._isolation = Isolation(device)
        self._settings = (-1, assembly.setting)
        self._placed: tuple[Callable[[], object], Sequence[Tensor]] = (lambda: None, ())
        experiment = assembly.experiment
        check_speed("precision", experiment.precision, device)
        if assembly.algorithm.requires.prompts:
            check_speed("model.clip_precision", experiment.model.clip_precision, device)

    def step(
        self,
        name: str,
        round_: int,
        client: int,
        state: core.ClientState | None,
        down: core.Payload | None,
    ) -> tuple[Reply, core.ClientState | None]:
        """Run the method's step `name` for one client; see `steps` and `replies`."""
        members = [Member(client, state, down)]
        return self.replies(members, self.steps(name, round_, members))[0]

    def steps(self, name: str, round_: int, members: Sequence[Member]) -> list[Finished | Failure]:
        """Run the method's step `name` for a group of clients.

        Args:
            name: a method of the algorithm, `(client, state, down) -> (uplink, next state)`.
            round_: the round.
            members: the clients.

        Returns:
            What each client's step returned, for `replies`, which must be called before further
            steps.

        Raises:
            UserError: if the user can correct the cause, for example if memory runs out.
            OSError: if the disk is full.
        """
        done: list[Finished | Failure] = []
        for client, state, down in members:
            try:
                context, method_step = self.client(client, round_), self.method_step(name)
                with of_clients(client), self._isolated(name, client, round_), counted() as tally:
                    current = self._state_or_first(context, state)
                    start, private = time.perf_counter(), PrivateCopies(self.device)
                    context.optimizer_state.update(map_tensors(Tensor.clone, current.optimizer))
                    copied = core.ClientState(private.of(current.model), private.of(current.memory))
                    download = self._download(private, down)
                    uplink, next_state = method_step(context, copied, download)
                    work = Work(tally.steps, tally.images, tally.parameters)
                if len(members) > 1 and isinstance(uplink, core.Payload):
                    apart = partial(_apart, _overwritten(context.skeleton))
                    tensors, uplink = map_tensors(apart, vars(uplink)), copy(uplink)
                    vars(uplink).update(tensors)
                call = core.Call(self.assembly.algorithm, name, context, down)
                done.append(self._finished(call, uplink, next_state, work, private, start))
            except (Exception, SystemExit) as error:
                done.append(self._failure(error, name, round_, client))
        return done

    def replies(
        self,
        members: Sequence[Member],
        steps: Sequence[Finished | Failure],
        sums: core.Sums | None = None,
    ) -> list[tuple[Reply, core.ClientState | None]]:
        """Pass the uploads of a group through the gate, together if all are right.

        Args:
            members: the clients; with `sums`, those of a whole subtree of the additions.
            steps: what `steps` returned for them.
            sums: adds up the uploads, and the replies have none; None: the replies have them.

        Returns:
            Each client's reply and next state; after a failure, the state as it was.
        """
        gate, is_copied = self.assembly.gate, sums is None
        sent = [step for step in steps if isinstance(step, Finished) and step.uplink is not None]
        together: Iterator[tuple[core.Payload, Traffic]] | None = None
        if len(sent) > 1:
            with suppress(Exception):  # whose it is, is found out below
                calls = [step.call for step in sent]
                uplinks = [step.uplink for step in sent]
                together = iter(gate.up_together(uplinks, calls, copy=is_copied))
        results: list[tuple[Reply, core.ClientState | None]] = []
        for member, step in zip(members, steps, strict=True):
            if isinstance(step, Failure):
                results.append((Reply(failure=step), member.state))
                continue
            try:
                passed: tuple[core.Payload | None, Traffic] = (None, Traffic())
                if step.uplink is not None and together is not None:
                    passed = next(together)
                elif step.uplink is not None:
                    passed = gate.up(step.uplink, step.call, copy=is_copied)
                reply = replace(step.reply, uplink=passed[0], traffic=passed[1])
                results.append((reply, step.state))
            except (Exception, SystemExit) as error:
                client = step.call.client
                failure = self._failure(error, step.call.step, client.round, client.id)
                results.append((Reply(failure=failure), member.state))
        if sums is None:
            return results
        self._add(sums, [member.client for member in members], [r.uplink for r, _ in results])
        return [(replace(reply, uplink=None), state) for reply, state in results]

    def method_step(self, name: str) -> Callable[..., Any]:
        """Return the method's step `name`: `(client, state, down) -> (upload or None, state)`."""
        step: Callable[..., Any] = getattr(self.assembly.algorithm, name)
        return step

    def _isolated(self, name: str, client: int, round_: int = 0) -> AbstractContextManager[None]:
        """Isolate a client's step or test; its seed depends on the step, round and client.

        Tests leave the round out: a client with the same state and download has the same score in
        every round (`Federation.tested`).
        """
        seed = self.assembly.streams.entropy(f"layers/{name}", round_=round_, client=client)
        return self._isolation.step(seed)

    def _finished(
        self,
        call: core.Call,
        uplink: Any,
        next_state: Any,
        work: Work,
        private: PrivateCopies,
        start: float,
    ) -> Finished:
        """Check what a step returned, except its upload's values.

        Args:
            call: the call.
            uplink: the upload.
            next_state: the state.
            work: what the step computed.
            private: the copies of state and download with which it began.
            start: when it began, by `time.perf_counter`.
        """
        algorithm, context = self.assembly.algorithm, call.client
        if uplink is None and call.step == "client_update" and algorithm.uploads:
            expected = " or ".join(payload.__name__ for payload in algorithm.uploads)
            raise core.BadPayload(f"{call.step} uploads nothing, expected {expected}")
        check_numbers(context.reports, context.train_losses)
        context.skeleton.check()
        if not isinstance(next_state, core.ClientState):
            kind = type(next_state).__name__
            raise TypeError(f"the next state is a {kind}, expected a ClientState")
        parts = (next_state.model, next_state.memory, context.optimizer_state)
        state = core.ClientState(*parts)
        if any(parts):
            state = _detached(private, _overwritten(context.skeleton), parts)
        reply = Reply(
            train_loss=context.train_losses[-1] if context.train_losses else None,
            reports=context.reports,
            seconds=time.perf_counter() - start,
            work=work,
            device_bytes=peak_device_memory(self.device),
        )
        return Finished(call, uplink, reply, state)

    def _add(
        self,
        sums: core.Sums,
        clients: Sequence[int],
        uplinks: Sequence[core.Payload | None],
    ) -> None:
        """Add a group's uploads to sums, which share no memory with the uploads."""
        algorithm, gate = self.assembly.algorithm, self.assembly.gate
        assert isinstance(algorithm, core.SummingMethod)
        if len(clients) > 1 and all(uplink is not None for uplink in uplinks):
            sums.add_rows(clients, gate.summands(algorithm.summands)(uplinks))
            return
        summand = gate.summand(algorithm.summand)
        for client, uplink in zip(clients, uplinks, strict=True):
            total = core.Total()
            if uplink is not None:
                own = partial(_outside, _memory_of(vars(uplink)))
                terms = core.check_terms(summand(uplink), uplink)
                total = core.Total((client,), map_tensors(own, terms))
            sums.add(total)  # its tensors may be the method's, or stand under two names

    def test(
        self,
        name: str,
        round_: int,
        groups: Iterable[Sequence[int]],
        firsts: Iterable[Member],
    ) -> Counted:
        """Run a test of `evaluation.testing` for groups of clients (`shares.groups_of_test`).

        Groups that share a model are tested one after the other with the model of the first one.

        Args:
            name: the test.
            round_: the round.
            groups: the clients; those of a group share model and download.
            firsts: the first client of each group, with its state and download.

        Raises:
            ClientError: if the test of a client fails.
            UserError: if the user can correct the cause, for example if memory runs out.
        """
        architectures = self.assembly.models.architectures
        is_together = core.is_tested_together(self.assembly.algorithm) and name == "evaluate"

        def model(of_group: tuple[Sequence[int], Member]) -> Any:
            _, (client, _, down) = of_group
            return (architectures[client], id(down)) if is_together else client

        parts = []
        for _, same in groupby(zip(groups, firsts, strict=True), model):
            sharing, members = zip(*same, strict=True)
            parts += self._test(name, round_, sharing, members[0])
        return Counted.joined(parts)

    def _test(
        self, name: str, round_: int, groups: Sequence[Sequence[int]], first: Member
    ) -> list[Counted]:
        """Test a model that groups of clients share.

        If a test fails, or draws from the global generators, which each client seeds differently,
        each client is tested alone.
        """
        private, clients = PrivateCopies(self.device), [*chain.from_iterable(groups)]
        is_shared = len(clients) > 1
        try:
            context = self.client(first.client, round_)
            splits = splits_of(self.assembly.data.at(round_), groups, self._samples)
            with of_clients(*clients), self._isolated(name, first.client):
                before = generators(self.device) if is_shared else None
                current = self._state_or_first(context, first.state)
                copied = core.ClientState(private.of(current.model), private.of(current.memory))
                download = self._download(private, first.down)
                counts = TESTS[name](self.assembly.algorithm, context, copied, download, splits)
                if before is None or generators(self.device) == before:
                    return [Counted(clients, counts, peak_device_memory(self.device))]
        except (Exception, SystemExit) as error:
            if not is_shared:
                failure = self._failure(error, name, round_, first.client)
                raise ClientError(first.client, round_, name, failure) from error
        alone = [first._replace(client=client) for client in clients]
        return [part for one in alone for part in self._test(name, round_, [[one.client]], one)]

    def _failure(self, error: BaseException, step: str, round_: int, client: int) -> Failure:
        """Describe a client's failure, and discard the models that the step may have changed."""
        self._skeletons.clear()
        if isinstance(error, UserError) or is_full(error):
            raise error
        where = f"client {client}, round {round_}, step {step}"
        log.debug(where, exc_info=True)
        if is_out_of_memory(error):  # every later client would fail, too
            free_memory(self.device)
            raise out_of_memory(self.assembly.experiment, self.device, where) from error
        try:
            failure = Failure.of(error)
            if type(error) not in (FloatingPointError, NoScalar) or plugin_line(error):
                return failure
            loss = getattr(type(self.assembly.algorithm), "loss", None)
            return replace(failure, cause=f"{failure.cause}{definition_line(loss)}")
        except Exception:  # the error's own text raises
            return Failure(type(error).__name__)

    def _download(self, private: PrivateCopies, down: core.Payload | None) -> core.Payload | None:
        """Return a private copy of a download on the device, to which it is sent once for all."""
        if down is None:
            return None
        tensors = [item.value for item in down.tensors()]
        if self.device.type == "cpu":
            return private.of_download(down, tensors)
        if self._placed[0]() is not down:
            self._placed = weakref.ref(down), moved_to(tensors, self.device)
        return private.of_download(down, self._placed[1])

    def _state_or_first(
        self, context: core.Client, state: core.ClientState | None
    ) -> core.ClientState:
        if state is not None:
            return state
        with counted():  # building the first state is no work of a step
            return self.assembly.algorithm.init_client(context)

    def client(
        self, client: int, round_: int, skeleton: core.Skeleton | None = None
    ) -> core.Client:
        """Return the client as a step sees it, without its test images.

        Args:
            client: its id.
            round_: the round.
            skeleton: its empty model; by default the one that clients of its architecture share.
        """
        models, data = self.assembly.models, self.assembly.data.at(round_)
        architecture = models.architectures[client]
        validation = data.validation if self.assembly.algorithm.requires.validation else None
        return core.Client(
            id=client,
            round=round_,
            setting=self._setting(round_),
            train=self._training_samples(data.train[client]),
            architecture=architecture,
            skeleton=skeleton or self._skeleton(architecture),
            initial=partial(self._initial, architecture, client),
            device=self.device,
            validation=None if validation is None else self._samples(validation[client]),
            method=self.assembly.algorithm.name,
            published=self._public,
        )

    def _initial(self, architecture: str, client: int) -> core.Tensors:
        weights = self.assembly.models.initial(architecture, client)
        return map_together(partial(moved_to, device=self.device), weights)

    def _setting(self, round_: int) -> core.Setting:
        """Return the setting with the round's learning rate."""
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
    def _public(self) -> core.Samples | None:
        """Return the public images if the method requires them."""
        if not self.assembly.algorithm.requires.public:
            return None
        return self.assembly.models.public_samples(self.device)

    @cached_property
    def _training_samples(self) -> SampleMaker:
        if self.assembly.setting.training.augment.is_identity:
            return self._samples
        return self.assembly.models.samples(self.device, training=True)

    def _skeleton(self, architecture: str) -> core.Skeleton:
        if architecture not in self._skeletons:
            empty = self.assembly.models.empty(architecture, self.device)
            if not self.assembly.algorithm.requires.prompts:  # prompts are small anyway
                size = sum(parameter.numel() for parameter in empty.parameters())
                check_threads(self.assembly.experiment.threads, size, self.device)
            self._skeletons[architecture] = core.Skeleton(empty)
        return self._skeletons[architecture]


def _apart(shared: set[int], value: Any) -> Any:
    """Return a tensor that the next step does not overwrite, or anything else as it is.

    Other tensors are not copied: an expanded one may be too large, which the gate says.
    """
    if not isinstance(value, Tensor) or value.layout != torch.strided:  # the gate refuses these
        return value
    return _outside(shared, value) if value.is_cpu else value.clone()


def _overwritten(skeleton: core.Skeleton) -> set[int]:
    """Return the memory blocks that the next client's step overwrites: weights and gradients."""
    gradients = {str(n): parameter.grad for n, parameter in enumerate(skeleton.parameters)}
    return _memory_of({"weights": skeleton.tensors, "gradients": gradients})


def _memory_of(tree: Mapping[str, Any]) -> set[int]:
    """Return the memory blocks of a tree's tensors on the CPU."""
    tensors = (value for _, value in leaves(tree) if isinstance(value, Tensor))
    dense = (tensor for tensor in tensors if tensor.layout == torch.strided)
    return {storage_of(tensor) for tensor in dense if tensor.is_cpu}


def _outside(shared: set[int], tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy of it if it lies in a memory block of `shared`."""
    return tensor.clone() if storage_of(tensor) in shared else tensor


def _detached(
    private: PrivateCopies, shared: set[int], parts: Sequence[core.StateTree]
) -> core.ClientState:
    """Return a state on the CPU, outside the memory that the next client overwrites."""

    def detached(tensors: Sequence[Tensor]) -> Iterator[Tensor]:
        for tensor in private.to_cpu(tensors):
            if tensor.dtype in UNSUPPORTED:
                raise TypeError(
                    f"the state holds {tensor.dtype}, which cannot be stored; use float32"
                )
            yield _outside(shared, tensor)

    names = ("model", "memory", "optimizer")
    tree = dict(zip(names, map(make_contiguous, parts), strict=True))
    return core.ClientState(**map_together(detached, tree))


UNSUPPORTED = (torch.bfloat16, torch.complex32)
"""Types that states cannot have: states travel as NumPy arrays, and NumPy lacks these."""
REPORT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./-]{0,99}")
"""Report names that trackers accept."""


def check_numbers(reports: Mapping[str, float], train_losses: Sequence[float]) -> None:
    """Raise an error if a report or a training loss is not a finite number."""
    for loss in train_losses:
        _check_number("client.train_losses holds", loss)
    for name, value in reports.items():
        if not isinstance(name, str) or not REPORT.fullmatch(name):
            raise ValueError(f"client.reports has the name {name!r}, expected letters and digits")
        _check_number(f"client.reports[{name!r}] is", value)


def _check_number(subject: str, value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and math.isfinite(value)):  # type: ignore[arg-type]
        kind = NotFinite if isinstance(value, float) else ValueError
        raise kind(f"{subject} {value!r}, expected a finite number")
