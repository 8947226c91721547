"""What a text tower computes once: tokens, equal texts, a pass that the next step continues."""

from __future__ import annotations

import shutil
import sys

import pytest
import torch
from tensors import CPU

from fedray.config import component
from fedray.language import passes as passes_module
from fedray.language import prototypes as prototypes_module
from fedray.language import tower as tower_module
from fedray.language.encoders import bert_files
from fedray.language.prompts import initial_prompts
from fedray.language.prototypes import activations, text_prototypes
from fedray.language.tower import TextTower

TEXTS = [
    ["a photo of a cat : fur", "a photo of a cat : small round", "a photo of a cat : a ."],
    ["a photo of a dog : big", "a photo of a dog : an animal with fur", "a photo of a dog : with"],
]


@pytest.fixture
def choice(bert_folder):
    return component("text encoder", "bert", path=str(bert_folder), pooling="mean").build()


@pytest.fixture
def tower(choice) -> TextTower:
    return TextTower(choice, TEXTS, CPU)


def prompts(tower: TextTower, seed: int = 0):
    drawn = initial_prompts(2, 2, tower.token_width, torch.Generator().manual_seed(seed))
    return drawn.requires_grad_()


def gradient(text, v):
    [found] = torch.autograd.grad(text.square().sum(), v)
    return found


def counted(tower: TextTower, monkeypatch) -> list[int]:
    """How many texts each call of the encoder got."""
    calls, encode = [], tower.encoder.encode

    def count(embeddings, tokens):
        calls.append(len(tokens))
        return encode(embeddings, tokens)

    monkeypatch.setattr(tower.encoder, "encode", count)
    return calls


def test_the_next_step_continues_the_pass_bit_for_bit(tower, choice, monkeypatch):
    calls, v = counted(tower, monkeypatch), prompts(tower)
    before = tower.prototypes_before(v)
    assert not before.requires_grad
    again = tower.prototypes_again(v)
    assert calls == [6], "one pass for both"
    fresh = TextTower(choice, TEXTS, CPU).prototypes_again(v)  # as after a resume
    assert torch.equal(before, fresh)
    assert torch.equal(again, fresh)
    assert torch.equal(gradient(again, v), gradient(fresh, v))


def again_of(choice, v):
    """As `prototypes_again` of a tower that knows nothing."""
    return TextTower(choice, TEXTS, CPU).prototypes_again(v)


def test_runs_in_lockstep_each_continue_their_own_pass(tower, choice, monkeypatch):
    calls, seeds = counted(tower, monkeypatch), [prompts(tower, seed) for seed in (0, 1)]
    for _ in range(2):
        before = [tower.prototypes_before(v) for v in seeds]
        for v, expected in zip(seeds, before, strict=True):
            again, fresh = tower.prototypes_again(v), again_of(choice, v)
            assert torch.equal(again, expected)
            assert torch.equal(again, fresh)
            assert torch.equal(gradient(again, v), gradient(fresh, v))
        seeds = [(v.detach() + 0.1).requires_grad_() for v in seeds]
    assert calls == [6] * 4, "one pass for each run and step"


def test_activations_serve_once(tower, choice, monkeypatch):
    calls, v = counted(tower, monkeypatch), prompts(tower)
    tower.prototypes_before(v)
    gradient(tower.prototypes_again(v), v)
    other = gradient(3 * tower.prototypes_again(v), v)
    assert torch.equal(other, gradient(3 * again_of(choice, v), v))
    assert calls == [6, 6]


def test_outputs_are_remembered_bounded_and_not_shared(tower, monkeypatch):
    v, other = prompts(tower), prompts(tower, seed=1)
    first = tower.prototypes_before(v)
    monkeypatch.setattr(passes_module, "MOST_PASSES", 1)
    calls, expected = counted(tower, monkeypatch), first.clone()
    first.zero_()
    tower.prototypes_before(v).zero_()
    assert torch.equal(tower.prototypes_before(v), expected)
    assert calls == []
    tower.prototypes_before(other)
    assert torch.equal(tower.prototypes_before(v), expected)
    assert calls == [6, 6], "the first was forgotten for the second"


def test_activations_are_bounded_in_bytes(tower, monkeypatch):
    seeds = [prompts(tower, seed) for seed in range(3)]
    size = activations(tower.encoder, tower._tokens)
    monkeypatch.setattr(tower_module, "PASS_KEPT", 2 * size)
    for v in seeds:
        tower.prototypes_before(v)
    calls = counted(tower, monkeypatch)
    for v in reversed(seeds):
        tower.prototypes_again(v)
    assert calls == [6], "the first pass was forgotten"


def test_other_prompts_and_other_slots_are_another_pass(tower, monkeypatch):
    v, other = prompts(tower), prompts(tower, seed=1)
    calls = counted(tower, monkeypatch)
    tower.prototypes_before(v)
    assert torch.equal(tower.prototypes_again(other), tower.prototypes(other))
    tower.prototypes_before(v)
    assert torch.equal(tower.prototypes_again(v, True), tower.prototypes(v, True))
    assert len(calls) == 5


def test_a_pass_too_large_is_not_kept(tower, monkeypatch):
    v, calls = prompts(tower), counted(tower, monkeypatch)
    monkeypatch.setattr(tower_module, "PASS_KEPT", activations(tower.encoder, tower._tokens) - 1)
    before, again = tower.prototypes_before(v), tower.prototypes_again(v)
    assert torch.equal(before, again)
    assert len(calls) == 2


def test_a_pass_is_not_kept_where_memory_is_short(tower, monkeypatch):
    calls = counted(tower, monkeypatch)
    enough = 4 * activations(tower.encoder, tower._tokens)
    for free, passes in ((enough, 1), (enough - 4, 2)):
        monkeypatch.setattr(prototypes_module, "_free_bytes", lambda device, free=free: free)
        calls.clear()
        v = prompts(tower, seed=passes)
        before, again = tower.prototypes_before(v), tower.prototypes_again(v)
        assert torch.equal(before, again)
        assert len(calls) == passes


@pytest.mark.parametrize("kept", [0, 50_000, 1 << 30])
def test_what_memory_allows_changes_no_number(tower, monkeypatch, kept):
    v, encoder = prompts(tower), tower.encoder
    expected = tower.prototypes(v)
    monkeypatch.setattr(prototypes_module, "ACTIVATIONS_KEPT", kept)
    calls = counted(tower, monkeypatch)
    found = text_prototypes(encoder, tower._tokens, tower._embeddings, v, 3, batch=25)
    forward = len(calls)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(gradient(found, v), gradient(expected, v), atol=1e-5, rtol=1e-5)
    again = len(calls) - forward
    assert forward == 3
    assert again == {0: 3, 50_000: 2, 1 << 30: 0}[kept], "batches computed again for gradients"


def test_some_classes_alone(tower):
    v = prompts(tower)
    whole, one = tower.prototypes(v), tower.prototypes(v, classes=torch.tensor([1]))
    torch.testing.assert_close(one, whole[1:], atol=1e-6, rtol=1e-6)
    found = gradient(one, v)
    assert bool((found[0] == 0).all())
    torch.testing.assert_close(found[1], gradient(whole[1:], v)[1], atol=1e-5, rtol=1e-5)


def test_equal_texts_of_a_class_are_read_once(choice, monkeypatch):
    twice = [[of[0], of[1], of[0]] for of in TEXTS]
    tower = TextTower(choice, twice, CPU)
    v, calls = prompts(tower), counted(tower, monkeypatch)
    found = tower.prototypes(v)
    assert calls == [4]
    flat = [text for of in twice for text in of]
    tokens = tower.encoder.tokenize(flat)
    apart = [
        text_prototypes(tower.encoder, tokens[i::3], tower.encoder.embed(tokens[i::3]), v, 1)
        for i in range(3)
    ]
    expected = sum(apart) / 3
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(gradient(found, v), gradient(expected, v), atol=1e-5, rtol=1e-5)


# --- tokens on disk -------------------------------------------------------------------------------


@pytest.fixture
def raising(monkeypatch):
    """`raising()`: from now on no tokenizer can be loaded, nor transformers."""

    def refuse(folder):
        raise AssertionError(f"a tokenizer is loaded from {folder}")

    def start():
        monkeypatch.setattr("fedray.language.encoders.bert.load_tokenizer", refuse)
        monkeypatch.setitem(sys.modules, "transformers", None)

    assert bert_files.load_tokenizer
    return start


def test_a_second_tower_needs_neither_tokenizer_nor_transformers(tower, choice, raising):
    v = prompts(tower)
    expected = tower.prototypes(v)
    raising()
    assert torch.equal(TextTower(choice, TEXTS, CPU).prototypes(v), expected)
    with pytest.raises(AssertionError, match="a tokenizer is loaded"):
        TextTower(choice, TEXTS[::-1], CPU).prototypes(v)


def test_frozen_prototypes_of_a_second_tower_load_nothing(tower, choice, raising, monkeypatch):
    expected = tower.frozen_prototypes()
    raising()
    monkeypatch.setattr(type(choice), "build", lambda choice: pytest.fail("weights are loaded"))
    assert torch.equal(TextTower(choice, TEXTS, CPU).frozen_prototypes(), expected)


def test_another_tokenizer_is_another_answer(tower, choice, bert_folder, tmp_path, raising):
    tower.prototypes(prompts(tower))
    copy = shutil.copytree(bert_folder, tmp_path / "copy")
    (copy / "more.json").write_text("{}")
    raising()
    other = component("text encoder", "bert", path=str(copy), pooling="mean").build()
    with pytest.raises(AssertionError, match="a tokenizer is loaded"):
        TextTower(other, TEXTS, CPU).prototypes(prompts(tower))


def test_the_warning_of_cut_texts_is_repeated(choice, caplog):
    long = [["cat " * 40, "a dog with fur ."], ["a cat .", "dog " * 50]]
    for _ in range(2):
        caplog.clear()
        tower = TextTower(choice, long, CPU)
        tower.prototypes(initial_prompts(2, 2, 32, torch.Generator().manual_seed(0)))
        assert "2 of 4 texts have more than the 24 tokens" in caplog.text
