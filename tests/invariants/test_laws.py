"""The laws of `fedray check` hold for methods of every kind, and find what breaks them.

`make check` runs all laws for all methods.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from small import Few

from fedray.base.errors import FedrayError, one_line
from fedray.laws import conformance
from fedray.laws.conformance import (
    LAWS,
    Subject,
    check_drawn,
    check_equal,
    check_resume,
    small_experiment,
)
from fedray.runtime.ray_executor import RayExecutor

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
    "number_on_self": ("self", "a step changed NumberOnSelf._steps"),
    "array_on_self": ("self", "a step changed ArrayOnSelf._losses"),
    "object_on_self": ("self", "a step changed ObjectOnSelf._record"),
    "data_on_self": ("self", "a step changed DataOnSelf._rounds"),
    "unseeded_draw": ("draws", "round 1: server/model/"),
    "global_draw": ("draws", "round 0: server/model/head.weight"),
    "edited_download": ("runs", "wrote into its download"),
    "data_of_download": ("runs", "round 1 changed the state before it in place: server/model/"),
    "replaced_data": ("models", "replaced its model's tensor 'head.bias'"),
    "replaced_parameter": ("models", "replaced its model's tensor 'head.bias'"),
    "replaced_buffer": ("models", "running_mean'"),
    "added_buffer": ("models", "its model's tensor 'seen'"),
    "edited_state": ("runs", "round 1 changed the state before it in place: server/model/"),
    "order_of_clients": ("order", "round 1: server/model/"),
    "test_images": ("runs", "AttributeError: 'Client' object has no attribute 'test'"),
    "undeclared_payload": ("runs", "report uploads mean, expected model, samples"),
    "module_memory": ("resume", "round 1: server/model/"),
    "own_answers": ("one model", "accuracy of client "),
    "drawn_answers": ("one model", "accuracy of client "),
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
    "law", [law for law in LAWS if law.name != "workers"], ids=lambda x: x.name
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
