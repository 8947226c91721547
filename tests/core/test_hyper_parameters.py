"""A method with several bases declares the hyper-parameters of all of them."""

from __future__ import annotations

import pickle

import pytest
from pydantic import PydanticUserError, ValidationError

from fedray.algorithms.averaging.fedprox import FedProx
from fedray.algorithms.personalised.pfedme import PFedMe
from fedray.algorithms.prompts.crossings import MaplePFedMe
from fedray.algorithms.prompts.promptfl import PromptFL
from fedray.cli.catalogue import parameter_texts


def test_a_method_has_the_hyper_parameters_of_all_bases():
    class Crossing(PromptFL, PFedMe):
        pass

    assert {"length", "words", "eta", "lambda_"} <= Crossing.model_fields.keys()


def test_the_checks_and_texts_of_all_bases_hold():
    assert MaplePFedMe.evaluation_only == ("test",)
    assert MaplePFedMe().weights == "uniform"
    with pytest.raises(ValidationError, match="exceeds 1 / lambda"):
        MaplePFedMe(eta=1.0, **{"lambda": 15.0})
    texts = parameter_texts(MaplePFedMe)
    assert set(texts) >= set(MaplePFedMe.model_fields)
    assert texts["weights"].startswith("Client weights in the mean: uniform, 1/K (paper)")


def test_hyper_parameters_of_several_bases_travel():
    assert pickle.loads(pickle.dumps(MaplePFedMe(eta=0.01))).eta == 0.01


def test_an_attribute_without_a_type_hides_no_hyper_parameter():
    with pytest.raises(PydanticUserError, match="mu"):
        type("Mine", (FedProx,), {"mu": 0})


def test_a_method_keeps_nothing_in_itself():
    with pytest.raises(ValidationError, match="frozen"):
        FedProx().mu = 1.0


@pytest.mark.parametrize(
    ("claim", "value"), [("stacks", False), ("one_model", False), ("round", 3)]
)
def test_a_claim_with_a_type_is_refused(claim, value):
    with pytest.raises(TypeError, match=f"Mine.{claim}: write it without a type"):
        type("Mine", (FedProx,), {claim: value, "__annotations__": {claim: type(value)}})
