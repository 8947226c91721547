"""The gate: what it checks, counts and does to what travels."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tensors import gaussian

from fedray.core import BadPayload, Call, Fields, Gate, Payload, Privacy, sent
from fedray.core.gate import quantise, wire_bytes
from fedray.storage.run import Traffic

C, D = 5, 8
CALL = Call("client_update", SimpleNamespace(id=0, round=1), None)
CLIP = Privacy("local", 1.0, 0.0)


Mixed = Fields(
    "Mixed",
    {
        "vectors": sent("prototypes", axes="c d"),
        "counts": sent("statistics", axes="c", dtype=torch.int64),
        "weights": sent("weights"),
        "tau": sent("statistics", number=float),
    },
)


Table = Fields(
    "Table",
    {
        "vectors": sent("logits", axes="C d"),
    },
)


def mixed(**changes) -> Payload:
    fields = {
        "vectors": gaussian(3, D),
        "counts": torch.tensor([4, 5, 6]),
        "weights": {"layer": gaussian(2, 3, 4, seed=1), "steps": torch.tensor(7)},
        "tau": 0.5,
    }
    return Mixed(**{**fields, **changes})


def gate(**config) -> Gate:
    return Gate({"C": C, "d": D}, **config)


# --- checks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (
            Table(gaussian(C, D + 1)),
            r"Table\.vectors is float32 \[5, 9\], expected .* \[C, d\] with C = 5, d = 8",
        ),
        (
            Table(gaussian(C - 1, D)),
            r"Table\.vectors is float32 \[4, 8\], expected .* \[C, d\] with C = 5, d = 8",
        ),
        (Table(gaussian(D)), r"Table\.vectors is float32 \[8\], expected float32 \[C, d\] with C"),
        (
            mixed(counts=torch.tensor([1, 2])),
            r"Mixed\.counts is int64 \[2\], expected int64 \[c\] with c = 3",
        ),
        (mixed(vectors=gaussian(3, D) / 0), r"Mixed\.vectors holds a NaN or an infinity"),
        (
            mixed(weights={"bias": torch.tensor([1.0, float("nan")])}),
            r"Mixed\.weights\.bias holds a NaN or an infinity",
        ),
        (
            mixed(weights={"bias": torch.tensor([1.0, complex(0.0, float("nan"))])}),
            r"[Ww]eights\.bias (holds a NaN or an infinity|is complex)",
        ),
        (mixed(tau=float("nan")), r"Mixed\.tau holds a NaN or an infinity"),
        (mixed(tau=float("inf")), r"Mixed\.tau holds a NaN or an infinity"),
    ],
)
def test_a_bad_payload_passes_in_neither_direction(payload, message):
    for config in ({}, {"up_bits": 8}, {"privacy": CLIP}):
        with pytest.raises(BadPayload, match=message):
            gate(**config).up(payload, CALL)
        with pytest.raises(BadPayload, match=message):
            gate(**config).down(payload)


@pytest.mark.parametrize("smuggled", [[1.0] * 1000, "weights", len, None])
def test_what_cannot_be_counted_does_not_pass(smuggled):
    kind = type(smuggled).__name__
    for payload, expected in (
        (mixed(tau=smuggled), "a number"),
        (mixed(weights={"layer": {"bias": smuggled}}), "a tensor"),
    ):
        with pytest.raises(BadPayload, match=rf"is of type {kind}, expected {expected}"):
            gate().up(payload, CALL)


def test_nested_mappings_are_checked_and_counted_leaf_by_leaf():
    nested = {"0": {"weight": gaussian(2, 3), "bias": gaussian(3)}, "1": {"bias": gaussian(4)}}
    received, traffic = gate().up(mixed(weights=nested), CALL)
    assert traffic.params["weights"] == 6 + 3 + 4
    assert traffic.bytes["weights"] == 4 * (6 + 3 + 4)
    assert torch.equal(received.weights["1"]["bias"], nested["1"]["bias"])
    nested["0"]["bias"] = gaussian(3) / 0
    with pytest.raises(BadPayload, match=r"Mixed\.weights\.0\.bias holds a NaN or an infinity"):
        gate().up(mixed(weights=nested), CALL)


def test_a_good_payload_passes_unchanged():
    sent = mixed()
    for received in (gate().down(sent)[0], gate().up(sent, CALL)[0]):
        assert torch.equal(received.vectors, sent.vectors)
        assert torch.equal(received.counts, sent.counts)
        assert torch.equal(received.weights["layer"], sent.weights["layer"])
        assert int(received.weights["steps"]) == 7
        assert received.tau == 0.5


@pytest.mark.parametrize("config", [{}, {"up_bits": 8}, {"privacy": Privacy("local", 1e9, 0.0)}])
def test_what_is_received_has_no_gradient_and_the_original_stays(config):
    sent = mixed(vectors=gaussian(3, D).requires_grad_())
    for received in (gate(**config).down(sent)[0], gate(**config).up(sent, CALL)[0]):
        assert not received.vectors.requires_grad
        assert torch.equal(sent.vectors, gaussian(3, D))
        assert torch.equal(sent.weights["layer"], gaussian(2, 3, 4, seed=1))


# --- counting ------------------------------------------------------------------------------------


def test_numbers_and_bytes_by_kind():
    _, traffic = gate().down(mixed())
    assert traffic.params == {"prototypes": 3 * D, "statistics": 3 + 1, "weights": 24 + 1}
    # int64 counts and steps take 8 bytes, a plain number 4
    assert traffic.bytes == {"prototypes": 4 * 3 * D, "statistics": 24 + 4, "weights": 4 * 24 + 8}
    assert sum(traffic.params.values()) == 24 + 4 + 25
    assert traffic.total_bytes == 96 + 28 + 104


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
def test_bytes_of_quantised_tensors(bits):
    _, traffic = gate(up_bits=bits).up(mixed(), CALL)
    assert traffic.params == gate().down(mixed())[1].params
    assert traffic.bytes["prototypes"] == 3 * D * bits // 8 + 3 * 4  # a scale a vector
    assert traffic.bytes["weights"] == 24 * bits // 8 + 4 + 8  # one tensor, one scale; steps
    assert traffic.bytes["statistics"] == 28  # never quantised


Pictures = Fields(
    "Pictures",
    {
        "images": sent("images", axes="v channels height width", dtype=torch.uint8),
    },
)


def test_images_are_counted_by_their_bytes_and_stay_as_they_are():
    pixels = torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)
    strict = gate(up_bits=2, privacy=Privacy("local", 0.1, 1.0))
    received, traffic = strict.up(Pictures(pixels), CALL)
    assert torch.equal(received.images, pixels)
    assert traffic.bytes == {"images": pixels.numel()}


def test_bytes_are_rounded_up():
    assert wire_bytes("prototypes", torch.zeros(1, 3), 2) == 1 + 4
    assert wire_bytes("statistics", torch.zeros(3), 2) == 12


def test_only_uploads_are_quantised():
    sent, coarse = mixed(), gate(up_bits=2)
    assert torch.equal(coarse.down(sent)[0].vectors, sent.vectors)
    assert torch.equal(coarse.up(sent, CALL)[0].vectors, quantise(sent.vectors, 2))


def test_traffic_adds_up_by_kind():
    parts = (
        Traffic({"weights": 2}, {"weights": 8}),
        Traffic({"weights": 1, "prototypes": 5}, {"weights": 4, "prototypes": 20}),
    )
    total = Traffic.total(parts)
    assert total.params == {"prototypes": 5, "weights": 3}
    assert total.bytes == {"prototypes": 20, "weights": 12}


def test_a_zero_vector_is_quantised_to_itself():
    assert torch.equal(quantise(torch.zeros(2, 3), 4), torch.zeros(2, 3))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_what_comes_from_a_gpu_arrives_on_the_cpu():
    for config in ({}, {"up_bits": 8}, {"privacy": Privacy("local", 1.0, 0.1)}):
        here, _ = gate(**config).up(mixed(), CALL)
        there, _ = gate(**config).up(mixed().copied(torch.Tensor.cuda), CALL)
        assert there.vectors.device.type == "cpu"
        assert torch.equal(here.vectors, there.vectors)
        assert there.weights["layer"].device.type == "cpu"
