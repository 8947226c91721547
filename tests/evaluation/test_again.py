"""Who is tested again: clients whose answers may have changed, with the same numbers."""

from __future__ import annotations

from itertools import chain

import pytest

from fedray.algorithms.personalised.local import Local
from fedray.federation import Federation
from fedray.runtime.groups import GroupRunner

PARTIAL = {"participation": 0.5, "rounds": 3, "eval_every": 1}
ONE_MODEL = {**PARTIAL, "model.group": "mlp"}


@pytest.fixture
def tested(monkeypatch, run):
    """`tested(...)` runs an experiment; gives the run, and whom its rounds have tested."""

    def tested(*args, **keywords):
        calls: dict[int, list[int]] = {}
        original = GroupRunner._test

        def test(self, name, round_, groups, first):
            if name == "evaluate":
                calls.setdefault(round_, []).extend(chain(*groups))
            return original(self, name, round_, groups, first)

        with monkeypatch.context() as patched:
            patched.setattr(GroupRunner, "_test", test)
            return run(*args, **keywords), calls

    return tested


def whole(run, monkeypatch, *args):
    """The same run, with every client tested in every round."""
    own_tests = Federation._own_tests
    with monkeypatch.context() as patched:
        patched.setattr(
            Federation, "_own_tests", lambda self, *a: self.tested.clear() or own_tests(self, *a)
        )
        return run(*args)


@pytest.mark.parametrize(
    "changes",
    [
        PARTIAL,
        {**PARTIAL, "faults.drop": 0.5},
        {**PARTIAL, "lr_schedule": "cosine", "finetune_epochs": 1},
    ],
)
def test_only_participants_of_a_local_method_are_tested_again(tested, run, monkeypatch, changes):
    done, calls = tested("local", changes)
    assert calls[0] == [0, 1, 2, 3]
    for result in done.results[1:]:
        absent = set(result.absent)
        assert calls.get(result.round, []) == [c for c in result.participants if c not in absent]
    full = whole(run, monkeypatch, "local", changes)
    assert [r.metrics for r in done.results] == [r.metrics for r in full.results]
    assert [r.per_client for r in done.results] == [r.per_client for r in full.results]


def test_a_new_global_model_tests_everybody(tested):
    _, calls = tested("fedavg", ONE_MODEL)
    assert all(calls[round_] == [0, 1, 2, 3] for round_ in range(4))


def test_other_images_test_everybody(tested):
    phases = [{"round": 2, "partition": {"alpha": 50}}]
    _, calls = tested("local", {**PARTIAL, "data.evolution.phases": phases})
    assert calls[2] == [0, 1, 2, 3]
    assert len(calls[1]) == len(calls[3]) == 2


def test_a_test_sees_the_same_client_in_every_round(run, monkeypatch):
    seen = []
    begin = Local.begin

    def begins(self, client, state, down):
        if not client.train_losses:
            seen.append((client.round, client.setting.training.lr))
        return begin(self, client, state, down)

    monkeypatch.setattr(Local, "begin", begins)
    with monkeypatch.context() as patched:
        patched.setattr(Local, "client_update", lambda self, client, state, down: (None, state))
        run("local", {**PARTIAL, "lr_schedule": "cosine"})
    assert set(seen) == {(0, 0.05)}
