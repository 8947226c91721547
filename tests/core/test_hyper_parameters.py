"""A method without hyper-parameters of its own has those of all its bases."""

from __future__ import annotations

import pickle

import pytest
from pydantic import ValidationError

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.averaging.fedprox import FedProx
from fedray.algorithms.personalised.pfedme import PFedMe
from fedray.algorithms.prompts.crossings import MaplePFedMe
from fedray.algorithms.prompts.promptfl import PromptFL
from fedray.cli.catalogue import parameter_texts
from fedray.core import Algorithm


class Crossing(PromptFL, PFedMe):
    """PFedMe's default of `weights` comes before FedAvg's, which PromptFL inherits."""


def test_the_first_class_that_declares_a_default_counts():
    assert FedAvg.HParams().weights == PromptFL.HParams().weights == "samples"
    assert Crossing.HParams().weights == "uniform"
    expected = {"length", "words", "weights", "lambda_", "inner_steps", "eta", "beta", "test"}
    assert set(Crossing.HParams.model_fields) == expected
    assert Crossing.HParams.evaluation_only == ("test",)


def test_the_checks_and_texts_of_all_bases_hold():
    with pytest.raises(ValidationError, match="would jump"):
        Crossing.HParams(eta=1.0, **{"lambda": 15.0})
    texts = parameter_texts(Crossing.HParams)
    assert set(texts) >= set(Crossing.HParams.model_fields)
    assert texts["weights"].startswith("Client weights in the mean: uniform, 1/K (paper)")


def test_one_base_gives_its_own_class():
    class OneBase(FedProx):
        pass

    class NoBase(Algorithm):
        pass

    assert OneBase.HParams is FedProx.HParams
    assert NoBase.HParams is Algorithm.HParams


def test_joint_hyper_parameters_travel():
    assert pickle.loads(pickle.dumps(MaplePFedMe.HParams(eta=0.01))).eta == 0.01
