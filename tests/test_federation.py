"""The round loop alone, with clients that answer by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from answers import counts_of
from lab import refused

from fedray.base.errors import ClientError, Failure
from fedray.base.streams import Streams
from fedray.cli.catalogue import experiment_keys
from fedray.config import Experiment
from fedray.core import (
    Algorithm,
    Fields,
    Gate,
    Payload,
    Privacy,
    Total,
    sent,
)
from fedray.evaluation.accountant import Accountant, gaussian_epsilon
from fedray.federation import Federation, Plan, Reply

STEPS = ("first", "second")


Made = Fields(
    "Made",
    {
        "round": sent("statistics", number=int),
    },
)


class TwoSteps(Algorithm):
    """Two exchanges a round; notes in which rounds the uploads that each gave were made."""

    name = "two_steps"

    @cached_property
    def notes(self) -> Any:
        return SimpleNamespace(got={})

    def round(self, state: Any, exchange: Any) -> Any:
        replies = {s: exchange.call(s, dict.fromkeys(exchange.participants)) for s in STEPS}
        self.notes.got[exchange.round] = {
            step: {client: made.round for client, made in uplinks.items()}
            for step, uplinks in replies.items()
        }
        return state


@dataclass
class Clients:
    """An executor whose clients report and answer what they are told to."""

    reports: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    answers: Mapping[int, tuple[int, int]] = field(default_factory=dict)

    def run(self, task: str, name: str, round_: int, down: Any) -> Any:
        done = getattr(self, task)(name, round_, down)
        return done if task == "sum" else (done, Total())

    def step(self, name: str, round_: int, down: Any) -> dict[int, Reply]:
        reports = self.reports if name == "first" else {}
        return {client: Reply(Made(round_), reports=reports.get(client, {})) for client in down}

    def test(self, name: str, round_: int, down: Any) -> np.ndarray:
        return counts_of(*(self.answers.get(client, (1, 1)) for client in sorted(down)))


class Added(Algorithm):
    """Adds up in which rounds uploads were made; notes what it got."""

    name = "added"

    @cached_property
    def notes(self) -> Any:
        return SimpleNamespace(got=[])

    def server_step(self, state: Any, total: Any, server: Any) -> Any:
        self.notes.got.append((total.clients, float(total["round"])))
        return state


class FailingClients(Clients):
    """Client 1 fails."""

    def sum(self, name: str, round_: int, down: Any) -> tuple[dict[int, Reply], Total]:
        if 1 in down:
            raise ClientError(1, round_, name, Failure("oops"))
        return {}, Total()


@dataclass(frozen=True)
class NoServer:
    round: int = 0
    joined: Sequence[int] = ()
    streams: Streams = Streams(0)


def plan_of(rounds: int, clients: int, participation: float = 1.0, **faults: Any) -> Plan:
    keys = {"rounds": rounds, "participation": participation, "eval_every": 1}
    return Plan(Experiment(**keys, data={"clients": clients}, faults=faults))


def federation(rounds: int, clients: Clients | None = None, **faults: Any) -> Federation:
    plan = plan_of(rounds, 3, **faults)
    return Federation(TwoSteps(), clients or Clients(), Gate({}), plan, NoServer())


@pytest.mark.parametrize(
    ("share", "clients", "participants"),
    [(0.5, 5, 2), (0.5, 7, 4), (0.25, 10, 2), (0.26, 10, 3), (0.01, 5, 1), (1.0, 5, 5)],
)
def test_how_many_take_part_is_rounded_as_the_key_says(share, clients, participants):
    plan = plan_of(1, clients, share)
    run = Federation(TwoSteps(), Clients(), Gate({}), plan, NoServer())
    assert len(run._cohort(1)) == participants
    said = next(key.summary for key in experiment_keys() if key.name == "participation")
    assert "half to even" in said
    assert "at least 1" in said


def test_a_client_that_fails_ends_the_run():
    plan, method = plan_of(2, 3), Added()
    run = Federation(method, FailingClients(), Gate({}), plan, NoServer())
    with pytest.raises(ClientError, match=r"^client 1, round 1, step client_update: oops"):
        list(run.rounds())
    assert method.notes.got == []


def test_without_any_upload_there_is_no_server_step():
    method = Added()
    plan = plan_of(1, 2, drop=1.0)
    list(Federation(method, FailingClients(), Gate({}), plan, NoServer()).rounds())
    assert method.notes.got == []


Weighed = Fields(
    "Weighed",
    {
        "weights": sent("weights", axes="n"),
    },
)


class Twice(Algorithm):
    """Calls a step twice in its second round: for everybody, or for each half."""

    name = "twice"
    up: ClassVar[Any] = Weighed

    calls: tuple[tuple[int, ...], ...]

    def round(self, state: Any, exchange: Any) -> Any:
        for clients in self.calls[: exchange.round]:
            exchange.call("first", dict.fromkeys(clients))
        return state


@dataclass
class Telling(Clients):
    """Clients that upload what noise covers, or nothing of it; notes what they are asked for."""

    upload: Payload = field(default_factory=lambda: Weighed(torch.ones(2)))
    asked: list[str] = field(default_factory=list)

    def step(self, name: str, round_: int, down: Any) -> dict[int, Reply]:
        self.asked.append(name)
        return {client: Reply(self.upload) for client in down}


def noisy(mode: Any, calls: Any, clients: Clients) -> Federation:
    gate = Gate({}, privacy=Privacy(mode, 1.0, 1.0))
    plan = plan_of(2, 3)
    counts = Accountant(mode, 1.0, 1e-5)
    return Federation(Twice(calls=calls), clients, gate, plan, NoServer(), counts)


def test_a_second_call_of_a_step_has_other_noise_and_costs_epsilon():
    clients = Telling()
    run = noisy("local", ((0, 1), (1, 2)), clients)
    _, one, two = run.rounds()
    assert clients.asked == ["first", "first", "first/2"]
    assert [done.noised for done in (one, two)] == [[[0, 1]], [[0, 1], [1, 2]]]
    spent = [done.metrics["epsilon_known_participants"] for done in (one, two)]
    assert spent == [gaussian_epsilon(1.0, times, 1e-5) for times in (1, 3)]


@pytest.mark.parametrize("mode", ["local", "central"])
def test_a_call_without_noised_numbers_costs_no_epsilon(mode):
    clients = Telling(upload=Made(1))
    run = noisy(mode, ((0, 1), (0, 1)), clients)
    vars(run.algorithm)["up"] = Made
    *_, last = run.rounds()
    assert clients.asked == ["first"] * 3
    assert (last.noised, last.metrics["epsilon"]) == ([], 0)


def test_uploads_that_central_noise_does_not_reach_are_not_read():
    refused(lambda: list(noisy("central", ((0, 1),), Telling()).rounds()), "first")


class Sending(Algorithm):
    """Sends each participant two numbers."""

    name = "sending"

    def downlink(self, state: Any, clients: Any, server: Any) -> Any:
        return dict.fromkeys(clients, Weighed(torch.ones(2)))


def test_what_was_sent_to_those_who_dropped_out_was_sent():
    plan = plan_of(1, 3, drop=1.0)
    run = Federation(Sending(), Clients(), Gate({}), plan, NoServer())
    _, one = run.rounds()
    assert one.down.bytes == {"weights": 3 * 2 * 4}
    assert one.absent == [*range(3)]


class CallsEverybody(Algorithm):
    """Calls all clients, whoever takes part."""

    name = "calls_everybody"

    def round(self, state: Any, exchange: Any) -> Any:
        exchange.call("first", dict.fromkeys(exchange.everyone))
        return state


def test_only_participants_are_an_event_of_the_round():
    plan, clients = plan_of(2, 4, 0.5, drop=1.0), Clients()
    run = Federation(CallsEverybody(), clients, Gate({}), plan, NoServer())
    for done in run.rounds():
        assert done.absent == list(done.participants)


def test_who_is_absent_is_one_event_in_however_many_exchanges():
    _, one = federation(1, drop=1.0).rounds()
    assert one.absent == [*range(3)]


def test_a_report_is_the_mean_over_the_clients_that_gave_it():
    reports = {0: {"a": 1.0}, 1: {"a": 4.0, "b": 2.0}}
    zero, one = federation(1, Clients(reports)).rounds()
    found = {name: value for name, value in one.metrics.items() if name.startswith("client/")}
    assert found == {"client/a": 2.5, "client/b": 2.0}
    assert not any(name.startswith("client/") for name in zero.metrics)


def test_a_client_without_test_images_has_no_accuracy():
    answers = {0: (3, 4), 1: (0, 0)}
    for result in federation(1, Clients(answers=answers)).rounds():
        assert result.per_client == {0: 0.75, 2: 1.0}
        assert result.metrics["local_accuracy"] == pytest.approx(0.875)
