"""FedMRL: the width of the small model."""

from __future__ import annotations


def test_the_small_models_width(assemble):
    assert assemble("fedmrl", {"model.feature_dim": 512}).algorithm.auxiliary_dim() == 128
    assert assemble("fedmrl", {"algorithm.small_dim": 16}).algorithm.auxiliary_dim() == 16
