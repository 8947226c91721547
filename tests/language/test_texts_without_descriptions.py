"""Texts made of class names alone, and names that replace the data set's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fedray.config import Component
from fedray.errors import UserError
from fedray.language.styles import class_texts, text_style
from fedray.language.templates import ENSEMBLE

NAMES = ("laptop_computer", "mug")


def texts(style: str) -> list[list[str]]:
    return class_texts(text_style(Component(name=style)), NAMES)


def test_plain_is_fedglcls_prompt_and_name_is_bare():
    assert texts("plain") == [["a photo of a laptop computer"], ["a photo of a mug"]]
    assert texts("name") == [["laptop computer"], ["mug"]]


def test_the_ensemble_has_forty_different_templates_with_one_label_each():
    assert len(set(ENSEMBLE)) == len(ENSEMBLE) == 40
    assert all(template.count("{label}") == 1 for template in ENSEMBLE)
    laptop, mug = texts("ensemble")
    assert (len(laptop), len(mug)) == (40, 40)
    assert all("mug" in text for text in mug)


def test_other_names_make_other_texts(text_tower_of):
    def tower(*names):
        changes = {"text.names": list(names)} if names else {}
        return text_tower_of("fedtsp", changes)

    proxies = [f"thing {i}" for i in range(10)]
    assert tower(*proxies).texts[3] == "A photo of a thing 3."
    assert tower().texts[3] == "A photo of a three."


def test_names_that_are_too_few(text_tower_of):
    with pytest.raises(UserError, match=r"text\.names gives 2 names for 10 classes"):
        text_tower_of("fedtsp", {"text.names": ["a", "b"]})


def test_of_unit_length_normalises_before_and_after_the_mean(text_tower_of):
    changes = {"text.style": "ensemble"}
    found = text_tower_of("fedtsp", changes)
    features = found.encoder.features(found.texts).reshape(10, 40, -1)
    unit = F.normalize(F.normalize(features, dim=2).mean(1), dim=1)
    torch.testing.assert_close(found.frozen_prototypes(of_unit_length=True), unit)
    torch.testing.assert_close(found.frozen_prototypes(), features.mean(1))
