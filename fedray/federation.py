"""The round loop: draw participants, exchange payloads, test, and yield one record per round.

The loop depends on no particular method; an executor runs the client steps.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from traceback import extract_tb
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from fedray.config import FaultConfig, JoinConfig
from fedray.core import (
    Algorithm,
    Downlinks,
    Exchange,
    Gate,
    Payload,
    Server,
    ServerState,
    SummingMethod,
    Total,
    is_tested_together,
    total_of,
)
from fedray.counts import NO_WORK, Tallied, counted
from fedray.errors import ClientError, Failure, RunFailed, ServerError, UserError
from fedray.evaluation.accountant import Accountant, Spent
from fedray.evaluation.answers import Counts
from fedray.evaluation.metrics import DataFacts, Evaluated, add_declared, add_metric, measure
from fedray.evaluation.protocols import (
    Analysed,
    Analysis,
    CrossEvaluated,
    HasGlobalModel,
)
from fedray.evaluation.splits import OWN
from fedray.storage.files import is_full
from fedray.storage.metric import REPORTED, Select
from fedray.storage.run import Event, Round, Traffic, Work
from fedray.storage.states import StateStore
from fedray.streams import Streams
from fedray.trees import Snapshot, make_contiguous

WAVE = 256
"""Clients that are tested at a time; bounds the memory for downloads and states in transit."""


NO_TRAFFIC = Traffic()
"""A shared default, because constructing a record validates its fields."""


@dataclass(frozen=True)
class Reply:
    """The result of one client's step.

    Attributes:
        uplink: the upload after the gate; None if the step uploads nothing.
        traffic: the size of the upload.
        train_loss: mean loss of the last local epoch; None if the step did not train.
        reports: further numbers that the client step reports.
        seconds: wall time of the step.
        work: counts of the step's work.
        device_bytes: most memory that the process has had in use on its accelerator so far.
    """

    uplink: Payload | None = None
    traffic: Traffic = NO_TRAFFIC
    train_loss: float | None = None
    reports: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    work: Tallied = NO_WORK
    device_bytes: int = 0


class Counted(NamedTuple):
    """The result of a test.

    Attributes:
        clients: the ids of the K tested clients.
        counts: their answers, [K, S, 3, C], or [K, E, S, 3, C] for E models of each client
            (`evaluation.testing`).
        device_bytes: most memory that a process has had in use on its accelerator so far.
    """

    clients: Sequence[int]
    counts: Counts
    device_bytes: int = 0

    @classmethod
    def joined(cls, parts: Sequence[Counted]) -> Counted:
        """Return the results of several groups of clients as one."""
        clients, counts, used = zip(*parts, strict=True)
        return cls([*chain.from_iterable(clients)], np.concatenate(counts), max(used))


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
            The replies sorted by client, and the sum, which is empty unless the task is "sum".
        """

    def test(self, name: str, round_: int, down: Downlinks) -> Counted:
        """Run one test of `evaluation.testing` for every key of `down`, at least one.

        Raises:
            ClientError: if the test of a client fails.
        """

    def close(self) -> None:
        """Release the states."""


@dataclass(frozen=True)
class Plan:
    """The settings of the round loop; most are keys of the experiment.

    Attributes:
        facts: pairs of a round and the facts about the data from that round on, sorted by round.
        lr: maps a round to its learning rate; None if the learning rate never changes.
    """

    rounds: int
    clients: int
    participation: float
    eval_every: int
    faults: FaultConfig
    facts: Sequence[tuple[int, DataFacts]] = ((0, DataFacts()),)
    finetune_epochs: int = 0
    join: JoinConfig = field(default_factory=JoinConfig)
    lr: Callable[[int], float] | None = None
    select: Select = "validation"

    @property
    def newcomers(self) -> Sequence[int]:
        """The ids of the clients that join later."""
        return range(self.clients - self.join.clients, self.clients)

    def joined(self, round_: int) -> Sequence[int]:
        """Return the ids of the clients that have joined by a round."""
        return range(self.clients - (self.join.clients if round_ < self.join.round else 0))

    def phase_at(self, round_: int) -> int:
        """Return the first round of the data phase that a round belongs to."""
        return max(first for first, _ in self.facts if first <= round_)

    def facts_at(self, round_: int) -> DataFacts:
        """Return the facts about the data in a round."""
        return dict(self.facts)[self.phase_at(round_)]

    def is_evaluated(self, round_: int) -> bool:
        """Return True if all clients are tested after a round."""
        return round_ == self.rounds or (self.eval_every > 0 and round_ % self.eval_every == 0)


@dataclass(eq=False)
class Federation:
    """One federated run.

    Attributes:
        algorithm: the method.
        executor: runs client steps.
        gate: checks and counts every payload.
        plan: the settings of the loop.
        server: the server, with the text tower if the method needs one.
        streams: the experiment's random streams.
        accountant: counts the clients' uploads with noise; None without noise.
        snapshot: the federation after the last yielded round.
        tested: the clients whose last own test still holds: on the same data, before any step.
        device_bytes: most memory that a process of clients has had in use on its accelerator.
    """

    algorithm: Algorithm
    executor: Executor
    gate: Gate
    plan: Plan
    server: Server
    streams: Streams
    accountant: Accountant | None = None
    snapshot: Snapshot = field(default=Snapshot(0, {}), init=False)
    tested: set[int] = field(default_factory=set, init=False)
    device_bytes: int = field(default=0, init=False)
    _counts: Counts | None = field(default=None, init=False)
    _phase: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Look up the method's optional features once, because protocols are slow to check."""
        method = self.algorithm
        self._with_global_model = method if isinstance(method, HasGlobalModel) else None
        self._cross_evaluated = method if isinstance(method, CrossEvaluated) else None
        self._analysed = method if isinstance(method, Analysed) else None

    def rounds(self, resume: Snapshot | None = None) -> Iterator[Round]:
        """Yield one record per round, starting with round 0; set `snapshot` before each."""
        self.tested.clear()  # the executor's states may have changed
        if resume is None:
            yield self._round(0, self.plan.joined(0), self._begin)
        else:
            self.snapshot = resume
        for number in range(self.snapshot.round + 1, self.plan.rounds + 1):
            yield self._round(number, self._cohort(number))

    def retest(self, snapshot: Snapshot) -> Round:
        """Repeat the test after a round, without training or counting traffic."""
        self.snapshot = snapshot
        self.tested.clear()
        participants = self._cohort(snapshot.round) if snapshot.round else ()
        return self._round(snapshot.round, participants, lambda _: snapshot.server)

    def sent(self) -> Iterator[Downlinks]:
        """Yield the downloads with which all clients are tested, `WAVE` clients at a time."""
        number = self.snapshot.round
        server = replace(self.server, round=number, joined=self.plan.joined(number))
        return self._downloads(server, self.snapshot.server)

    def _begin(self, exchange: RoundExchange) -> ServerState:
        state = self.algorithm.prepare(self.algorithm.init_server(exchange.server), exchange)
        return self.algorithm.give(state, exchange)

    def _round(
        self,
        number: int,
        participants: Sequence[int],
        other: Callable[[RoundExchange], ServerState] | None = None,
    ) -> Round:
        """Run the method's round, or `other` steps in its place, and test the clients."""
        started = time.perf_counter()
        exchange = RoundExchange(self, number, participants)
        try:
            with counted() as tally:
                if other is not None:
                    state = other(exchange)
                else:
                    state = self.algorithm.give(self.snapshot.server, exchange)
                    state = self.algorithm.round(state, exchange)
            exchange.server_work = Work(*tally.take())
            record, snapshot = self._finish(exchange, state, started)
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
        steps = [n for n in names if hasattr(self.algorithm, n) and not n.startswith("_")]
        return steps[-1] if steps else "round"

    def _cohort(self, round_: int) -> Sequence[int]:
        """Draw a round's participants uniformly without replacement; return their sorted ids."""
        joined = len(self.plan.joined(round_))
        count = max(1, round(self.plan.participation * joined))
        if count == joined:
            return range(count)
        random = self.streams.numpy("participation", round_=round_)
        drawn = random.choice(joined, size=count, replace=False)
        return sorted(int(client) for client in drawn)

    def _finish(
        self, exchange: RoundExchange, state: ServerState, started: float
    ) -> tuple[Round, Snapshot]:
        is_evaluated = self.plan.is_evaluated(exchange.round)
        if is_evaluated:
            state = self.algorithm.give(state, exchange)
        snapshot = Snapshot(exchange.round, make_contiguous(state))
        spent = self._spent(exchange)
        facts = self.plan.facts_at(exchange.round)
        lr = self.plan.lr(exchange.round) if self.plan.lr and exchange.round else None
        evaluated = Evaluated(
            facts, train_losses=exchange.train_losses, spent=spent, lr=lr, select=self.plan.select
        )
        analysis = Analysis()
        if is_evaluated:
            evaluated = self._evaluate(exchange, state, evaluated)
            if self._analysed is not None:
                analysis = self._analysed.analyse(state, exchange.server)
        metrics = measure(evaluated)
        giver = f"the analysis of {self.algorithm.name}"
        add_declared(metrics, analysis.metrics, type(self.algorithm), giver)
        for name, value in _means(exchange.reports).items():
            add_metric(metrics, name, value)
        tests = evaluated.on(OWN, range(self.plan.clients))
        seconds = exchange.seconds.values()
        record = Round(
            round=exchange.round,
            seconds=time.perf_counter() - started,
            client_seconds=sum(seconds) / len(seconds) if seconds else None,
            metrics=metrics,
            per_client=dict(zip(tests.clients.tolist(), tests.accuracy.tolist(), strict=True)),
            up=exchange.up,
            down=exchange.down,
            participants=list(exchange.participants) if exchange.round else [],
            events=exchange.events,
            noised=exchange.noised,
            matrices={name: value.tolist() for name, value in analysis.matrices.items()},
            client_work=Work.total(work for _, work in sorted(exchange.work.items())),
            server_work=exchange.server_work,
        )
        return record, snapshot

    def _spent(self, exchange: RoundExchange) -> Spent | None:
        """Count the round's uploads with noise; return epsilon, or None without noise."""
        if self.accountant is None:
            return None
        noised, joined = exchange.noised, len(exchange.everyone)
        self.accountant.add(exchange.round, noised, exchange.participants, joined)
        return self.accountant.spent(exchange.round)

    def _evaluate(
        self, exchange: RoundExchange, state: ServerState, evaluated: Evaluated
    ) -> Evaluated:
        """Test every client, and the further models that the method declares."""
        is_last = self.plan.finetune_epochs > 0 and exchange.round == self.plan.rounds
        return replace(
            evaluated,
            counts=self._own_tests(exchange, state),
            joined=exchange.everyone,
            newcomers=self.plan.newcomers,
            has_global_model=self._with_global_model is not None
            and self._with_global_model.has_global_model(state),
            cross_evaluations=self._cross_evaluations(exchange, state),
            fine_tuned=self._fine_tuned(exchange, state) if is_last else None,
        )

    def _own_tests(self, exchange: RoundExchange, state: ServerState) -> Counts:
        """Return the counts of all clients; test those whose counts may have changed.

        A client without a download whose last test still holds would give the same counts. If
        clients share a model, all are tested, because they are tested in fixed groups.
        """
        phase = self.plan.phase_at(exchange.round)
        if phase != self._phase:
            self.tested.clear()
        counts = self._counts if self.tested else None
        for sent in self._downloads(exchange.server, state):
            due = {c: down for c, down in sent.items() if down is not None or c not in self.tested}
            if due and is_tested_together(self.algorithm):
                due = dict(sent)
            if due:
                new = self._test("evaluate", exchange.round, due)
                if counts is None:
                    counts = np.zeros((self.plan.clients, *new.shape[1:]), np.int64)
                counts[sorted(due)] = new
        assert counts is not None
        self._phase, self._counts, self.tested = phase, counts, set(range(self.plan.clients))
        return counts

    def _downloads(self, server: Server, state: ServerState) -> Iterator[Downlinks]:
        """Yield the downloads with which all clients are tested, `WAVE` clients at a time."""
        for first in range(0, self.plan.clients, WAVE):
            wave = range(first, min(first + WAVE, self.plan.clients))
            yield _once(self.gate.down, self.algorithm.downlink(state, wave, server))[0]

    def _fine_tuned(self, exchange: RoundExchange, state: ServerState) -> Counts:
        """Return the counts of all clients before fine-tuning and after each epoch."""
        waves = self._downloads(exchange.server, state)
        return np.concatenate([self._test("finetune", exchange.round, sent) for sent in waves])

    def _cross_evaluations(
        self, exchange: RoundExchange, state: ServerState
    ) -> dict[str, list[Counts]]:
        """Return, by name, the counts of each further model that the method declares."""
        if self._cross_evaluated is None:
            return {}
        down = self.gate.down
        requests = self._cross_evaluated.cross_evaluations(state, exchange.server)
        return {
            name: [self._test("evaluate", exchange.round, _once(down, sent)[0]) for sent in models]
            for name, models in requests.items()
        }

    def _test(self, name: str, round_: int, sent: Downlinks) -> Counts:
        """Return the counts of a test, sorted by client."""
        tested = self.executor.test(name, round_, sent)
        self.device_bytes = max(self.device_bytes, tested.device_bytes)
        return tested.counts[np.argsort(tested.clients)]


def _means(reports: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each reported number over the clients that reported it."""
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.items():
            values.setdefault(f"{REPORTED}{name}", []).append(value)
    return {name: sum(reported) / len(reported) for name, reported in values.items()}


class RoundExchange(Exchange):
    """The exchange of one round: runs its calls, injects faults, and counts traffic and work."""

    def __init__(self, federation: Federation, round_: int, participants: Sequence[int]) -> None:
        self.round = round_
        self.participants = participants
        self.everyone: Sequence[int] = federation.plan.joined(round_)
        self.replied: set[int] = set()
        self.absent: set[int] = set()
        self.server = replace(federation.server, round=round_, joined=self.everyone)
        self.up = Traffic()
        self.down = Traffic()
        self.events: list[Event] = []
        self.train_losses: list[float] = []
        self.reports: list[Mapping[str, float]] = []
        self.seconds: dict[int, float] = {}
        self.work: dict[int, Tallied] = {}
        self.server_work = Work()
        self.noised: list[Sequence[int]] = []
        self._calls = Counter[str]()  # with noise, by step
        self._federation = federation

    def call(self, step: str, down: Downlinks) -> dict[int, Any]:
        """Send downloads, run a step and collect the uploads; see `core.Exchange.call`."""
        executor, before = self._federation.executor, self._calls[step]
        reached, name = self._send(down), f"{step}/{before + 1}" if before else step
        replies = executor.run("step", name, self.round, reached)[0] if reached else {}
        uploads = self._collect(step, replies)
        privacy = self._federation.gate.privacy
        if privacy is None or not any(map(privacy.covers, uploads.values())):
            return uploads
        if privacy.noise_multiplier > 0:
            self._calls[step] += 1
            self.noised.append([*reached])
        return privacy.release(uploads, round_=self.round, step=name)

    def total(self, step: str, down: Downlinks) -> Total:
        """Send downloads, run a step and sum the uploads; see `core.Exchange.total`."""
        algorithm, executor = self._federation.algorithm, self._federation.executor
        assert isinstance(algorithm, SummingMethod)
        if self._federation.gate.privacy is not None:  # noise belongs to the fields of uploads
            return total_of(algorithm.summand, self.call(step, down))
        if not (reached := self._send(down)):
            return Total()
        replies, total = executor.run("sum", step, self.round, reached)
        self._collect(step, replies)
        return total

    def _send(self, down: Downlinks) -> dict[int, Payload | None]:
        """Send downloads; return those of the clients that do not drop out, sorted by client."""
        self.replied = set()
        passed, traffic = _once(self._federation.gate.down, dict(sorted(down.items())))
        self.down = Traffic.total([self.down, *traffic.values()])
        absent = {client for client in passed if self._drops(client)}
        self.absent |= absent
        dropped = [Event(c, "dropped") for c in sorted(absent.intersection(self.participants))]
        self.events += [event for event in dropped if event not in self.events]  # once a round
        return {client: payload for client, payload in passed.items() if client not in absent}

    def _collect(self, step: str, replies: Mapping[int, Reply]) -> dict[int, Payload]:
        """Record replies; return the uploads, sorted by client."""
        federation, replies = self._federation, dict(sorted(replies.items()))
        self.replied.update(replies)
        federation.tested.difference_update(replies)
        for client, reply in replies.items():
            if client in self.work:
                self.seconds[client] += reply.seconds
                self.work[client] = self.work[client].then(reply.work)
            else:
                self.seconds[client], self.work[client] = reply.seconds, reply.work
        done = replies.values()
        used = [reply.device_bytes for reply in done]
        federation.device_bytes = max([federation.device_bytes, *used])
        self.up = Traffic.total([self.up, *[reply.traffic for reply in done]])
        self.reports += [reply.reports for reply in done]
        self.train_losses += [r.train_loss for r in done if r.train_loss is not None]
        return {client: r.uplink for client, r in replies.items() if r.uplink is not None}

    def _drops(self, client: int) -> bool:
        """Return True if the scenario makes this client drop out; nobody does in round 0."""
        probability = self._federation.plan.faults.drop
        if probability == 0 or self.round == 0:
            return False
        random = self._federation.streams.numpy("fault_drop", round_=self.round, client=client)
        return bool(random.random() < probability)


def _once(
    gate: Callable[[Payload], tuple[Payload, Traffic]], down: Downlinks
) -> tuple[dict[int, Payload | None], dict[int, Traffic]]:
    """Pass every distinct payload through the gate once; return payloads and traffic by client."""
    keys, passed = [*map(id, down.values())], dict[int, tuple[Payload | None, Traffic]]()
    for key, payload in zip(keys, down.values(), strict=True):
        if key not in passed:
            passed[key] = (None, NO_TRAFFIC) if payload is None else gate(payload)
    payloads = {client: passed[key][0] for client, key in zip(down, keys, strict=True)}
    traffic = {client: passed[key][1] for client, key in zip(down, keys, strict=True)}
    return payloads, traffic
