"""The width of features: the models' own, unless model.feature_dim or a text encoder asks."""

from __future__ import annotations

import pytest
import torch

from fedray.base.errors import UserError, warn_once


@pytest.fixture(autouse=True)
def _said_anew():
    warn_once.cache_clear()


def extractor(assembly, architecture):
    model = assembly.models.empty(architecture)
    return dict(model.get_submodule("extractor").named_children()), model.head


def test_a_model_keeps_its_own_width(assemble, caplog):
    assembly = assemble("fedavg", {"model.group": "mlp", "model.feature_dim": None})
    layers, head = extractor(assembly, "mlp")
    assert assembly.setting.feature_dim == head.in_features == 128
    assert "adapter" not in layers
    assert "features of" not in caplog.text


def test_prototypes_have_the_models_own_width(assemble):
    assembly = assemble("fedproto", {"model.group": "digits", "model.feature_dim": None})
    assert assembly.gate.axes["d"] == 128


def test_a_text_encoder_asks_for_its_width_and_a_line_says_so(assemble, tiny_bert, caplog):
    text = {"text.encoder": {"name": "bert", "path": str(tiny_bert)}, "text.style": "name"}
    changes = {"model.group": "mlp", "model.feature_dim": None, **text}
    assembly = assemble("fedtsp", changes)
    layers, head = extractor(assembly, "mlp")
    assert assembly.setting.feature_dim == head.in_features == 16
    assert "adapter" in layers
    assert caplog.messages == ["the 128 features of mlp are averaged to model.feature_dim=16"]


def test_a_width_that_is_set_is_applied_and_said(assemble, caplog):
    assembly = assemble("local", {"model.group": "digits", "model.feature_dim": 256})
    assert assembly.models.empty("cnn2").head.in_features == 256
    assert caplog.messages == [
        f"the 128 features of {name} are repeated to model.feature_dim=256"
        for name in ("mlp", "cnn2")
    ]


def test_a_projector_ends_in_its_hidden_width(assemble, caplog):
    changes = {"model.group": "mlp", "model.feature_dim": None, "model.projector": 32}
    assembly = assemble("fedavg", changes)
    layers, head = extractor(assembly, "mlp")
    assert head.in_features == 32
    assert isinstance(layers["projector"][0], torch.nn.Linear)
    assert not caplog.messages


def test_models_of_several_widths_need_one(assemble):
    changes = {"model.group": "htfe4", "model.feature_dim": None, "data.image_size": 32}
    with pytest.raises(UserError, match=r"several widths \(cnn4: 512, g.*set model\.feature_dim"):
        assert assemble("local", changes).setting
