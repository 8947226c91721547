"""PromptFL: how long a context may be, and words as a context."""

from __future__ import annotations

import pytest
import torch
from clips import clip_of, drawn, prompted
from prompting import prompted_model

from fedray.base.errors import UserError


@pytest.mark.parametrize(
    ("method", "key"), [("promptfl", "algorithm.length"), ("fedmgp", "algorithm.text_length")]
)
def test_a_prompt_that_would_push_the_names_out_is_refused(assemble, method, key):
    fits = prompted_model(assemble(method, {key: 29}))  # 32 tokens: start, name, end
    features = drawn(fits).text_features()
    assert not torch.allclose(features[..., 0, :], features[..., 1, :])
    with pytest.raises(UserError, match=f"{key}=30 leaves no room .* set {key} to 29 or less"):
        prompted_model(assemble(method, {key: 30})).text_features()


def test_words_as_context_are_the_text_with_these_words(tiny_clip):
    model = drawn(prompted("promptfl", clip_of(tiny_clip), length=4, words="a photo of a"))
    plain = model.fixed_texts("a photo of a {}.")
    torch.testing.assert_close(model.text_features(), plain, rtol=0, atol=1e-5)
    assert (
        drawn(prompted("promptfl", model.clip, length=4)).text_features() - plain
    ).abs().max() > 1e-2
