"""Run the client steps and tests of one experiment in this process; all executors use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, islice
from typing import Any

from fedray import core
from fedray.base.counts import Tally, counted
from fedray.base.flat import tensor_blocks
from fedray.base.trees import StateTree
from fedray.core.client import Together
from fedray.evaluation.answers import Counts
from fedray.evaluation.splits import splits_of
from fedray.evaluation.testing import run_test
from fedray.federation import NO_TRAFFIC, Reply, Task
from fedray.runtime.contexts import Member, StepContexts, Stepped, on_cpu
from fedray.runtime.isolation import generators
from fedray.runtime.shares import by_client, is_stacked
from fedray.runtime.stacked import stacked_steps
from fedray.storage.run import Traffic
from fedray.storage.states import Written

MEMORY = 512 * 2**20
"""Bytes of new states after which they are written to a file before the others are made."""


class GroupRunner(StepContexts):
    """Runs the client steps of one experiment as pure functions of (state, download)."""

    def run_group(
        self,
        name: str,
        round_: int,
        members: Sequence[Member],
        sums: core.Sums | None = None,
    ) -> list[tuple[Reply, core.ClientState | None]]:
        """Run the method's step `name` for a group of clients.

        Args:
            name: a method of the algorithm, `(client, state, down) -> (upload, next state)`; after
                a slash, a number that changes its random streams.
            round_: the round.
            members: the clients; with `sums`, those of a whole subtree of the additions.
            sums: adds up the uploads, and the replies have none; None: the replies have them.

        Returns:
            Each client's reply and next state; None if it has none and needs none.

        Raises:
            ClientError: if a client's step fails, or its upload does not pass the gate.
            UserError: if the user can correct the cause, for example if memory runs out.
            OSError: if the disk is full.
        """
        stepped: list[Stepped] = []
        shared = self.together(round_, members)
        with shared as together, self.isolation.group(), counted() as tally:
            try:
                if is_stacked(self.assembly, name):
                    stepped.extend(stacked_steps(self, round_, members, tally, together))
                else:
                    stepped.extend(self._steps(name, round_, members, tally, together))
            except Exception:
                self._read_losses(name, round_, together)
                self._passed(stepped)  # an earlier client's loss or upload may be wrong, too
                raise
            self._read_losses(name, round_, together)
        passed = self._passed(stepped)
        states = on_cpu([step.state for step in stepped])
        if sums is not None:
            self._add(sums, [m.client for m in members], [upload for upload, _ in passed])
            passed = [(None, traffic) for _, traffic in passed]
        return [
            (
                Reply(
                    upload,
                    traffic,
                    train_loss=losses[-1] if (losses := step.call.client.train_losses) else None,
                    reports=step.call.client.reports,
                    seconds=step.seconds,
                    work=step.work,
                ),
                state,
            )
            for step, (upload, traffic), state in zip(stepped, passed, states, strict=True)
        ]

    def run_blocks(
        self,
        task: Task,
        name: str,
        round_: int,
        blocks: Iterable[Sequence[Sequence[int]]],
        members: Iterator[Member],
        write: Callable[[Mapping[int, StateTree]], Written],
    ) -> tuple[list[Reply], list[Written], list[tuple[core.Total, int]]]:
        """Run a step for blocks of groups of clients, in this process or on a worker.

        Args:
            task: see `federation.Executor.run`.
            name: the step.
            round_: the round.
            blocks: the clients; with the task "sum", those of a block are a subtree of the
                additions.
            members: the clients with their states and downloads, in this order.
            write: writes the next states of clients to a file.

        Returns:
            The replies, the files, and the sum and the number of clients of each block.
        """
        replies, files, totals = list[Reply](), list[Written](), list[tuple[core.Total, int]]()
        new, size = dict[int, StateTree](), 0
        for block in blocks:
            sums = core.Sums(sum(map(len, block))) if task == "sum" else None
            for group in block:
                ours = [*islice(members, len(group))]
                stepped = self.run_group(name, round_, ours, sums)
                replies += [reply for reply, _ in stepped]
                made = {
                    member.client: vars(state)
                    for member, (_, state) in zip(ours, stepped, strict=True)
                    if state is not None and state is not member.state
                }
                new |= made
                size += sum(tensor.nbytes for tensor in tensor_blocks(made))
                if size > MEMORY:
                    files.append(write(new))
                    new, size = {}, 0
            totals += [] if sums is None else [(sums.total, sum(map(len, block)))]
        return replies, files + ([write(new)] if new else []), totals

    def _steps(
        self,
        name: str,
        round_: int,
        members: Sequence[Member],
        tally: Tally,
        together: Together,
    ) -> Iterator[Stepped]:
        """Run the clients' steps one after the other, in a group's isolation."""
        method_step = self.method_step(name)
        for client, state, down in members:
            try:
                context = together.clients[client]
                start = time.perf_counter()
                self.isolation.seed(self.seed(name, client, round_))
                call = core.Call(name, context, down)
                given = self.given(context, state, down)
                upload, next_state = method_step(context, given.state, given.down)
                work, seconds = tally.take(), time.perf_counter() - start
                yield self.stepped(call, upload, next_state, given, work, seconds)
            except (Exception, SystemExit) as error:
                raise self.blame(error, name, round_, client) from None

    def _read_losses(self, name: str, round_: int, together: Together) -> None:
        """Read the losses that clients have noted."""
        client = -1
        try:
            for one in together.read_losses():
                client = one.id
        except FloatingPointError as error:
            raise self.blame(error, name, round_, client) from None

    def _passed(self, stepped: Sequence[Stepped]) -> list[tuple[core.Payload | None, Traffic]]:
        """Pass the uploads of a group through the gate, together if all are right."""
        gate = self.assembly.gate
        uploads = [step.upload for step in stepped if step.upload is not None]
        calls = [step.call for step in stepped if step.upload is not None]
        passed: list[tuple[core.Payload, Traffic]] = []
        try:
            passed = gate.up_together(uploads, calls)
        except Exception:  # find out whose it is
            for upload, call in zip(uploads, calls, strict=True):
                with self.blamed(call.step, call.client.round, call.client.id):
                    passed.append(gate.up(upload, call))
        if len(passed) == len(stepped):
            return [*passed]
        remaining = iter(passed)
        return [(None, NO_TRAFFIC) if s.upload is None else next(remaining) for s in stepped]

    def _add(
        self,
        sums: core.Sums,
        clients: Sequence[int],
        uploads: Sequence[core.Payload | None],
    ) -> None:
        """Add a group's uploads to sums."""
        combined_rows = partial(core.combined_rows, self.assembly.algorithm)
        sent = [upload for upload in uploads if upload is not None]
        if len(sent) == len(uploads):
            sums.add_rows(clients, combined_rows(sent))
            return
        for client, upload in zip(clients, uploads, strict=True):
            if upload is None:
                sums.add(core.Total())
            else:
                sums.add_rows([client], combined_rows([upload]))

    def test(
        self,
        name: str,
        round_: int,
        groups: Sequence[Sequence[int]],
        firsts: Iterable[Member],
    ) -> Counts:
        """Run a test of `evaluation.testing` for groups of clients (`shares.groups_of_test`).

        Groups that share a model are tested one after the other with the model of the first one.

        Args:
            name: the test.
            round_: the round.
            groups: the clients; those of a group share model and download.
            firsts: the first client of each group, with its state and download.

        Returns:
            The counts of the clients, sorted by client.

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
        return by_client(groups, parts)

    def _test(
        self, name: str, round_: int, groups: Sequence[Sequence[int]], first: Member
    ) -> list[Counts]:
        """Test a model that groups of clients share.

        If a test fails, or draws from the global generators, which each client seeds differently,
        each client is tested alone.
        """
        clients = [*chain.from_iterable(groups)]
        is_shared = len(clients) > 1
        try:
            context = self.client(first.client, round_)
            splits = splits_of(self.assembly.data.at(round_), groups, self.samples)
            with self.isolation.step(self.seed(name, first.client)):
                before = generators(self.device) if is_shared else None
                given = self.given(context, first.state, first.down)
                counts = run_test(
                    name, self.assembly.algorithm, context, given.state, given.down, splits
                )
                given.check()
                if before is None or generators(self.device) == before:
                    return [counts]
        except (Exception, SystemExit) as error:
            if not is_shared:
                raise self.blame(error, name, round_, first.client) from None
        alone = [first._replace(client=client) for client in clients]
        return [part for one in alone for part in self._test(name, round_, [[one.client]], one)]
