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


def test_what_a_base_needs_is_missed_when_the_class_is_made():
    with pytest.raises(TypeError, match=r"class HParams\(PromptFL.HParams, PFedMe.HParams\)"):

        class Crossing(PromptFL, PFedMe):
            pass


def test_the_checks_and_texts_of_all_bases_hold():
    assert MaplePFedMe.HParams.evaluation_only == ("test",)
    assert MaplePFedMe.HParams().weights == "uniform"
    with pytest.raises(ValidationError, match="would jump"):
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
