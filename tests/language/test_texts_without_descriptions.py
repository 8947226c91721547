"""Texts made of class names alone, and names that replace the data set's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedray.errors import UserError
from fedray.language.descriptions import texts
from fedray.language.templates import TEMPLATES

NAMES = ("laptop_computer", "mug")


def test_plain_is_fedglcls_prompt_and_name_is_bare():
    assert texts(None, NAMES, "plain") == [["a photo of a laptop computer"], ["a photo of a mug"]]
    assert texts(None, NAMES, "name") == [["laptop computer"], ["mug"]]


def test_the_ensemble_has_forty_different_templates_with_one_label_each():
    assert len(set(TEMPLATES)) == len(TEMPLATES) == 40
    assert all(template.count("{label}") == 1 for template in TEMPLATES)
    own = texts(None, NAMES, "ensemble")
    assert [len(found) for found in own] == [40, 40]
    assert all("mug" in text for text in own[1])


def test_other_names_make_other_texts(assemble):
    def tower(*names):
        changes = {"text.names": list(names)} if names else {}
        return assemble("fedtsp", changes).text_tower(torch.device("cpu"))

    proxies = [f"thing {i}" for i in range(10)]
    assert tower(*proxies).texts[3] == "A photo of a thing 3."
    assert tower().texts[3] == "A photo of a three."


def test_names_that_are_too_few(assemble):
    with pytest.raises(UserError, match=r"text\.names gives 2 names for 10 classes"):
        assemble("fedtsp", {"text.names": ["a", "b"]}).text_tower(torch.device("cpu"))


def test_of_unit_length_normalises_before_and_after_the_mean(assemble):
    changes = {"text.style": "ensemble"}
    found = assemble("fedtsp", changes).text_tower(torch.device("cpu"))
    features = found.encoder.features(found.texts).reshape(10, 40, -1)
    unit = F.normalize(F.normalize(features, dim=2).mean(1), dim=1)
    torch.testing.assert_close(found.frozen_prototypes(of_unit_length=True), unit)
    torch.testing.assert_close(found.frozen_prototypes(), features.mean(1))
