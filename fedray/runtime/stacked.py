"""Runtime of stacked clients in this process (`stacked: N`, see `core.stacked`).

Each client begins and finishes its step alone; in between, several clients are trained together.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

import torch

from fedray.core import Call, Client, ClientState, LocalContext, LocalTraining, Trained
from fedray.core.stacked import Form, Stack, form_of, train_stacked
from fedray.counts import counted
from fedray.errors import Failure, UserError, one_line
from fedray.runtime.assembly import Assembly
from fedray.runtime.clients import ClientRuntime, Finished, Member
from fedray.runtime.isolation import PrivateCopies, generators
from fedray.runtime.printing import of_clients
from fedray.runtime.shares import STACKED_STEP
from fedray.storage.run import Work


def client_runtime(assembly: Assembly, device: torch.device) -> ClientRuntime:
    """Return the runtime of an experiment's clients, stacked if the experiment asks for it."""
    kind = StackedRuntime if assembly.experiment.stacked > 1 else ClientRuntime
    return kind(assembly, device)


@dataclass
class _Begun:
    """One client's step, between its begin and its end.

    Attributes:
        kind: groups similar clients; within a kind, those with the most images have the first rows.
        member: the client's id, state and download.
        context: the client as its step sees it.
        stack: the stack that holds the client's model.
        row: the model's row of the stack.
        local: the client after the step has begun.
        work: steps, images and parameters so far.
        trained: the result of training, or its error.
    """

    kind: int
    member: Member
    context: Client
    stack: Stack
    row: int
    local: LocalContext
    work: tuple[int, int, int]
    trained: Trained | Exception | None = None

    def form(self) -> Form:
        """Return a key that is equal for clients that can be trained together."""
        local = self.local
        trainable = None if local.trainable is None else frozenset(local.trainable)
        parts = (local.state.memory, local.extra, local.down)
        return (self.kind, trainable, *map(form_of, parts))


class StackedRuntime(ClientRuntime):
    """Runs the client steps of one experiment, training several clients together."""

    def __init__(self, assembly: Assembly, device: torch.device) -> None:
        super().__init__(assembly, device)
        self._stacks: dict[str, Stack] = {}

    def steps(self, name: str, round_: int, members: Sequence[Member]) -> list[Finished | Failure]:
        """Run `client_update` for the clients, and train them together; other steps one by one."""
        if name != STACKED_STEP:
            return super().steps(name, round_, members)
        start, streams = time.perf_counter(), self.assembly.streams
        seed = streams.entropy("layers/stacked", round_=round_, client=members[0].client)
        _ = self._training_samples  # build it now: building data or models may draw random numbers
        for client, _, _ in members:
            self._make_stack(self.assembly.models.architectures[client], len(members))
        private = PrivateCopies(self.device)
        clients = [member.client for member in members]
        with of_clients(*clients), self._isolation.step(seed), self._refuse_draws():
            results, begun = self._begin(round_, members, private)
            for _, same_form in groupby(begun, _Begun.form):
                self._train([*same_form])
            results |= {
                step.member.client: self._finish(round_, step, private, start) for step in begun
            }
        seconds = (time.perf_counter() - start) / len(members)
        for client, step in results.items():
            if isinstance(step, Finished):
                results[client] = step._replace(reply=replace(step.reply, seconds=seconds))
        return [results[client] for client in clients]

    def _begin(
        self, round_: int, members: Sequence[Member], private: PrivateCopies
    ) -> tuple[dict[int, Finished | Failure], list[_Begun]]:
        """Begin each client's step, in row order; return the failures and the steps that began."""
        failures: dict[int, Finished | Failure] = {}
        steps: list[_Begun] = []
        downs = {id(member.down): member.down for member in members}
        downloads = {key: self._download(private, down) for key, down in downs.items()}
        stacks = dict(self._stacks)  # a failure clears them
        rows = dict.fromkeys(self.assembly.models.architectures, 0)
        forms = {key: form_of(down) for key, down in downs.items()}
        for kind, member in self._sorted(round_, members, forms):
            architecture = self.assembly.models.architectures[member.client]
            stack, row = stacks[architecture], rows[architecture]
            try:
                context = self.client(member.client, round_, stack.skeletons[row])
                state = member.state or self._first_state(context)
                copied = ClientState(private.of(state.model), private.of(state.memory))
                with of_clients(member.client), counted() as tally:
                    method = self.assembly.algorithm
                    local = method.begin(context, copied, downloads[id(member.down)])
                work = tally.steps, tally.images, tally.parameters
            except (Exception, SystemExit) as error:
                failures[member.client] = self._failed(error, round_, member)
                continue
            rows[architecture] += 1
            steps.append(_Begun(kind, member, context, stack, row, local, work))
        return failures, steps

    def _first_state(self, context: Client) -> ClientState:
        """Return a client's first state, isolated because building models may draw numbers."""
        with self._isolated(STACKED_STEP, context.id, context.round):
            return self._state_or_first(context, None)

    def _sorted(
        self, round_: int, members: Sequence[Member], downs: Mapping[int, Form]
    ) -> list[tuple[int, Member]]:
        """Sort clients by kind, and clients of one kind by images, the most first.

        Returns:
            Each client with its kind. Clients of one kind have the same architecture, and downloads
            and memories of the same form.
        """
        architectures, train = (
            self.assembly.models.architectures,
            self.assembly.data.at(round_).train,
        )
        kinds: dict[Hashable, int] = {}
        with_kinds = []
        for member in members:
            memory = {} if member.state is None else member.state.memory
            form = architectures[member.client], form_of(memory), downs[id(member.down)]
            with_kinds.append((kinds.setdefault(form, len(kinds)), member))
        return sorted(with_kinds, key=lambda pair: (pair[0], -len(train[pair[1].client])))

    def _train(self, steps: Sequence[_Begun]) -> None:
        """Train clients of one form together, and store each client's result."""
        method, first = self.assembly.algorithm, steps[0]
        assert isinstance(method, LocalTraining)
        contexts = [step.local for step in steps]
        try:
            trained, images, parameters = train_stacked(method, first.stack, first.row, contexts)
        except UserError:
            raise
        except Exception as error:  # shared by all clients, whose operations are the same
            if "vmap" in str(error) or "atching rule" in str(error):
                raise UserError(
                    f"{method.name} with {first.context.architecture} cannot be stacked: "
                    f"{one_line(error)}; set stacked=1"
                ) from error
            for step in steps:
                step.trained = error
            return
        for step, result, image_count in zip(steps, trained, images, strict=True):
            step.trained = result
            if isinstance(result, Trained):
                steps_, images_, most = step.work
                step.work = steps_ + result.steps, images_ + image_count, max(most, parameters)

    def _finish(
        self, round_: int, step: _Begun, private: PrivateCopies, start: float
    ) -> Finished | Failure:
        """Finish a client's step."""
        method = self.assembly.algorithm
        assert isinstance(method, LocalTraining)
        try:
            if not isinstance(step.trained, Trained):
                assert step.trained is not None
                raise step.trained
            with of_clients(step.member.client), counted() as tally:
                uplink, state = method.finish(step.local, step.trained)
            steps, images, most = step.work
            work = Work(steps + tally.steps, images + tally.images, max(most, tally.parameters))
            call = Call(method, STACKED_STEP, step.context, step.member.down)
            return self._finished(call, uplink, state, work, private, start)
        except (Exception, SystemExit) as error:
            return self._failed(error, round_, step.member)

    def _failed(self, error: BaseException, round_: int, member: Member) -> Failure:
        self._stacks.clear()  # their models may be partly changed
        return self._failure(error, STACKED_STEP, round_, member.client)

    def _make_stack(self, architecture: str, count: int) -> None:
        """Build a stack of an architecture for at least `count` clients, unless there is one."""
        stack = self._stacks.get(architecture)
        if stack is None or len(stack.skeletons) < count:
            make = partial(self.assembly.models.empty, architecture, self.device)
            self._stacks[architecture] = Stack(make, count)

    @contextmanager
    def _refuse_draws(self) -> Iterator[None]:
        """Refuse draws from the global generators, which the clients of a stack would share."""
        before = generators(self.device)
        yield
        if generators(self.device) != before:
            raise UserError(
                f"{self.assembly.algorithm.name} draws from the global random generators, so its "
                "clients cannot be stacked; set stacked=1"
            )
