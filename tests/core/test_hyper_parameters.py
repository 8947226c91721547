"""A method with several bases declares the hyper-parameters of all of them."""

from __future__ import annotations

import pickle

import pytest
from pydantic import ValidationError

from fedray.algorithms.averaging.fedprox import FedProx
from fedray.algorithms.personalised.pfedme import PFedMe
from fedray.algorithms.prompts.crossings import MaplePFedMe
from fedray.algorithms.prompts.promptfl import PromptFL
from fedray.cli.catalogue import parameter_texts
from fedray.core import Algorithm


def test_a_method_has_the_hyper_parameters_of_all_bases():
    class Crossing(PromptFL, PFedMe):
        pass

    assert {"length", "words", "eta", "lambda_"} <= Crossing.HParams.model_fields.keys()


def test_the_checks_and_texts_of_all_bases_hold():
    assert MaplePFedMe.evaluation_only == ("test",)
    assert MaplePFedMe.HParams().weights == "uniform"
    with pytest.raises(ValidationError, match="exceeds 1 / lambda"):
        MaplePFedMe.HParams(eta=1.0, **{"lambda": 15.0})
    texts = parameter_texts(MaplePFedMe.HParams)
    assert set(texts) >= set(MaplePFedMe.HParams.model_fields)
    assert texts["weights"].startswith("Client weights in the mean: uniform, 1/K (paper)")


def test_one_base_gives_its_own_class():
    class OneBase(FedProx):
        pass

    class NoBase(Algorithm):
        pass

    assert OneBase.HParams is FedProx.HParams
    assert NoBase.HParams is Algorithm.HParams


def test_hyper_parameters_of_several_bases_travel():
    assert pickle.loads(pickle.dumps(MaplePFedMe.HParams(eta=0.01))).eta == 0.01


@pytest.mark.parametrize(("name", "types"), [("mu", {}), ("stacks", {"stacks": bool})])
def test_what_would_hide_a_hyper_parameter_or_a_claim_is_refused(name, types):
    with pytest.raises(TypeError, match=name):
        type("Mine", (FedProx,), {name: 0, "__annotations__": types})
