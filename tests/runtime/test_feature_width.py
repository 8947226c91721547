"""The width of features: the models' own, or what a key or a text encoder asks for."""

from __future__ import annotations

import pytest
import torch

from fedray.base.errors import UserError


def extractor(assembly, architecture):
    model = assembly.models.empty(architecture)
    return dict(model.get_submodule("extractor").named_children()), model.head


def test_a_model_keeps_its_own_width(assemble):
    assembly = assemble("fedavg", {"model.group": "mlp", "model.feature_dim": None})
    layers, head = extractor(assembly, "mlp")
    assert assembly.setting.feature_dim == head.in_features == 128
    assert "adapter" not in layers


def test_prototypes_have_the_models_own_width(assemble):
    assembly = assemble("fedproto", {"model.group": "digits", "model.feature_dim": None})
    assert assembly.gate.axes["d"] == 128


def test_a_text_encoder_asks_for_its_width(assemble, tiny_bert):
    text = {"text.encoder": {"name": "bert", "path": str(tiny_bert)}, "text.style": "name"}
    changes = {"model.group": "mlp", "model.feature_dim": None, **text}
    assembly = assemble("fedtsp", changes)
    layers, head = extractor(assembly, "mlp")
    assert assembly.setting.feature_dim == head.in_features == 16
    assert "adapter" in layers


def test_a_width_that_is_set_is_applied(assemble):
    assembly = assemble("local", {"model.group": "digits", "model.feature_dim": 256})
    assert assembly.models.empty("cnn2").head.in_features == 256


def test_a_projector_ends_in_its_hidden_width(assemble):
    changes = {"model.group": "mlp", "model.feature_dim": None, "model.projector": 32}
    assembly = assemble("fedavg", changes)
    layers, head = extractor(assembly, "mlp")
    assert head.in_features == 32
    assert isinstance(layers["projector"][0], torch.nn.Linear)


def test_models_of_several_widths_need_one(assemble):
    changes = {"model.group": "htfe4", "model.feature_dim": None, "data.image_size": 32}
    with pytest.raises(UserError, match=r"several widths \(.*'cnn4': 512.*set model\.feature_dim"):
        assert assemble("local", changes).setting
