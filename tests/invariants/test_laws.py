"""The laws of `fedray check` hold for methods of every kind, and find what breaks them.

`make check` runs all laws for all methods.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import pytest
from small import Few

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import algorithms, method
from fedray.errors import FedrayError, ServerError, one_line
from fedray.runtime import conformance
from fedray.runtime.conformance import (
    LAWS,
    Subject,
    check_drawn,
    check_dropout,
    check_equal,
    check_resume,
    check_state_entries,
    small_experiment,
)
from fedray.runtime.isolation import Isolation
from fedray.runtime.ray_executor import RayExecutor
from fedray.runtime.traces import Violation

KEEPING = (
    *("scaffold", "moon", "fedbn", "fedglcl_moon", "fedpac", "fedpcl", "fedbabu", "fedetf"),
    *("fedconcat", "fedfa_augmentation", "fedglcl_l", "fedtsp", "fedtsp_global", "pfedme"),
    *("fml", "fedkd", "fedmrl", "fedgen", "feddistill", "alignfed", "fedtgp", "dp2fl"),
    *("promptfolio", "fedotp", "fedpgp", "promptfl_pfedme", "fedtpg", "pfedmoap"),
)
"""Methods whose clients, or server, keep something between rounds."""
UNLIKE = ("fedgen", "feddistill", "fedtsp", "fedtgp")
"""Those of them that are checked with clients of unlike networks."""


BROKEN = {
    "number_on_self": ("self", "NumberOnSelf.steps"),
    "array_on_self": ("self", "client_update changed ArrayOnSelf.losses"),
    "object_on_self": ("self", "client_update changed ObjectOnSelf.record"),
    "data_on_self": ("self", "server, round 1 changed DataOnSelf.rounds"),
    "unseeded_draw": ("draws", "round 1: server/model/"),
    "global_draw": ("draws", "round 0: server/model/head.weight"),
    "edited_download": ("runs", "wrote into its download (model)"),
    "data_of_download": ("arguments", "changed its download in place: model.head.bias"),
    "replaced_data": ("arguments", "replaced its model's tensor 'head.bias'"),
    "replaced_parameter": ("arguments", "replaced its model's tensor 'head.bias'"),
    "replaced_buffer": ("arguments", "running_mean'"),
    "added_buffer": ("arguments", "its model's tensor 'seen'"),
    "frozen_parameter": ("arguments", "tensor 'head.bias', or changed its requires_grad"),
    "edited_state": ("arguments", "server, round 1 changed its state in place: model."),
    "order_of_clients": ("order", "round 1: server/model/"),
    "test_images": ("runs", "AttributeError: 'Client' object has no attribute 'test'"),
    "undeclared_payload": ("runs", "Secret cannot travel, expected FedAvg.up"),
    "module_memory": ("resume", "round 1: server/model/"),
    "own_answers": ("one model", "accuracy of client "),
}
"""By method: a law that it breaks, and words of the difference."""
OFFENDERS = Path(__file__).with_name("offenders.py")


def subject(method: str) -> Subject:
    sets = [("model.group", "digits")] if method in UNLIKE else []
    return Subject(small_experiment(method, sets))


@pytest.fixture(scope="module", params=["fedavg", "fedproto"])
def checked(request) -> Subject:
    return subject(request.param)


@pytest.mark.parametrize(
    "law", [law for law in LAWS if "worker" not in law.name], ids=lambda x: x.name
)
def test_a_law_holds(checked, law):
    law.check(checked, None)


@pytest.mark.parametrize("method", KEEPING)
def test_what_is_kept_survives_an_interruption(method):
    check_resume(subject(method))


@pytest.mark.ray
@pytest.mark.parametrize("method", KEEPING)
def test_two_workers_give_the_numbers_of_one_process(pool, method):
    check_equal(subject(method), partial(RayExecutor, pool=Few(pool, 2)))


@pytest.mark.parametrize("method", BROKEN)
def test_a_method_that_breaks_a_law_is_found(method):
    name, words = BROKEN[method]
    (law,) = [law for law in LAWS if law.name == name]
    broken = Subject(small_experiment(method, (), [str(OFFENDERS)]))
    with pytest.raises(FedrayError) as raised:
        law.check(broken, None)
    assert words in one_line(raised.value)


def test_a_drawn_experiment_that_diverges_breaks_no_law(monkeypatch):
    monkeypatch.setattr(conformance, "DRAWN", (1,))
    check_drawn(subject("fedtgp"))


@pytest.mark.parametrize("method", ["local", "fedproto", "fedetf"])
def test_dropout_in_tests_that_are_not_isolated_is_found(monkeypatch, method):
    class OnlySteps(Isolation):
        def step(self, seed):
            return nullcontext()

    monkeypatch.setattr("fedray.runtime.contexts.Isolation", OnlySteps)
    with pytest.raises(Violation):
        check_dropout(subject(method))


def test_a_method_that_minds_another_entry_is_found(monkeypatch):
    algorithms.names()
    monkeypatch.setattr(algorithms, "_entries", dict(algorithms._entries))

    @method("counting", "Counting", "-")
    class Counting(FedAvg):
        def downlink(self, state, clients, server):
            (model,) = state.values()
            return super().downlink({"model": model}, clients, server)

    with pytest.raises(ServerError):
        check_state_entries(subject("counting"))
