"""Texts made of class names alone, and names that replace the data set's."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F

from fedray.base.errors import UserError
from fedray.config import component
from fedray.language.descriptions import FOLDER, canonical_word
from fedray.language.names import load_names
from fedray.language.styles import CLIP_ENSEMBLE, ENSEMBLE, class_texts

NAMES = ("laptop_computer", "mug")


def texts(style: str) -> list[list[str]]:
    return class_texts(component("text style", style).build(), NAMES)


def test_plain_is_fedglcls_prompt_and_name_is_bare():
    assert texts("plain") == [["a photo of a laptop computer"], ["a photo of a mug"]]
    assert texts("name") == [["laptop computer"], ["mug"]]


def test_the_ensemble_has_clips_eighty_templates_and_five_more():
    from open_clip.zero_shot_metadata import OPENAI_IMAGENET_TEMPLATES

    assert list(CLIP_ENSEMBLE) == [make("{label}") for make in OPENAI_IMAGENET_TEMPLATES]
    assert len(CLIP_ENSEMBLE) == 80
    assert len(set(ENSEMBLE)) == len(ENSEMBLE) == 85
    assert all(template.count("{label}") == 1 for template in ENSEMBLE)
    laptop, mug = texts("ensemble")
    assert (len(laptop), len(mug)) == (85, 85)
    assert all("mug" in text for text in mug)


def test_other_names_make_other_texts(text_tower_of):
    def tower(*names):
        changes = {"text.names": list(names)} if names else {}
        return text_tower_of("fedtsp", changes)

    proxies = [f"thing {i}" for i in range(10)]
    assert tower(*proxies).texts[3] == "A photo of a thing 3."
    assert tower().texts[3] == "A photo of a three."


def test_names_by_a_list(text_tower_of, tmp_path):
    assert text_tower_of("fedtsp", {"text.names": "domainnet10"}).texts[3].endswith("ice cream.")
    file = tmp_path / "names.json"
    file.write_text(json.dumps([f"thing {i}" for i in range(10)]))
    assert text_tower_of("fedtsp", {"text.names": str(file)}).texts[2] == "A photo of a thing 2."
    with pytest.raises(UserError, match=r"imagenet100 gives 100 names for 10 classes"):
        text_tower_of("fedtsp", {"text.names": "imagenet100"})
    with pytest.raises(UserError, match=r"no shipped list 'imagnet100'.*Did you mean 'imagenet1"):
        load_names("imagnet100")
    file.write_text('{"a": 1}')
    with pytest.raises(UserError, match=r"names\.json"):
        load_names(str(file))


def test_the_proxy_names_are_no_classes_of_cifar100():
    names = load_names("imagenet100")
    assert len(set(names)) == len(names) == 100
    cifar100 = json.loads((FOLDER / "cifar100.json").read_text())
    assert not {name.casefold() for name in names} & {canonical_word(name) for name in cifar100}


def test_of_unit_length_normalises_before_and_after_the_mean(text_tower_of):
    changes = {"text.style": "ensemble"}
    found = text_tower_of("fedtsp", changes)
    features = found.encoder.features(found.texts).reshape(10, 85, -1)
    unit = F.normalize(F.normalize(features, dim=2).mean(1), dim=1)
    torch.testing.assert_close(found.frozen_prototypes(of_unit_length=True), unit)
    torch.testing.assert_close(found.frozen_prototypes(), features.mean(1))
