"""Methods that learn contexts around a frozen CLIP: equations, official loops, edges."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, sqrt

import pytest
import torch
import torch.nn.functional as F
from clips import CPU, DIGITS, clip_of, drawn, gradients, noise, prompted
from lab import refused
from prompting import empty_client, initial_prompts, loss_of, prompted_model

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.algorithms.prompts import cocoop, fedotp
from fedray.algorithms.prompts.dp_fpl import factors, local_gradient, private
from fedray.algorithms.prompts.fedotp import transport_plan
from fedray.algorithms.prompts.fedpgp import ContrastOutput
from fedray.algorithms.prompts.fedtpg import PromptGenerator, held_classes
from fedray.algorithms.prompts.pfedmoap import PFedMoAP, nearest_prompts
from fedray.algorithms.prompts.prompt_averaging import PromptAveraging
from fedray.base.errors import UserError
from fedray.core import Batch, ClientState, LocalContext
from fedray.models import ImageFeatures, PatchFeatures, Pixels
from fedray.runtime.groups import GroupRunner

# --- PromptFL: how long a context may be, and words as a context ---------------------------------


@pytest.mark.parametrize(
    ("method", "key"), [("promptfl", "algorithm.length"), ("fedmgp", "algorithm.text_length")]
)
def test_promptfl_a_prompt_that_would_push_the_names_out_is_refused(assemble, method, key):
    fits = prompted_model(assemble(method, {key: 29}))  # 32 tokens: start, name, end
    features = drawn(fits).text_features()
    assert not torch.allclose(features[..., 0, :], features[..., 1, :])
    with pytest.raises(UserError, match=f"{key}=30 leaves no room .* set {key} to 29 or less"):
        prompted_model(assemble(method, {key: 30})).text_features()


def test_promptfl_words_as_context_are_the_text_with_these_words(tiny_clip):
    model = drawn(prompted("promptfl", clip_of(tiny_clip), length=4, words="a photo of a"))
    plain = model.fixed_texts("a photo of a {}.")
    torch.testing.assert_close(model.text_features(), plain, rtol=0, atol=1e-5)
    assert (
        drawn(prompted("promptfl", model.clip, length=4)).text_features() - plain
    ).abs().max() > 1e-2


# --- KgCoOp: the loss from the official code's lines ---------------------------------------------


def loss_and_model(assemble, **hparams):
    changes = {f"algorithm.{name}": value for name, value in hparams.items()}
    assembly = assemble("kgcoop", changes)
    client, start = empty_client(assembly), initial_prompts(assembly)
    model = client.load({"context": start["context"] + noise(*start["context"].shape)})
    batch = Batch(ImageFeatures(noise(6, model.clip.dim)), torch.arange(6))
    local = LocalContext(client, model, ClientState({}), PromptAveraging.down(start))
    return loss_of(assembly, local, batch), model, batch


@pytest.mark.parametrize("template", ["a photo of a {}.", "a small {}, a digit."])
def test_kgcoop_the_loss_is_the_official_codes(assemble, template):
    loss, model, batch = loss_and_model(assemble, **{"lambda": 3.0, "template": template})
    text, old = model.text_features(), model.fixed_texts(template)
    logits = model.clip.scale * F.normalize(batch.inputs.values, dim=-1) @ text.T
    score = 1.0 - torch.mean(torch.nn.CosineSimilarity(dim=1, eps=1e-07)(text, old))
    torch.testing.assert_close(loss, F.cross_entropy(logits, batch.labels) + 3.0 * score)
    assert float(gradients(model, score)["context"].abs().max()) > 0


# --- CoCoOp: the official code's loop over images, and its gradients -----------------------------


def model_of(folder):
    return drawn(prompted("cocoop", clip_of(folder)))


def test_cocoop_logits_are_those_of_a_loop_over_images_and_all_is_trained(tiny_clip, monkeypatch):
    model, plain = model_of(tiny_clip), prompted("promptfl", clip_of(tiny_clip), length=4)
    features = noise(6, model.clip.dim)
    logits, bias = [], model.second(F.relu(model.first(F.normalize(features, dim=-1))))
    for image, pi in zip(F.normalize(features, dim=-1), bias, strict=True):
        plain.context.data = (model.context + pi).detach()
        logits.append(model.clip.scale * plain.text_features() @ image)
    found = model(ImageFeatures(features))
    torch.testing.assert_close(found.logits, torch.stack(logits))
    found = gradients(model, F.cross_entropy(found.logits, torch.arange(6) % 5))
    assert all(float(gradient.abs().max()) > 0 for gradient in found.values())
    monkeypatch.setattr(cocoop, "MOST_TEXTS", 10)  # two images at once
    torch.testing.assert_close(model(ImageFeatures(features)).logits, torch.stack(logits))


# --- Unbalanced optimal transport: plans by hand, their marginals, no gradient through them ------


def real_costs(patches: int = 196, texts: int = 2) -> torch.Tensor:
    """Costs 1 - cos around 0.75, as CLIP's are: [3, 5, texts, patches]."""
    return 0.75 + 0.1 * noise(3, 5, texts, patches)


def test_fedotp_a_plan_by_hand_with_and_without_a_full_row():
    """One text, two patches, C = (0, 1), eps = 1: mass goes in the ratio 1 : e^-1, at most 1/2."""
    cost, share = torch.tensor([[0.0, 1.0]]), 1 / (1 + exp(-1))
    free = transport_plan(cost, 0.6, 1.0, threshold=1e-7)
    torch.testing.assert_close(free, torch.tensor([[0.6 * share, 0.6 * (1 - share)]]))
    assert 0.8 * share > 0.5
    full = transport_plan(cost, 0.8, 1.0, threshold=1e-7)
    torch.testing.assert_close(full, torch.tensor([[0.5, 0.3]]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("epsilon", [1.0, 0.1, 0.01])
@pytest.mark.parametrize("gamma", [1.0, 0.8, 0.2])
def test_fedotp_columns_carry_gamma_over_n_and_rows_at_most_their_part(gamma, epsilon):
    plan = transport_plan(real_costs(), gamma, epsilon, threshold=1e-6, iterations=2000)
    assert (plan >= 0).all()
    columns, rows = plan.sum(-1), plan.sum(-2)
    torch.testing.assert_close(columns, torch.full_like(columns, gamma / 2), rtol=0, atol=1e-5)
    assert (rows <= (1 + 1e-3) / 196).all()
    if gamma == 1 and epsilon > 0.01:  # balanced
        torch.testing.assert_close(rows, torch.full_like(rows, 1 / 196), rtol=1e-2, atol=0)


def test_fedotp_a_tiny_epsilon_does_not_underflow():
    cost = 1.5 + 0.4 * noise(2, 2, 50).clamp(-1, 1)
    assert float((-cost / 0.005).exp().max()) == 0  # what the plain iterations would divide by
    plan = transport_plan(cost, 0.8, 0.005)
    torch.testing.assert_close(plan.sum((-2, -1)), torch.full((2,), 0.8), rtol=1e-4, atol=0)


def fedotp_model_of(tiny_clip, **hparams):
    return drawn(prompted("fedotp", clip_of(tiny_clip), length=4, **hparams))


def test_fedotp_images_in_parts_have_the_same_logits(tiny_clip, monkeypatch):
    model = fedotp_model_of(tiny_clip, threshold=1e-6)
    patches = noise(5, model.clip.vision.patches, model.clip.dim)
    with torch.no_grad():
        whole = model(PatchFeatures(patches)).logits
        monkeypatch.setattr(fedotp, "MAX_ENTRIES", 2 * 2 * 5 * model.clip.vision.patches)
        torch.testing.assert_close(
            model(PatchFeatures(patches)).logits, whole, rtol=1e-4, atol=1e-4
        )


# --- FedPGP: several copies ----------------------------------------------------------------------


def test_fedpgp_training_classifies_over_all_copies_and_evaluation_by_the_first(tiny_clip):
    model = drawn(prompted("fedpgp", clip_of(tiny_clip), length=4, rank=2, copies=2))
    features = noise(6, model.clip.dim)
    trained = model.train()(ImageFeatures(features))
    assert isinstance(trained, ContrastOutput)
    z_s, z_c = model.shared_and_personal()
    assert torch.equal(trained.shared, z_s)
    assert torch.equal(trained.personal, z_c)
    image = F.normalize(features, dim=-1)
    logits = model.clip.scale * torch.cat([image @ z_c[0].T, image @ z_c[1].T], dim=1)
    torch.testing.assert_close(trained.logits, logits)
    tested = model.eval()(ImageFeatures(features))
    assert not isinstance(tested, ContrastOutput)
    torch.testing.assert_close(tested.logits, logits[:, :5])
    assert torch.equal(tested.features, trained.features)


# --- FedPHA: lengths of clients ------------------------------------------------------------------


def context_of(assemble, client=0, **hparams):
    changes = {f"algorithm.{name}": value for name, value in hparams.items()}
    assembly = assemble("fedpha", {"algorithm.length": 4, **changes})
    runtime, start = empty_client(assembly), initial_prompts(assembly)
    object.__setattr__(runtime, "id", client)
    down = PromptAveraging.down({"shared_context": start["shared_context"]})
    state = ClientState({"local_context": start["local_context"]})
    return assembly, assembly.algorithm.begin(runtime, state, down)


def test_fedpha_a_client_reads_as_many_rows_as_its_length(assemble):
    for client, length in enumerate([3, 6, 3]):
        assembly, local = context_of(assemble, client, local_lengths=[3, 6])
        batch = Batch(ImageFeatures(noise(6, local.model.clip.dim)), torch.arange(6))
        found = gradients(local.model, loss_of(assembly, local, batch))["local_context"]
        assert (found.abs().amax(1) > 0).tolist() == [row < length for row in range(6)]


# --- FedTPG: among which classes clients train, and what the network makes of their names --------


def test_fedtpg_a_client_trains_on_the_subset_of_its_classes(assemble):
    assembly = assemble("fedtpg")
    client = empty_client(assembly, labels=(7, 2, 2, 5))
    assert held_classes(client) == (2, 5, 7)
    start = initial_prompts(assembly)
    model = client.load(start)
    batch = Batch(ImageFeatures(noise(3, model.clip.dim)), torch.tensor([7, 2, 5]))
    with model.class_subset((2, 5, 7)):
        local = LocalContext(client, model, ClientState({}), FedAvg.down(start))
        loss = loss_of(assembly, local, batch)
        logits = model(batch.inputs).logits
    assert logits.shape == (3, 3)
    assert loss.item() == pytest.approx(F.cross_entropy(logits, torch.tensor([2, 0, 1])).item())


def test_fedtpg_a_client_of_one_class_has_no_gradient_on_its_subset_but_on_all_classes(assemble):
    def moved(classes):
        assembly = assemble("fedtpg", {"algorithm.classes": classes})
        client, start = empty_client(assembly, (3,) * 8), initial_prompts(assembly)
        stored = noise(*client.train._stored.shape).numpy()
        client = replace(client, train=replace(client.train, _stored=stored))
        sent, _ = assembly.algorithm.client_update(client, ClientState({}), FedAvg.down(start))
        return any(not torch.equal(sent["model"][name], start[name]) for name in start)

    assert not moved("own")
    assert moved("all")


@pytest.fixture
def model(tiny_clip):
    return drawn(prompted("fedtpg", clip_of(tiny_clip)))


def test_fedtpg_the_attention_starts_as_pytorchs():
    generator = PromptGenerator(3, 16, 16)
    generator.initialise(torch.Generator().manual_seed(0))
    bound = (6 / (3 * 16 + 16)) ** 0.5  # of queries, keys and values together
    for layer in (generator.to_queries, generator.to_keys, generator.to_values):
        assert 0.9 * bound < float(layer.weight.detach().abs().max()) <= bound


def test_fedtpg_the_order_of_the_names_does_not_matter_and_the_set_does(model):
    names = model.fixed_texts("{}")
    context = model.generator(names)
    torch.testing.assert_close(model.generator(names[[3, 0, 4, 1, 2]]), context)
    assert (model.generator(names[:3]) - context).abs().max() > 1e-5


def test_fedtpg_the_classes_in_scope_write_the_context(model):
    with torch.no_grad(), model.class_subset((1, 3)):
        context = model.generator(model.fixed_texts("{}"))
        alone = prompted("fedtpg", model.clip, ("one", "three"))
        alone.load_state_dict(model.state_dict())
        torch.testing.assert_close(model.texts(), alone.texts())
        expected = model.class_texts("X X X X {}.").encode(context)
        torch.testing.assert_close(model.texts(), expected)


# --- pFedMoAP: the nearest prompts by hand, and its rounds ---------------------------------------

SHORT = {"algorithm.length": 4}


def test_pfedmoap_the_nearest_prompts_by_hand():
    pool = {k: torch.full((1, 2), value) for k, value in ((0, 0.0), (2, 5.0), (3, -1.0), (7, 2.0))}
    assert nearest_prompts(0, pool, 2)[:, 0, 0].tolist() == [-1.0, 2.0]
    assert nearest_prompts(2, pool, 9)[:, 0, 0].tolist() == [2.0, 0.0, -1.0]
    assert nearest_prompts(2, pool, 0).shape == (0, 1, 2)


def test_pfedmoap_clients_get_experts_from_their_second_round_on_and_keep_their_own_prompt(run):
    done = run("pfedmoap", {**SHORT, "rounds": 2, "algorithm.experts": 3})
    context, clients = 4 * 16, len(done.models)
    down = [result.down.params.get("prompts", 0) for result in done.results]
    assert down == [0, clients * context, clients * context * (1 + 2)]
    assert all(result.up.params["prompts"] == clients * context for result in done.results[1:])
    first, second = done.servers[1:]
    for client, model in done.models.items():
        assert torch.equal(model["context"], second["pool"][str(client)])
        assert not torch.equal(second["pool"][str(client)], first["pool"][str(client)])
    gates = [model["gating.out.weight"] for model in done.models.values()]
    assert not torch.equal(gates[0], gates[1])
    initial = run("pfedmoap", {**SHORT, "rounds": 1}).models
    assert torch.equal(*(model["gating.out.weight"] for model in list(initial.values())[:2]))


def test_pfedmoap_a_round_begins_with_the_mean_prompt_and_a_test_with_the_own(assemble):
    assembly = assemble("pfedmoap", {**SHORT, "lr": 1e-9})
    client, method = empty_client(assembly, (0, 1)), assembly.algorithm
    initial = initial_prompts(assembly)
    mean, own = torch.ones(4, 16), torch.zeros(4, 16)
    down = PFedMoAP.down({"context": mean}, mean[None][:0])
    state = ClientState({**initial, "context": own})
    assert torch.equal(method.begin(client, state, down).model.context, own)
    upload, _ = method.client_update(client, state, down)
    torch.testing.assert_close(upload["model"]["context"], mean, rtol=0, atol=1e-5)
    new = method.init_client(client)
    assert torch.equal(method.begin(client, new, down).model.context, mean)


# --- DP-FPL: factors and gradients of the official code's loops, the noise, and a whole round ----

DP_FPL_SHORT = {"algorithm.length": 4, "algorithm.rank": 2}


def stream():
    return torch.Generator().manual_seed(3)


def orthogonalised(matrix):
    """The columns of the official code's loop."""
    columns = []
    for column in matrix.T:
        for other in columns:
            column = column - (other @ column) * other
        columns.append(column / column.norm())
    return torch.stack(columns, dim=1)


@pytest.mark.parametrize("rank", [1, 3, 9])
def test_dp_fpl_the_factors_span_what_the_official_loop_spans(rank):
    context, columns = noise(4, 16), min(rank, 4)
    u, v = factors(context, rank, stream())
    theirs = orthogonalised(context @ torch.randn(16, columns, generator=stream()))
    there = orthogonalised(context.T @ theirs).T
    torch.testing.assert_close(u @ u.T, theirs @ theirs.T)
    torch.testing.assert_close(v.T @ v, there.T @ there)  # signs have no effect
    torch.testing.assert_close(u.T @ u, torch.eye(columns))


def test_dp_fpl_the_gradient_by_hand():
    """G = [[1, 2], [3, 4]], u = (1, 0)^T, v = (0, 1): du = (2, 4)^T, dv = (1, 2)."""
    u, v = torch.tensor([[1.0], [0.0]]), torch.tensor([[0.0, 1.0]])
    whole = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    du, dv = whole @ v.T, u.T @ whole
    assert (du.tolist(), dv.tolist()) == ([[2.0], [4.0]], [[1.0, 2.0]])
    # (du) v = [[0, 2], [0, 4]], u (dv) = [[1, 2], [0, 0]], u u^T (du) v = [[0, 2], [0, 0]]
    assert local_gradient(u, v, du, dv).tolist() == [[1.0, 6.0], [0.0, 4.0]]


def test_dp_fpl_the_noise_reaches_the_own_contexts(run):
    changes = {**DP_FPL_SHORT, "rounds": 1, "batch_size": 8}
    plain, noisy = run("dp_fpl", changes), run("dp_fpl", {**changes, "algorithm.epsilon": 1.0})
    pairs = [(noisy.models[k]["local_context"], plain.models[k]["local_context"]) for k in (0, 1)]
    assert all(float((a - b).abs().max()) > 1e-3 for a, b in pairs)


def test_dp_fpl_private_gradients_are_clipped_and_noisy(assemble):
    large, small = torch.full((2, 2), 3.0), torch.full((2, 2), 0.1)
    torch.testing.assert_close(private(large, 1.0, 0.0, stream()), torch.full((2, 2), 0.5))
    assert torch.equal(private(small, 1.0, 0.0, stream()), small)
    assert torch.equal(private(0 * small, 1.0, 0.0, stream()), 0 * small)
    drawn = private(torch.zeros(200, 200), 1.0, 0.7, stream())
    assert float(drawn.std()) == pytest.approx(0.7, rel=0.02)
    keys = {"rounds": 4, "batch_size": 8, "algorithm.epsilon": 0.2, "algorithm.clip": 5.0}
    method = assemble("dp_fpl", keys).algorithm
    assert method.noise_std() == pytest.approx(sqrt(4 * log(1e5)) / 0.2 * 5.0 / 8)
    assert assemble("dp_fpl", {"rounds": 4}).algorithm.noise_std() == 0


# --- Zero-shot CLIP: nothing is trained, and tests are those of the texts ------------------------


def test_zero_shot_nothing_is_trained(run):
    done = run("zero_shot", {"rounds": 2})
    for result in done.results:
        assert "train_loss" not in result.metrics
        assert result.per_client == done.results[0].per_client
    assert all(model == {} for model in done.models.values())


def test_zero_shot_the_accuracy_is_that_of_the_text_that_is_asked_for(run):
    texts = {"algorithm.template": "a drawing of a {}, by hand"}
    other = run("zero_shot", texts)
    runtime = GroupRunner(other.assembly, CPU)
    client = runtime.client(0, 1)
    tested = other.assembly.data.test[0]
    features, labels = other.assembly.models.samples(CPU)(tested).tensors(CPU)
    model = prompted("zero_shot", client.skeleton.model.clip, other.assembly.setting.class_names)
    with torch.no_grad():
        text = model.fixed_texts(texts["algorithm.template"])
    right = (F.normalize(features, dim=-1) @ text.T).argmax(1) == labels
    assert other.results[0].per_client[0] == pytest.approx(float(right.float().mean()))


def test_zero_shot_logits_are_those_of_open_clips_encoders(tiny_clip):
    import open_clip

    whole = open_clip.create_model(f"local-dir:{tiny_clip}").eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{tiny_clip}")
    model = prompted("zero_shot", clip_of(tiny_clip))
    images = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    vision = model.clip.vision
    with torch.no_grad():
        text = whole.encode_text(tokenizer([f"a photo of a {name}." for name in DIGITS]))
        image = whole.encode_image(((images + 1) / 2 - vision.mean) / vision.std)
        cosines = F.normalize(image, dim=-1) @ F.normalize(text, dim=-1).T
        logits = model(Pixels(images)).logits
    expected = whole.logit_scale.exp() * cosines
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
    assert torch.equal(logits.argmax(1), cosines.argmax(1))


@pytest.mark.parametrize("names", [("Cat", "dog", "cat"), ("a b", "dog", "a  b")])
@pytest.mark.parametrize("kind", ["zero_shot", "promptfl"])
def test_zero_shot_class_names_with_the_same_tokens_are_refused(tiny_clip, kind, names):
    with pytest.raises(UserError, match=r"CLIP of model\.clip cannot distinguish the classes 0 "):
        prompted(kind, clip_of(tiny_clip), names)


@pytest.mark.parametrize("kind", ["zero_shot", "promptfl"])
def test_zero_shot_long_names_that_differ_behind_the_last_token_are_refused(tiny_clip, kind):
    long = "very " * 40
    refused(
        lambda: prompted(kind, clip_of(tiny_clip), (f"{long}cat", "dog", f"{long}owl")),
        "classes 0 and 2",
    )


def test_zero_shot_novel_classes_with_the_tokens_of_a_class_are_refused(tiny_clip):
    model = prompted("zero_shot", clip_of(tiny_clip), ("cat", "dog"))
    refused(lambda: model.add_classes(["Dog"]), "classes 1 and 2")


def test_zero_shot_a_name_that_leaves_no_room_is_named(tiny_clip):
    model = drawn(
        prompted("promptfl", clip_of(tiny_clip), ("cat", "very " * 40 + "long"), length=4)
    )
    refused(model.text_features, "very ", "32 tokens")
