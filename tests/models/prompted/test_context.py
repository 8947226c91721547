"""One context: words as initial values are these words."""

from __future__ import annotations

import torch
from clips import DIGITS, clip_of, drawn

from fedray.models.prompted import ContextClip


def test_words_as_context_are_the_text_with_these_words(tiny_clip):
    model = drawn(ContextClip(clip_of(tiny_clip), DIGITS, 4, "a photo of a"))
    plain = model.fixed_texts("a photo of a {}.")
    torch.testing.assert_close(model.text_features(), plain, rtol=0, atol=1e-5)
    assert (drawn(ContextClip(model.clip, DIGITS, 4)).text_features() - plain).abs().max() > 1e-2
