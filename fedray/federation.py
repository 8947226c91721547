"""The round loop: draw participants, exchange payloads, test, and yield one record per round.

The loop depends on no particular method; an executor runs the client steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from inspect import isroutine
from traceback import extract_tb
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from fedray.base.counts import NO_WORK, Tallied, counted
from fedray.base.errors import ClientError, Failure, RunFailed, ServerError, UserError
from fedray.base.trees import Snapshot, is_tree, make_contiguous
from fedray.config import Experiment
from fedray.core import (
    Algorithm,
    Downlinks,
    Exchange,
    Gate,
    Payload,
    Privacy,
    Server,
    ServerState,
    Total,
    is_tested_together,
)
from fedray.evaluation.accountant import Accountant
from fedray.evaluation.answers import Counts
from fedray.evaluation.metrics import DataFacts, Evaluated, add_declared, add_metrics, measure
from fedray.evaluation.protocols import Analysed, Analysis, CrossEvaluated, has_global_model
from fedray.evaluation.splits import OWN
from fedray.storage.files import is_full
from fedray.storage.metric import REPORTED
from fedray.storage.run import Round, Traffic, Work
from fedray.storage.states import StateStore

WAVE = 256
"""Clients that are tested at a time; bounds the memory for downloads and states in transit."""

NO_TRAFFIC = Traffic()
"""A shared default, because constructing a record validates its fields."""


@dataclass
class Reply:
    """The result of one client's step.

    Attributes:
        uplink: the upload after the gate; None if the step uploads nothing.
        traffic: the size of the upload.
        train_loss: mean loss of the last local epoch; None if the step did not train.
        reports: further numbers that the client step reports.
        seconds: wall time of the step.
        work: counts of the step's work.
    """

    uplink: Payload | None = None
    traffic: Traffic = NO_TRAFFIC
    train_loss: float | None = None
    reports: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    work: Tallied = NO_WORK


Task: TypeAlias = Literal["step", "sum"]
"""What an executor runs for clients."""


class Executor(Protocol):
    """An object that runs client steps and tests.

    Attributes:
        states: the clients' states; the caller may set another store before the first step.
    """

    states: StateStore

    def run(
        self, task: Task, name: str, round_: int, down: Downlinks
    ) -> tuple[dict[int, Reply], Total]:
        """Run one client step for every key of `down`; a step that fails ends the run.

        Args:
            task: "step": run the method's step `name`; "sum": run it, and return the uploads' sum
                instead of the uploads.
            name: the name of the step.
            round_: the round.
            down: the download of each client, by id.

        Returns:
            The replies by client, and the sum, which is empty unless the task is "sum".
        """

    def test(self, name: str, round_: int, down: Downlinks) -> Counts:
        """Run one test of `evaluation.testing` for every key of `down`, at least one.

        Returns:
            The counts [K, S, 3, C] or [K, E, S, 3, C] of the K clients, sorted by client.

        Raises:
            ClientError: if the test of a client fails.
        """

    @property
    def device_bytes(self) -> int:
        """Return the most memory that a process of clients has used on its accelerator."""

    def close(self) -> None:
        """Release the states."""


@dataclass(frozen=True)
class Plan:
    """The settings of the round loop.

    Attributes:
        experiment: the keys of the experiment.
        facts: pairs of a round and the facts about the data from that round on, sorted by round.
        lr: maps a round to its learning rate; None if the learning rate never changes.
    """

    experiment: Experiment
    facts: Sequence[tuple[int, DataFacts]] = ((0, DataFacts()),)
    lr: Callable[[int], float] | None = None

    @property
    def clients(self) -> int:
        """Return N, the number of clients."""
        return self.experiment.data.clients

    def joined(self, round_: int) -> Sequence[int]:
        """Return the ids of the clients that have joined by a round."""
        join = self.experiment.join
        return range(self.clients - (join.clients if round_ < join.round else 0))

    def facts_at(self, round_: int) -> DataFacts:
        """Return the facts about the data in a round."""
        return [facts for first, facts in self.facts if first <= round_][-1]

    def is_evaluated(self, round_: int) -> bool:
        """Return True if all clients are tested after a round."""
        every = self.experiment.eval_every
        return round_ == self.experiment.rounds or (every > 0 and round_ % every == 0)


@dataclass(eq=False)
class Federation:
    """One federated run.

    Attributes:
        algorithm: the method.
        executor: runs client steps.
        gate: checks and counts every payload.
        plan: the settings of the loop.
        server: the server, with the text tower if the method needs one.
        accountant: counts the clients' uploads with noise; None without noise.
        snapshot: the federation after the last yielded round.
        tested: the clients whose last own test still holds: on the same data, before any step.
    """

    algorithm: Algorithm
    executor: Executor
    gate: Gate
    plan: Plan
    server: Server
    accountant: Accountant | None = None
    snapshot: Snapshot = field(default=Snapshot(0, {}), init=False)
    tested: set[int] = field(default_factory=set, init=False)
    _counts: Counts | None = field(default=None, init=False)
    _tested_on: DataFacts | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        """Look up the method's optional features once, because protocols are slow to check."""
        method = self.algorithm
        self._cross_evaluated = method if isinstance(method, CrossEvaluated) else None
        self._analysed = method if isinstance(method, Analysed) else None

    def rounds(self, resume: Snapshot | None = None) -> Iterator[Round]:
        """Yield one record per round, starting with round 0; set `snapshot` before each."""
        self.tested.clear()  # the executor's states may have changed
        self.snapshot, method = resume or Snapshot(0, {}), self.algorithm
        if resume is None:
            yield self._round(0, self.plan.joined(0), self._init, method.prepare, method.give)
        for number in range(self.snapshot.round + 1, self.plan.experiment.rounds + 1):
            yield self._round(number, self._cohort(number), method.give, method.round)

    def retest(self, snapshot: Snapshot) -> Round:
        """Repeat the test after a round, without training or counting traffic."""
        self.snapshot = snapshot
        participants = self._cohort(snapshot.round) if snapshot.round else ()
        return self._round(snapshot.round, participants)

    def sent(self) -> Iterator[Downlinks]:
        """Yield the downloads with which all clients are tested, `WAVE` clients at a time."""
        number = self.snapshot.round
        server = replace(self.server, round=number, joined=self.plan.joined(number))
        return self._downloads(server, self.snapshot.server)

    def _init(self, _: ServerState, exchange: RoundExchange) -> ServerState:
        return self.algorithm.init_server(exchange.server)

    def _round(
        self,
        number: int,
        participants: Sequence[int],
        *steps: Callable[[ServerState, RoundExchange], ServerState],
    ) -> Round:
        """Run steps of the method one after the other, and test the clients."""
        exchange, state = RoundExchange(self, number, participants), self.snapshot.server
        try:
            with counted() as tally:
                for step in steps:
                    state = changed_state(state, step(state, exchange))
            record, snapshot = self._finish(exchange, state, Work(*tally.take()))
        except (UserError, RunFailed, ClientError):
            raise
        except (Exception, SystemExit) as error:
            if is_full(error):
                raise
            raise ServerError(number, self._step_of(error), Failure.of(error)) from error
        self.snapshot = snapshot
        return record

    def _step_of(self, error: BaseException) -> str:
        """Return the innermost server step of the method in an error's traceback."""
        names = [frame.name for frame in extract_tb(error.__traceback__)]
        steps = [n for n in names if isroutine(getattr(self.algorithm, n, None)) and n[0] != "_"]
        return steps[-1] if steps else "round"

    def _cohort(self, round_: int) -> Sequence[int]:
        """Draw a round's participants uniformly without replacement; return their sorted ids."""
        joined = len(self.plan.joined(round_))
        count = max(1, round(self.plan.experiment.participation * joined))
        if count == joined:
            return range(count)
        random = self.server.streams.numpy("participation", round_=round_)
        drawn = random.choice(joined, size=count, replace=False)
        return sorted(int(client) for client in drawn)

    def _finish(
        self, exchange: RoundExchange, state: ServerState, server_work: Work
    ) -> tuple[Round, Snapshot]:
        """Test the clients if a test is due; return the round's record and snapshot."""
        number, facts = exchange.round, self.plan.facts_at(exchange.round)
        if is_evaluated := self.plan.is_evaluated(number):
            state = changed_state(state, self.algorithm.give(state, exchange))
        snapshot = Snapshot(number, make_contiguous(state))
        numbers, analysis = self._numbers(exchange), Analysis()
        tests = self._evaluate(exchange, state, facts) if is_evaluated else {}
        if is_evaluated and self._analysed is not None:
            analysis = self._analysed.analyse(state, exchange.server)
        evaluated = Evaluated(facts, joined=exchange.everyone, numbers=numbers, **tests)
        metrics = measure(evaluated)
        add_declared(metrics, analysis.metrics, type(self.algorithm))
        add_metrics(metrics, _means([reply.reports for _, reply in exchange.replies]))
        own, participants = evaluated.on(OWN, range(self.plan.clients)), set(exchange.participants)
        record = Round(
            round=number,
            seconds=time.perf_counter() - exchange.started,
            metrics=metrics,
            per_client=dict(zip(own.clients.tolist(), own.accuracy.tolist(), strict=True)),
            down=Traffic.total(exchange.sent),
            participants=list(exchange.participants) if number else [],
            absent=[client for client in exchange.absent if client in participants],
            noised=[clients for _, clients in exchange.noised],
            matrices={name: value.tolist() for name, value in analysis.matrices.items()},
            server_work=server_work,
            **exchange.client_costs(),
        )
        return record, snapshot

    def _numbers(self, exchange: RoundExchange) -> dict[str, float]:
        """Return the numbers of a round that do not depend on its test."""
        numbers = {}
        if self.plan.lr is not None and exchange.round:
            numbers["learning_rate"] = self.plan.lr(exchange.round)
        losses = [r.train_loss for _, r in exchange.replies if r.train_loss is not None]
        if losses:
            numbers["train_loss"] = sum(losses) / len(losses)
        if self.accountant is not None:
            noised = [clients for _, clients in exchange.noised]
            self.accountant.add(noised, exchange.participants, len(exchange.everyone))
            numbers |= self.accountant.spent()
        return numbers

    def _evaluate(
        self, exchange: RoundExchange, state: ServerState, facts: DataFacts
    ) -> dict[str, Any]:
        """Test every client, and the further models that the method declares.

        Returns:
            Fields of `Evaluated`.
        """
        number, server, test = exchange.round, exchange.server, self.executor.test
        counts = self._own_tests(exchange, state, facts)
        is_common = has_global_model(self.algorithm, state)
        tests: dict[str, Any] = {"counts": counts, "has_global_model": is_common}
        if self._cross_evaluated is not None:
            models = self._cross_evaluated.cross_evaluations(state, server)
            tests["cross_evaluations"] = {
                name: [test("evaluate", number, pass_down(self.gate, sent)[0]) for sent in of_name]
                for name, of_name in models.items()
            }
        experiment = self.plan.experiment
        if experiment.finetune_epochs > 0 and number == experiment.rounds:
            waves = self._downloads(server, state)
            tests["fine_tuned"] = np.concatenate([test("finetune", number, sent) for sent in waves])
        return tests

    def _own_tests(self, exchange: RoundExchange, state: ServerState, facts: DataFacts) -> Counts:
        """Return the counts of all clients; test those whose counts may have changed.

        A client without a download whose last test still holds would give the same counts. If
        clients share a model, all are tested, because they are tested in fixed groups.
        """
        if facts is not self._tested_on:  # other images, or the first test
            self.tested.clear()
        if not self.tested:
            self._counts = None
        together = is_tested_together(self.algorithm)
        for sent in self._downloads(exchange.server, state):
            due = {
                client: down
                for client, down in sent.items()
                if together or down is not None or client not in self.tested
            }
            if due:
                new = self.executor.test("evaluate", exchange.round, due)
                if self._counts is None:
                    self._counts = np.zeros((self.plan.clients, *new.shape[1:]), np.int64)
                self._counts[sorted(due)] = new
        assert self._counts is not None
        self._tested_on, self.tested = facts, set(range(self.plan.clients))
        return self._counts

    def _downloads(self, server: Server, state: ServerState) -> Iterator[Downlinks]:
        """Yield the downloads with which all clients are tested, `WAVE` clients at a time."""
        for first in range(0, self.plan.clients, WAVE):
            wave = range(first, min(first + WAVE, self.plan.clients))
            yield pass_down(self.gate, self.algorithm.downlink(state, wave, server))[0]


def changed_state(state: ServerState, after: Any) -> ServerState:
    """Return the server's state with the entries that a step returned in place of those before."""
    if not is_tree(after):
        raise TypeError(f"a server step returned a {type(after).__name__}, expected a mapping")
    return {**state, **after}


def _means(reports: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each reported number over the clients that reported it."""
    values: dict[str, list[float]] = {}
    for report in filter(None, reports):
        for name, value in report.items():
            values.setdefault(f"{REPORTED}{name}", []).append(value)
    return {name: sum(reported) / len(reported) for name, reported in values.items()}


class RoundExchange(Exchange):
    """The exchange of one round: runs its calls, injects faults, and notes what happened.

    Attributes:
        started: when the round started (`time.perf_counter`).
        sent: the sizes of all downloads.
        replies: the replies of all calls with their clients, without uploads.
        noised: step and clients of every call whose uploads had noise.
    """

    def __init__(self, federation: Federation, round_: int, participants: Sequence[int]) -> None:
        self.started = time.perf_counter()
        self.round, self.participants = round_, participants
        self.everyone: Sequence[int] = federation.plan.joined(round_)
        self.server = replace(federation.server, round=round_, joined=self.everyone)
        self.replied: set[int] = set()
        self.absent: dict[int, None] = {}  # in the order of the calls
        self.sent: list[Traffic] = []
        self.replies: list[tuple[int, Reply]] = []
        self.noised: list[tuple[str, list[int]]] = []
        self._federation = federation

    def call(self, step: str, down: Downlinks) -> dict[int, Any]:
        """Send downloads, run a step and collect the uploads; see `core.Exchange.call`."""
        name, reached = self._send(step, down)
        run = self._federation.executor.run
        uploads = self._collect(run("step", name, self.round, reached)[0] if reached else {})
        privacy = self._covering(step, reached) if uploads else None
        if privacy is not None and privacy.mode == "central":
            raise UserError(
                f"privacy.mode=central adds no noise to single uploads ({step}); set it to local"
            )
        return uploads

    def total(self, step: str, down: Downlinks) -> Total:
        """Send downloads, run a step and sum the uploads; see `core.Exchange.total`."""
        algorithm, executor = self._federation.algorithm, self._federation.executor
        name, reached = self._send(step, down)
        if not reached:
            return Total()
        replies, total = executor.run("sum", name, self.round, reached)
        self._collect(replies)
        privacy = self._covering(step, reached) if total else None
        if privacy is None:
            return total
        return privacy.release(total, algorithm.sent_by(step), round_=self.round, step=name)

    def _covering(self, step: str, clients: Iterable[int]) -> Privacy | None:
        """Return the privacy that covers a step's uploads; note the call if it had noise."""
        privacy = self._federation.gate.privacy
        if privacy is None or not privacy.covers(self._federation.algorithm.sent_by(step)):
            return None
        if privacy.noise_multiplier > 0:
            self.noised.append((step, [*clients]))
        return privacy

    def _send(self, step: str, down: Downlinks) -> tuple[str, dict[int, Payload | None]]:
        """Send downloads to all clients, of which some drop out, but nobody in round 0.

        Returns:
            The name of the step's random streams, numbered from the second call with noise, which
            draws other noise; and the downloads that arrive, sorted by client.
        """
        federation, streams = self._federation, self.server.streams
        passed, sizes = pass_down(federation.gate, dict(sorted(down.items())))
        self.replied, self.sent = set(), self.sent + sizes
        if (share := federation.plan.experiment.faults.drop) and self.round:
            for client in passed:
                random = streams.numpy("fault_drop", round_=self.round, client=client)
                if random.random() < share:
                    self.absent[client] = None
        before = sum([noised == step for noised, _ in self.noised])
        name = f"{step}/{before + 1}" if before else step
        return name, {c: payload for c, payload in passed.items() if c not in self.absent}

    def _collect(self, replies: Mapping[int, Reply]) -> dict[int, Payload]:
        """Note replies; return the uploads, sorted by client, which the method alone keeps."""
        federation, replies = self._federation, dict(sorted(replies.items()))
        self.replied = set(replies)
        self.replies += replies.items()
        federation.tested -= self.replied
        uploads = {c: reply.uplink for c, reply in replies.items() if reply.uplink is not None}
        for reply in replies.values():
            reply.uplink = None
        return uploads

    def client_costs(self) -> dict[str, Any]:
        """Return uploads, time and work of the clients' steps, as fields of a `Round`."""
        work: dict[int, Tallied] = {}
        for client, reply in self.replies:
            work[client] = work[client].then(reply.work) if client in work else reply.work
        seconds = sum([reply.seconds for _, reply in self.replies])
        return {
            "up": Traffic.total([reply.traffic for _, reply in self.replies]),
            "client_seconds": seconds / len(work) if work else None,
            "client_work": Work.total(work.values()),
        }


def pass_down(gate: Gate, down: Downlinks) -> tuple[dict[int, Payload | None], list[Traffic]]:
    """Pass every distinct download through the gate once; return all downloads and their sizes."""
    passed: dict[int, tuple[Payload | None, Traffic]] = {id(None): (None, NO_TRAFFIC)}
    keys = [*map(id, down.values())]
    for key, payload in zip(keys, down.values(), strict=True):
        if payload is not None and key not in passed:
            passed[key] = gate.down(payload)
    payloads = {client: passed[key][0] for client, key in zip(down, keys, strict=True)}
    return payloads, [passed[key][1] for key in keys]
