from __future__ import annotations

import pytest
import torch
from encoding import choose
from tensors import CPU

from fedray.base.errors import UserError
from fedray.config import load_experiment
from fedray.language.text_cache import cached_text_embeddings
from fedray.language.tower import TextTower

TEXTS = ["cat", "dog", "cat", "ship"]


@pytest.mark.parametrize("name", ["random", "orthogonal"])
def test_a_tower_without_tokens_answers_and_takes_no_prompts(name):
    tower = TextTower(choose(name, dim=8), [["cat", "a cat"], ["dog", "a dog"]], CPU)
    expected = tower.encoder.features(["cat", "a cat", "dog", "a dog"]).reshape(2, 2, 8).mean(1)
    assert torch.equal(tower.frozen_prototypes(), expected)
    with pytest.raises(UserError, match=rf"text\.encoder={name} reads no tokens"):
        tower.token_width  # noqa: B018


@pytest.mark.parametrize("name", ["random", "orthogonal"])
def test_vectors_depend_on_seed_and_text_only(name):
    choice = choose(name, dim=16, seed=3)
    encoder = choice.build()
    found = encoder.features(TEXTS)
    assert found.shape == (4, 16)
    assert encoder.dim == 16
    assert torch.equal(found, cached_text_embeddings(choice, TEXTS))
    assert torch.equal(found[0], found[2])
    assert torch.allclose(found[:2], encoder.features(TEXTS[:2]))
    other = choose(name, dim=16, seed=4).build()
    assert not torch.allclose(found, other.features(TEXTS))
    assert encoder.identity == choice.identity() != other.identity


def test_orthogonal_rows_are_orthonormal():
    rows = choose("orthogonal", dim=8).build().features([str(i) for i in range(8)])
    assert torch.allclose(rows @ rows.T, torch.eye(8), atol=1e-6)


def test_random_directions_are_gaussian():
    rows = choose("random").build().features([str(i) for i in range(200)])
    assert rows.shape == (200, 384)
    assert abs(float(rows.mean())) < 1e-3
    assert abs(float(rows.norm(dim=1).mean()) - 1) < 0.01


def test_nothing_is_drawn_from_the_global_generator():
    before = torch.get_rng_state()
    choose("random").build().features(TEXTS)
    choose("orthogonal").build().features(TEXTS)
    assert torch.equal(before, torch.get_rng_state())


def test_uniform_vectors_are_positive_and_alike():
    rows = (
        choose("random", dim=512, distribution="uniform")
        .build()
        .features(list(map(str, range(50))))
    )
    unit = torch.nn.functional.normalize(rows, dim=1)
    cosines = (unit @ unit.T)[~torch.eye(50, dtype=torch.bool)]
    assert bool((rows >= 0).all())
    assert abs(float(cosines.mean()) - 0.75) < 0.01
    assert abs(float(rows.square().sum(1).mean()) - 1) < 0.02
    same_seed = choose("random", dim=512)
    assert same_seed.identity() == "random:512:0"  # as before there was a choice
    assert choose("random", dim=512, distribution="uniform").identity() == "random:512:0:uniform"


@pytest.mark.parametrize("name", ["random", "orthogonal"])
def test_a_class_has_one_vector_whatever_its_texts(name):
    texts = [[f"{form} {label}" for form in ("a", "one", "some")] for label in "xyz"]
    tower = TextTower(choose(name, dim=4, per="class"), texts, CPU)
    single = TextTower(choose(name, dim=4), [forms[:1] for forms in texts], CPU)
    assert tower.k == 1
    assert torch.equal(tower.frozen_prototypes(), single.frozen_prototypes())
    tower.check(4)


def test_an_open_width_is_the_features():
    tree = {"text": {"encoder": "random"}, "model": {"feature_dim": 24}}
    experiment = load_experiment(tree)
    assert experiment.text.encoder.tree()["dim"] == 24
    assert load_experiment(experiment.tree()).text == experiment.text
    wide = load_experiment({"text": {"encoder": {"name": "random", "dim": 32}}})
    assert wide.text.encoder.tree()["dim"] == 32
    unset = load_experiment({"text": {"encoder": "orthogonal"}}).text.encoder
    assert unset.tree()["dim"] is None
    assert unset.build().width() == 384


def test_what_cannot_run_is_refused_before_any_weights_are_loaded(tiny_bert):
    texts = [["a", "b"], ["c", "d"]]
    with pytest.raises(UserError, match=r"width 8, but model\.feature_dim=16; set model\.feature"):
        TextTower(choose("random", dim=8), texts, CPU).check(16)
    with pytest.raises(UserError, match=r"3 directions for 4 texts.*per=class"):
        TextTower(choose("orthogonal", dim=3), texts, CPU).check(3)
    tower = TextTower(choose("bert", path=str(tiny_bert)), texts, CPU)
    with pytest.raises(UserError, match=r"text\.encoder=bert gives prototypes of width 16"):
        tower.check(384)
    tower.check(16)
    assert "encoder" not in vars(tower)
