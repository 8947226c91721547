"""Run the client steps and tests of one experiment in this process; all executors use it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from typing import Any

from fedray import core
from fedray.base.counts import Tally, counted
from fedray.base.flat import moved_trees, tensor_blocks
from fedray.base.trees import StateTree
from fedray.core.client import CPU, Together
from fedray.evaluation.answers import Counts
from fedray.evaluation.splits import splits_of
from fedray.evaluation.testing import run_test
from fedray.federation import Reply, Task
from fedray.runtime.contexts import Member, Step, StepContexts
from fedray.runtime.shares import by_client, is_stacked
from fedray.runtime.stacked import stacked_steps
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
        steps: list[Step] = []
        shared = self.together(round_, members)
        with shared as together, self.isolation.group(), counted() as tally:
            try:
                if is_stacked(self.assembly, name):
                    steps.extend(stacked_steps(self, members, together.clients, tally))
                else:
                    steps.extend(self._steps(name, members, together.clients, tally))
            finally:  # after a failure, too: that of an earlier client comes first
                self._read_losses(name, together)
                self._passed(steps)
        if sums is not None:
            self._add(sums, steps)
        for step in steps:
            losses = step.client.train_losses
            step.reply.train_loss = losses[-1] if losses else None
        return [(step.reply, step.after) for step in steps]

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
        self.forget_download()
        return replies, files + ([write(new)] if new else []), totals

    def _steps(
        self,
        name: str,
        members: Sequence[Member],
        clients: Mapping[int, core.Client],
        tally: Tally,
    ) -> Iterator[Step]:
        """Run the clients' steps one after the other, in a group's isolation."""
        algorithm = self.assembly.algorithm
        run, fields = getattr(algorithm, name.partition("/")[0]), algorithm.sent_by(name)
        for member in members:
            context, start = clients[member.client], time.perf_counter()
            try:
                self.isolation.seed(self.seed(name, context.id, context.round))
                step = self.step(name, context, member)
                returned = run(context, step.state, step.received)
                step.reply.work, step.reply.seconds = tally.take(), time.perf_counter() - start
                step.keep(fields, *returned)
                yield step
            except (Exception, SystemExit) as error:
                raise self.blame(error, name, context.round, context.id) from None

    def _read_losses(self, name: str, together: Together) -> None:
        """Read the losses that clients have noted."""
        client = next(iter(together.clients.values()))
        try:
            for one in together.read_losses():
                client = one
        except FloatingPointError as error:
            raise self.blame(error, name, client.round, client.id) from None

    def _passed(self, steps: Sequence[Step]) -> None:
        """Bring what steps returned to the CPU, and pass the uploads through the gate."""
        if self.device.type != "cpu":
            self._bring_back(steps)
        for step in steps:
            if step.reply.uplink is not None:
                try:
                    passed = self.assembly.gate.up(step.reply.uplink, step)
                except (Exception, SystemExit) as error:
                    client = step.client
                    raise self.blame(error, step.step, client.round, client.id) from None
                step.reply.uplink, step.reply.traffic = passed

    def _bring_back(self, steps: Sequence[Step]) -> None:
        """Copy uploads and next states from an accelerator, all at once."""
        uploads = [step.reply.uplink for step in steps if step.reply.uplink is not None]
        changed = [s for s in steps if s.after is not None and s.after is not s.before]
        trees = moved_trees([*map(vars, uploads), *(vars(s.after) for s in changed)], CPU)
        for upload, tree in zip(uploads, trees, strict=False):
            vars(upload).update(tree)
        for step, tree in zip(changed, trees[len(uploads) :], strict=True):
            step.after = core.ClientState(**tree)

    def _add(self, sums: core.Sums, steps: Sequence[Step]) -> None:
        """Add a group's uploads to sums, and take them out of the replies."""
        everyone = None not in [step.reply.uplink for step in steps]
        for part in [steps] if everyone else [[step] for step in steps]:
            uploads = [step.reply.uplink for step in part if step.reply.uplink is not None]
            if uploads:
                rows = core.combined_rows(self.assembly.algorithm, uploads)
                sums.add_rows([step.client.id for step in part], rows)
            else:
                sums.add(core.Total())
        for step in steps:
            step.reply.uplink = None

    # --- tests -----------------------------------------------------------------------------------

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
        self.forget_download()
        return by_client(groups, parts)

    def _test(
        self, name: str, round_: int, groups: Sequence[Sequence[int]], first: Member
    ) -> list[Counts]:
        """Test a model that groups of clients share; after a failure, each alone, to name one."""
        clients, algorithm = [*chain.from_iterable(groups)], self.assembly.algorithm
        try:
            context = self.client(first.client, round_)
            splits = splits_of(self.assembly.data.at(round_), groups, self.samples)
            with self.isolation.group(self.seed(name, first.client)):
                step = self.step(name, context, first)
                counts = run_test(name, algorithm, context, step.state, step.received, splits)
                step.check()
            return [counts]
        except (Exception, SystemExit) as error:
            if len(clients) == 1:
                raise self.blame(error, name, round_, first.client) from None
        alone = [first._replace(client=client) for client in clients]
        return [part for one in alone for part in self._test(name, round_, [[one.client]], one)]
