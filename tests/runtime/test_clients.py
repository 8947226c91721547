"""Client steps: what their layers draw by themselves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from answers import run_tests
from rounds import step_of
from tensors import CPU, same

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.base.errors import ClientError, UserError
from fedray.core import ClientState, Flat, Sums, combined_rows, total_of
from fedray.models import saved_buffers
from fedray.runtime.assembly import Assembly
from fedray.runtime.groups import GroupRunner, Member


@pytest.fixture
def dropped(assemble, monkeypatch):
    """`dropped(round_, client)` gives what dropout leaves in a client's step, seed by seed."""
    runtimes = {}

    def step(client, state, down):
        kept = F.dropout(torch.ones(64))
        return None, ClientState(state.model, {"kept": kept})

    def dropped(
        round_: int, client: int, name: str = "client_update", seed: int = 0
    ) -> list[float]:
        if seed not in runtimes:
            runtimes[seed] = GroupRunner(assemble("local", {"seed": seed}), CPU)
        runtime = runtimes[seed]
        monkeypatch.setitem(vars(runtime.assembly.algorithm), name, step)
        _, after = step_of(runtime, client, name=name, round_=round_)
        return after.memory["kept"].tolist()

    return dropped


def test_dropout_is_drawn_anew_for_every_round_client_step_and_seed(dropped):
    draws = [
        dropped(1, 0),
        dropped(2, 0),
        dropped(1, 1),
        dropped(1, 0, "another_step"),
        dropped(1, 0, seed=1),
    ]
    assert all(set(draw) == {0.0, 2.0} for draw in draws)
    assert len({tuple(draw) for draw in draws}) == len(draws)


def test_dropout_depends_on_nothing_else_and_leaves_the_global_generator_alone(dropped):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = dropped(2, 1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(4)
    dropped(7, 3)
    assert dropped(2, 1) == first


@pytest.mark.parametrize(
    ("returned", "cause"),
    [
        (
            (None, ClientState({}, {"seen": {"steps": 3}})),
            "the state's 'memory.seen.steps' is of type int, expected a tensor",
        ),
        ((None, None), "the next state is a NoneType, expected a ClientState"),
        (({"w": torch.zeros(1)}, ClientState({})), "client_update uploads w, expected nothing"),
    ],
)
def test_what_a_step_may_not_return_is_a_clients_failure(assemble, monkeypatch, returned, cause):
    runtime = GroupRunner(assemble("local"), CPU)
    monkeypatch.setitem(vars(runtime.assembly.algorithm), "client_update", lambda *_: returned)
    with pytest.raises(ClientError, match=re.escape(cause)):
        step_of(runtime)


def test_a_state_keeps_no_memory_of_the_model_that_the_next_client_loads(assemble, monkeypatch):
    runtime = GroupRunner(assemble("local", {"model.group": "mlp"}), CPU)

    def step(client, state, down):
        model = client.load(state.model)
        return None, ClientState(state.model, dict(client.weights(model)))

    monkeypatch.setitem(vars(runtime.assembly.algorithm), "client_update", step)
    _, first = step_of(runtime)
    kept = {name: tensor.clone() for name, tensor in first.memory.items()}
    other = ClientState({name: tensor + 1 for name, tensor in kept.items()})
    step_of(runtime, 1, other)
    assert same(first.memory, kept)


VALIDATED = {"data.validation_fraction": 0.2, "evaluation.global_test": True}


@pytest.mark.parametrize("images", ["test", "eval_sets", "validation_sets"])
def test_a_step_has_no_images_that_a_model_is_measured_on(assemble, monkeypatch, images):
    runtime = GroupRunner(assemble("local", VALIDATED), CPU)

    def step(client, state, down):
        return getattr(client, images)

    monkeypatch.setitem(vars(runtime.assembly.algorithm), "client_update", step)
    with pytest.raises(ClientError, match=f"'Client' object has no attribute '{images}'"):
        step_of(runtime)


def test_a_step_has_validation_images_only_if_the_method_requires_them(assemble):
    plain = GroupRunner(assemble("promptfl", VALIDATED), CPU)
    validating = GroupRunner(assemble("dp2fl", VALIDATED), CPU)
    assert plain.client(0, 1).validation is None
    assert len(plain.assembly.data.validation[0]) > 0
    assert len(validating.client(0, 1).validation) > 0


@pytest.fixture
def replied(assemble, monkeypatch):
    """`replied(step)` gives the reply of a client whose step is this function."""
    runtime = GroupRunner(assemble("local"), CPU)

    def replied(step):
        monkeypatch.setitem(vars(runtime.assembly.algorithm), "client_update", step)
        return step_of(runtime)[0]

    return replied


def test_the_loss_of_a_step_is_that_of_its_last_training(replied):
    def trains_twice(client, state, down):
        client.train_losses.extend([2.0, 0.5])
        return None, state

    assert replied(trains_twice).train_loss == 0.5
    assert replied(lambda client, state, down: (None, state)).train_loss is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "0.5", torch.ones(1)])
def test_a_report_is_a_finite_number(replied, value):
    def reports(client, state, down):
        client.reports["share"] = value
        return None, state

    with pytest.raises(ClientError, match=r"client\.reports\['share'\] is .* a finite number"):
        replied(reports)


@pytest.mark.parametrize(
    ("wrong", "found"),
    [
        (lambda bias: torch.zeros(1, dtype=torch.int64), r"int64 [1]"),
        (lambda bias: torch.zeros(1), r"float32 [1]"),
        (lambda bias: bias.double(), r"float64 [10]"),
    ],
)
def test_weights_of_another_shape_or_type_are_not_loaded(assemble, wrong, found):
    runtime = GroupRunner(assemble("local"), CPU)
    weights = runtime.client(0, 1).initial()
    state = ClientState({**weights, "head.bias": wrong(weights["head.bias"])})
    for call in (step_of, lambda runtime, **given: run_tests(runtime, [0], state=given["state"])):
        with pytest.raises(ClientError) as failed:
            call(runtime, state=state, down=None)
        assert failed.value.failure.cause == (
            f"ValueError: the weights do not fit the model: head.bias is {found}, "
            "expected float32 [10]"
        )


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda weights: {**weights, "a": weights["head.bias"]}, r"a is float32 \[10\], .* none"),
        (lambda weights: {k: v for k, v in weights.items() if k != "head.bias"}, "head.bias is no"),
    ],
)
def test_weights_of_another_name_are_not_loaded(assemble, change, wrong):
    runtime = GroupRunner(assemble("local"), CPU)
    state = ClientState(change(runtime.client(0, 1).initial()))
    with pytest.raises(ClientError, match=f"do not fit the model: {wrong}"):
        step_of(runtime, 0, state)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_logits_that_are_not_finite_are_no_score(assemble, monkeypatch, value):
    runtime = GroupRunner(assemble("local"), CPU)

    def predict(output, local):
        logits = output.logits.clone()
        logits[0, 3] = value
        return logits

    monkeypatch.setitem(vars(runtime.assembly.algorithm), "predict", predict)
    with pytest.raises(ClientError, match=f"NotFinite: the tested model's logits contain {value};"):
        run_tests(runtime, [0])


def test_a_class_may_be_masked(assemble, monkeypatch):
    runtime = GroupRunner(assemble("local"), CPU)

    def predict(output, local):
        return output.logits.index_fill(1, torch.tensor([0, 1]), -torch.inf)

    monkeypatch.setitem(vars(runtime.assembly.algorithm), "predict", predict)
    predicted = run_tests(runtime, [0])[0, 0, 2]
    assert predicted[:2].sum() == 0 < predicted.sum()


def reachable(value, seen):
    """Yield the arrays and tensors that public names lead to from a value, its methods left out."""
    if id(value) in seen or value is None or isinstance(value, str | int | float | type):
        return
    seen[id(value)] = value
    if isinstance(value, np.ndarray | torch.Tensor):
        yield value if isinstance(value, np.ndarray) else value.detach().numpy()
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from reachable(each, seen)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from reachable(each, seen)
    elif type(value).__module__.startswith("fedray"):
        for name in (name for name in dir(value) if not name.startswith("_")):
            with suppress(RuntimeError):  # public images that the method does not require
                each = getattr(value, name)
                if not callable(each):
                    yield from reachable(each, seen)


def test_no_public_name_of_a_client_leads_to_a_test_image(assemble):
    assembly = assemble("fedavg", VALIDATED)
    runtime, images = GroupRunner(assembly, CPU), assembly.data.images.images
    client = runtime.client(0, 1)
    arrays = [*reachable(client, {}), *map(np.asarray, client.train.tensors(CPU))]
    assert len(arrays) > 3  # labels, indices, weights, images
    found = {row.tobytes() for array in arrays if array.ndim == 4 for row in array}
    own = {images[index].tobytes() for index in assembly.data.train[0]}
    assert found & {image.tobytes() for image in images} == own


def sent_to(made: Assembly, count: int) -> list[Member]:
    """Return the first clients of an experiment with what they get in round 1."""
    server = made.server(CPU)
    down = made.algorithm.downlink(made.algorithm.init_server(server), range(count), server)
    return [Member(client, None, down[client]) for client in range(count)]


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_summed_outlives_the_models_that_were_uploaded(assemble, count):
    made = assemble("fedavg", {"model.group": "cnn2"})
    runtime, sums, members = GroupRunner(made, CPU), Sums(count), sent_to(made, 3)
    uploads = [step_of(runtime, *member)[0].uplink for member in members]
    answers = runtime.run_group("client_update", 1, members[:count], sums)
    assert [reply.uplink for reply, _ in answers] == [None] * count
    step_of(runtime, *members[2])
    expected = total_of(dict(enumerate(uploads[:count])), partial(combined_rows, made.algorithm))
    assert same(sums.total["model"], expected["model"])


@pytest.fixture
def two_steps(assemble, monkeypatch):
    """`two_steps(update)` runs a client step for a group of two clients."""

    def two_steps(update, changes=None):
        made = assemble("fedavg", {"model.group": "cnn2", **(changes or {})})
        monkeypatch.setitem(vars(made.algorithm), "client_update", update)
        return GroupRunner(made, CPU).run_group("client_update", 1, sent_to(made, 2))

    return two_steps


def test_uploaded_gradients_outlive_the_next_client_of_a_group(two_steps):
    made = []

    def update(client, state, down):
        model = client.load(down.model)
        model.zero_grad(set_to_none=False)
        for batch in client.batches(client.train):
            with torch.enable_grad():
                F.cross_entropy(model(batch.inputs).logits, batch.labels).backward()
        gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
        made.append({name: gradient.clone() for name, gradient in gradients.items()})
        return FedAvg.up(gradients | dict(saved_buffers(model)), len(client.train)), state

    for (reply, _), own in zip(two_steps(update), made, strict=True):
        assert same({name: reply.uplink.model[name] for name in own}, own)


@pytest.mark.parametrize("stacked", [1, 2])
def test_the_first_state_is_no_work_of_a_step(assemble, stacked):
    made = assemble("fedavg", {"model.group": "cnn2", "stacked": stacked})

    def first(client):
        client.logits(client.load(client.initial()), client.train)
        return ClientState({})

    work = []
    for init in (made.algorithm.init_client, first):
        vars(made.algorithm)["init_client"] = init
        answers = GroupRunner(made, CPU).run_group("client_update", 1, sent_to(made, 2))
        work.append([reply.work for reply, _ in answers])
    assert work[0] == work[1]


def test_a_batch_of_one_image_that_batch_norm_cannot_train_on_names_the_key(assemble):
    keys = {"model.group": "mlp", "model.projector": 8, "model.feature_dim": 8, "batch_size": 1}
    made = assemble("fedavg", keys)
    with pytest.raises(UserError, match=r"^client 0, round 1, .*batch_size=2"):
        GroupRunner(made, CPU).run_group("client_update", 1, sent_to(made, 1))


# --- what a step may only read -------------------------------------------------------------------


@pytest.mark.parametrize("form", [dict, Flat.of])
@pytest.mark.parametrize(
    ("part", "place"),
    [
        ("download", "its download"),
        ("model", "the client's state"),
        ("memory", "the client's state"),
    ],
)
@pytest.mark.parametrize("stacked", [1, 2])
def test_a_step_that_writes_into_what_it_reads_is_named(
    assemble, monkeypatch, stacked, part, place, form
):
    made = assemble("fedavg", {"model.group": "cnn2", "stacked": stacked})
    begin, writer = type(made.algorithm).begin, 1

    def weights():
        return form({n: t.clone() for n, t in made.models.initial("cnn2").items()})

    def begun(method, client, state, down):
        parts = {"download": down.model, "model": state.model, "memory": state.memory["seen"]}
        if client.id == writer:
            parts[part]["head.bias"][:1].fill_(3.0)
        return begin(method, client, ClientState({}), down)

    monkeypatch.setattr(type(made.algorithm), "begin", begun)
    runtime, down = GroupRunner(made, CPU), FedAvg.down(weights())
    members = [Member(c, ClientState(weights(), {"seen": weights()}), down) for c in range(3)]
    with pytest.raises(ClientError, match=rf"^client 1,.* wrote into {place}.*change a copy"):
        runtime.run_group("client_update", 1, members[:2])
    writer = None
    runtime.run_group("client_update", 1, members[::2])


def test_a_test_that_writes_into_its_download_is_named(assemble, monkeypatch):
    made = assemble("fedavg", {"model.group": "cnn2"})
    (client, state, down), *_ = sent_to(made, 1)
    monkeypatch.setitem(vars(made.algorithm), "begin", lambda *_: down.model["head.bias"].zero_())
    monkeypatch.setattr("fedray.runtime.groups.run_test", lambda _, a, *rest: a.begin())
    with pytest.raises(ClientError, match=r"step evaluate: .* its download"):
        run_tests(GroupRunner(made, CPU), [client], state=state, down=down)
