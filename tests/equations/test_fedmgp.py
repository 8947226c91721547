"""FedMGP against its card's worked numbers and properties."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from clips import CPU, clip_of, drawn, prompted
from prompting import empty_client, initial_prompts, loss_of

from fedray.algorithms.prompts.fedmgp import (
    FedMGP,
    Groups,
    combine,
    diversity,
    draw_groups,
    group_cross_entropy,
    group_similarities,
    selection_probabilities,
)
from fedray.core import Batch, ClientState, LocalContext, Trained
from fedray.models import ImageFeatures, Pixels
from fedray.models.prompted import ClassTexts
from fedray.runtime.groups import GroupRunner

R = 2**-0.5


# --- Eq. (7) and (8) ------------------------------------------------------------------------------

# rows of cosines: own prompts in the plane of two orthogonal global ones, or across it
GLOBALS = torch.eye(4)[:2].unsqueeze(1)
OWN = torch.tensor(
    [[R, 0, R, 0], [R, R, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [0, R, 0, R]]
).unsqueeze(1)


@pytest.mark.parametrize(
    ("over", "tau", "expected"),
    [
        ("sum", 1.0, [0.199432, 0.404470, 0.098333, 0.098333, 0.199432]),
        ("max", 1.0, [0.250869, 0.250869, 0.123696, 0.123696, 0.250869]),
        ("sum", 0.5, [0.151527, 0.623268, 0.036839, 0.036839, 0.151527]),
    ],
)
def test_eq7_eq8_selection_probabilities(over, tau, expected):
    found = selection_probabilities(group_similarities(OWN, GLOBALS, over), tau)
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_eq8_draws_are_distinct_and_as_frequent_as_they_should_be():
    p = selection_probabilities(group_similarities(OWN, GLOBALS, "sum"), 1.0)
    random, n = torch.Generator().manual_seed(0), 20_000
    drawn = torch.stack([draw_groups(p, 2, random) for _ in range(n)])
    assert (drawn[:, 0] != drawn[:, 1]).all()
    included = torch.bincount(drawn.flatten(), minlength=5) / n
    expected = torch.tensor([0.428061, 0.694208, 0.224835, 0.224835, 0.428061])
    three_sigma = 3 * (expected * (1 - expected) / n).sqrt()
    assert ((included - expected).abs() < three_sigma).all()
    first = torch.bincount(drawn[:, 0], minlength=5) / n
    assert (first - p).abs().max() < 0.012  # the order of drawing is the rank


def test_all_groups_can_be_drawn_at_any_temperature():
    p = selection_probabilities(torch.tensor([1.0, -1.0, 0.0]), 1e-4)
    drawn = draw_groups(p, 3, torch.Generator().manual_seed(0))
    assert drawn[0] == 0
    assert sorted(drawn.tolist()) == [0, 1, 2]


# --- Eq. (9) --------------------------------------------------------------------------------------

PROMPTS = [[1.0, 2.0, 3.0], [10.0, 20.0, 30.0], [100.0, 200.0, 300.0]]
DRAWS = [[2, 0], [1, 2], [0, 1]]
SIZES = [32, 16, 16]


def uploads() -> dict[int, FedMGP.up]:
    return {
        client: FedMGP.up({"text": torch.tensor(values)[draw].reshape(2, 1, 1)}, size)
        for client, (values, draw, size) in enumerate(zip(PROMPTS, DRAWS, SIZES, strict=True))
    }


@pytest.mark.parametrize(("how", "expected"), [("samples", [31.5, 58]), ("uniform", [41, 77])])
def test_eq9_groups_are_averaged_by_rank(how, expected):
    method = FedMGP(weights=how)
    server = SimpleNamespace(round=1)
    mean = method.server_update({"prompts": uploads()[0].prompts}, uploads(), server)["prompts"]
    assert mean["text"].flatten().tolist() == pytest.approx(expected)


def test_eq7_a_client_that_was_sent_new_prompts_ranks_by_these(assemble):
    """Else by those that it took over last."""
    near = {"algorithm.tau": 1e-3, "algorithm.selected": 1}
    assembly = assemble("fedmgp", near)
    client, groups = empty_client(assembly, (0,)), initial_prompts(assembly)
    known, new = ({name: group[i : i + 1] for name, group in groups.items()} for i in (1, 2))
    state = ClientState(groups, {"known": known})
    for down, nearest in ((None, 1), (FedMGP.down(new), 2)):
        local = assembly.algorithm.begin(client, state, down)
        trained = Trained(client.weights(local.model), steps=0)
        _, after = assembly.algorithm.finish(local, trained)
        assert [drawn.tolist() for drawn in after.memory["drawn"].values()] == [[nearest]] * 2


# --- Eq. (3), (4), (6) ----------------------------------------------------------------------------

A, B = [1.0, 0, 0, 0], [0.6, 0.8, 0, 0]


@pytest.mark.parametrize(("measure", "expected"), [("cos", 0.4), ("l1", 0.3), ("l2", 0.894427)])
def test_eq4_distances(measure, expected):
    pair = torch.tensor([[A], [B]])
    assert float(diversity(pair, measure, "attract", "mean")) == pytest.approx(expected, abs=1e-6)
    assert float(diversity(pair, measure, "repel", "mean")) == pytest.approx(-expected, abs=1e-6)
    assert float(diversity(pair, measure, "attract", "sum")) == pytest.approx(
        2 * expected, abs=1e-5
    )


def test_eq3_the_loss_is_each_groups_own_not_that_of_the_mean():
    logits = torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]])
    labels = torch.tensor([0])
    each = [-torch.log_softmax(group, -1)[0, 0] for group in logits]
    found = group_cross_entropy(logits, labels)
    assert float(found) == pytest.approx(float(sum(each) / 2))
    assert float(found) > float(group_cross_entropy(logits.mean(0, keepdim=True), labels))


# --- the model ------------------------------------------------------------------------------------


def test_groups_start_distinct_and_clients_start_equal(assemble):
    assembly = assemble("fedmgp")
    first, second = (initial_prompts(assembly, client) for client in (0, 1))
    assert torch.equal(first["text"], second["text"])
    assert all(not torch.equal(a, b) for a, b in pairwise(first["visual"]))


# --- rounds ---------------------------------------------------------------------------------------


def test_participants_share_what_they_drew_and_nothing_else(run):
    result = run("fedmgp", {"rounds": 2, "participation": 0.5})
    initial = initial_prompts(result.assembly)
    server, last = result.servers[-1], result.results[-1].participants
    assert len(last) == 2
    seen = set()
    for client, memory in result.memories.items():
        for name in ("text", "visual"):
            drawn = memory["drawn"][name]
            assert len(set(drawn.tolist())) == 2
            if client in last:
                assert torch.equal(result.models[client][name][drawn], server["prompts"][name])
            # trained visual prompts stay trained: the released code loses them
            assert not torch.equal(result.models[client][name], initial[name])
        seen.add(client)
    assert set(last) <= seen
    held = server["given"]["write_back"] == server["version"]
    assert held.nonzero().flatten().tolist() == list(last)
    never = set(range(4)) - seen
    for client in never:
        assert torch.equal(result.models[client]["text"], initial["text"])


def test_who_missed_the_last_round_is_sent_its_groups(run):
    result = run("fedmgp", {"rounds": 3, "participation": 0.5})
    per_group = 2 * (16 + 32) * 2
    for before, found in pairwise(result.results[1:]):
        missed = set(found.participants) - set(before.participants)
        assert found.down.params["prompts"] == (2 + len(missed)) * per_group


def test_eq5_attraction_is_the_published_loss(assemble):
    assembly = assemble("fedmgp", {"algorithm.preset": "paper"})
    m = assembly.algorithm
    assert (m.measure, m.sign, m.reduction, m.inference) == ("cos", "attract", "sum", "prob")
    client = GroupRunner(assembly, CPU).client(0, 1)
    model = client.load(initial_prompts(assembly))
    batch = Batch(Pixels(torch.rand(4, 1, 8, 8) * 2 - 1), torch.tensor([0, 1, 2, 3]))
    groups = model.groups(batch.inputs)
    by_hand = group_cross_entropy(groups.logits, batch.labels)
    for features, count in ((groups.text, 1), (groups.image, 4)):
        for j in range(5):
            for i in range(5):
                if i != j:
                    by_hand = by_hand + (1 - (features[i] * features[j]).sum(-1)).sum() / count
    local = LocalContext(client, model, ClientState({}), None)
    found = loss_of(assembly, local, batch)
    assert found.item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_eq6_mean_logits_and_mean_probabilities_disagree():
    unit = torch.ones(2, 1, 1)
    groups = Groups(unit, unit, torch.tensor([[[10.0, 0, 6]], [[0.0, 5, 6]]]))
    assert int(combine(groups, "logits", 0, 1.0).argmax()) == 2
    prob = combine(groups, "prob", 0, 1.0)
    assert int(prob.argmax()) == 0
    assert prob.exp().flatten().tolist() == pytest.approx([0.492, 0.134, 0.374], abs=1e-3)
    assert combine(groups, "max_logits", 0, 1.0).flatten().tolist() == [10, 0, 6]
    assert combine(groups, "group", 1, 1.0).flatten().tolist() == [0, 5, 6]


def test_averaged_features_are_not_renormalised():
    image = torch.tensor([[[1.0, 0]], [[0.0, 1]]])
    text = torch.tensor([[[1.0, 0], [0.0, 1]], [[1.0, 0], [1.0, 0]]])
    groups = Groups(image, text, torch.zeros(2, 1, 2))
    assert combine(groups, "features", 0, 2.0).flatten().tolist() == [1.0, 1.0]


def model_of(tiny_clip, text_length=2, visual_length=2, **config):
    lengths = {"text_length": text_length, "visual_length": visual_length}
    return drawn(prompted("fedmgp", clip_of(tiny_clip), groups=3, **lengths, **config))


def test_without_noise_the_first_words_are_the_photo(tiny_clip):
    model = model_of(tiny_clip)
    with torch.no_grad():
        noise = model.text - model.text.mean(0)
        assert 0 < noise.abs().max() < 0.06
        words = ClassTexts(model.clip.text, model.names)
        model.text.copy_(words.embeddings[0, 1:3].expand(3, -1, -1))
        features = model.text_features()
    assert torch.allclose(features, words.encode().expand(3, -1, -1), atol=1e-5)


def test_eq2_groups_in_one_batch_are_groups_one_by_one(tiny_clip):
    model = model_of(tiny_clip)
    images = Pixels(torch.rand(6, 1, 8, 8) * 2 - 1)
    batched = model.groups(images)
    with torch.no_grad():
        one_by_one = model.groups(images)
    for a, b in zip(batched, one_by_one, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    assert batched.image.shape == (3, 6, 24)
    assert batched.logits.shape == (3, 6, 5)


def test_a_prompt_length_beyond_the_photo_has_additional_positions(tiny_clip):
    model = model_of(tiny_clip, text_length=6)
    assert model.template == "X X X X X X {}."
    assert model.text_features().shape == (3, 5, 24)


@pytest.mark.parametrize("inference", ["logits", "prob", "max_logits", "features", "group"])
def test_the_output_holds_the_common_answer_and_every_group(tiny_clip, inference):
    model = model_of(tiny_clip, inference=inference, group=2)
    output = model(Pixels(torch.rand(6, 1, 8, 8) * 2 - 1))
    assert output.groups.image.shape == (3, 6, 24)
    assert torch.equal(output.features, output.groups.image.mean(0))
    assert torch.equal(output.logits, combine(output.groups, inference, 2, model.clip.scale))


def test_one_modality_alone(tiny_clip):
    texts = model_of(tiny_clip, visual_length=0)
    assert set(dict(texts.named_parameters())) == {"text"}
    assert texts.reads is ImageFeatures
    images = model_of(tiny_clip, text_length=0)
    assert set(dict(images.named_parameters())) == {"visual"}
    assert images.reads is Pixels
    groups = images(Pixels(torch.rand(2, 1, 8, 8))).groups
    assert groups.text.shape == (1, 5, 24)
    assert groups.logits.shape == (3, 2, 5)
