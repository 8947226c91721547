"""A client whose step before the first round fails is sent the same again before it needs it."""

from __future__ import annotations

import pytest

from fedray.core import algorithms

DROP = {"faults.on_client_error": "drop", "local_epochs": 1, "rounds": 4}
TARGETS = {"algorithm.target_steps": 10}
GIVEN = [
    ("fedetf", "receive_simplex", {}),
    ("fedglcl", "receive_text", {}),
    ("fedglcl_fedprox", "receive_text", {}),
    ("fedglcl_moon", "receive_text", {}),
    ("fedglcl_l", "receive_text", {}),
    ("fedglcl_l", "receive_inputs", {"algorithm.blocks": 1}),
    ("fedbabu", "receive_head", {"model.init": "independent"}),
    ("alignfed", "keep_targets", TARGETS),
]
"""The methods whose clients keep what they are sent before the first round, and the step."""


@pytest.fixture
def fail_once(monkeypatch):
    """`fail_once(method, step)`: client 1's step fails in round 0."""

    def fail_once(method, step):
        owner = algorithms.get(method)
        succeed = getattr(owner, step)

        def fail(self, client, state, down):
            if (client.id, client.round) == (1, 0):
                raise ArithmeticError("no such thing")
            return succeed(self, client, state, down)

        monkeypatch.setattr(owner, step, fail)

    return fail_once


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize(("method", "step", "keys"), GIVEN)
def test_a_client_gets_what_it_missed_before_it_trains(
    run, fail_once, method, step, keys, participation
):
    """Its models and accuracies are those of a run without the failure, in every round."""
    keys = {**DROP, **keys, "participation": participation, "model.group": "mlp"}
    whole = run(method, keys)
    fail_once(method, step)
    done = run(method, keys)
    assert [event.client for event in done.results[0].events] == [1]
    assert not any(result.events for result in done.results[1:])
    assert done.same_clients_as(whole)
    first = next(result.round for result in done.results if 1 in result.participants)
    for result, other in zip(done.results, whole.results, strict=True):
        extra = result.down.total_bytes - other.down.total_bytes
        assert (extra > 0) == (result.round == first), "it is sent once more, and no oftener"


def test_prompts_that_a_client_could_not_take_over_are_sent_with_the_next_round(run, monkeypatch):
    owner = algorithms.get("fedmgp")
    succeed = owner.write_back

    def fail(self, client, state, down):
        if (client.id, client.round) == (1, 1):
            raise ArithmeticError("no such thing")
        return succeed(self, client, state, down)

    monkeypatch.setattr(owner, "write_back", fail)
    small = {"data.samples": 120, "data.clients": 3, "rounds": 2}
    done = run("fedmgp", {**small, "faults.on_client_error": "drop"})
    assert done.servers[1]["holders"].tolist() == [True, False, True]
    before = done.servers[1]
    server = done.assembly.server("cpu")
    sent = done.assembly.algorithm.downlink(before, range(3), server)
    assert [payload is None for payload in sent.values()] == [True, False, True]


@pytest.mark.parametrize("step", ["offer_validation", "receive_validation"])
def test_validation_images_that_a_client_missed_are_exchanged_before_it_trains(
    run, fail_once, step
):
    small = {"data.samples": 120, "data.clients": 3, "data.validation_fraction": 0.2}
    fail_once("dp2fl", step)
    done = run("dp2fl", {**DROP, **small, "rounds": 1, "algorithm.length": 2})
    assert [event.client for event in done.results[0].events] == [1]
    assert not done.results[1].events
    assert done.servers[1]["holds"].all(), "everyone has measured on all validation images"
