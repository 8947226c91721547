"""Clipping of whole updates, noise, and what the server's step is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensors import gaussian
from torch import Tensor

from fedray.core import (
    KINDS,
    Call,
    Fields,
    Gate,
    Payload,
    Privacy,
    combined_rows,
    mean_of,
    sent,
    total_of,
)
from fedray.core.gate import exempt_fields, update_norm
from fedray.core.payload import is_covered

D = 8


Model = Fields(
    "Model",
    {
        "weights": sent("weights"),
        "buffers": sent("statistics"),
    },
)


Update = Fields(
    "Update",
    {
        **Model,
        "samples": sent("statistics", number=int),
    },
)


Means = Fields(
    "Means",
    {
        "vectors": sent("prototypes", axes="c d"),
        "counts": sent("statistics", axes="c", dtype=torch.int64),
    },
)


AllMeans = Fields(
    "AllMeans",
    {
        "vectors": sent("prototypes", axes="C d"),
    },
)


def update(a: Tensor, b: Tensor, samples: int = 5) -> Payload:
    return Update({"a": a, "b": b}, {"mean": torch.ones(2), "steps": torch.tensor(7)}, samples)


Averaged = Fields(
    "Averaged",
    {
        "weights": sent("weights", combine="mean"),
    },
)


def released(privacy: Privacy, uploads: Sequence[Mapping[str, Tensor]]) -> Payload:
    """The mean that the server's step takes."""
    total = total_of(
        {k: Averaged(one) for k, one in enumerate(uploads)}, partial(combined_rows, None)
    )
    total = privacy.release(total, Averaged, round_=1, step="s")
    return Averaged(mean_of(total["weights"], total["weight"], uploads[0]))


def moved_by(upload: Model, down: Model) -> float:
    return update_norm(upload.weights[name] - down.weights[name] for name in down.weights)


# --- clipping ------------------------------------------------------------------------------------


def test_the_whole_update_is_clipped_by_hand():
    down = Model({"a": torch.tensor([1.0, 1.0]), "b": torch.tensor([[10.0]])}, {})
    # the update is (3, 0) and 4, of norm 5; half of it has norm 2.5
    up = Privacy("central", 2.5, 0.0).clipped(
        update(torch.tensor([4.0, 1.0]), torch.tensor([[14.0]])), down
    )
    torch.testing.assert_close(up.weights["a"], torch.tensor([2.5, 1.0]))
    torch.testing.assert_close(up.weights["b"], torch.tensor([[12.0]]))
    assert torch.equal(up.buffers["mean"], torch.ones(2))
    assert int(up.buffers["steps"]) == 7
    assert up.samples == 5


def test_large_weights_that_hardly_moved_are_left_alone_bit_for_bit():
    down = Model({"a": gaussian(50) * 1e3, "b": gaussian(2, 2)}, {})
    sent = update(down.weights["a"] + 0.01, down.weights["b"])
    assert Privacy("central", 1.0, 0.0).clipped(sent, down) is sent


def test_prototypes_are_one_vector_and_no_difference():
    """Also where a client holds every class: which tensors have an origin depends on no data."""
    vectors = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    sent = Means(vectors, torch.tensor([1, 2]))
    for down in (None, AllMeans(torch.ones(2, 2))):
        up = Privacy("central", 1.0, 0.0).clipped(sent, down)
        torch.testing.assert_close(up.vectors, vectors / 5)
        assert up.counts.tolist() == [1, 2]


@given(st.floats(0.01, 100), st.integers(0, 10_000), st.floats(1e-3, 1e3))
def test_the_mean_of_clipped_updates_moves_by_at_most_2_s_over_m(norm, seed, size):
    """Sensitivity: whatever one client's data is replaced by, given the same download."""
    down = Model({"a": gaussian(D, seed=seed), "b": gaussian(2, 3, seed=seed + 1)}, {})
    uploads = [
        Privacy("central", norm, 0.0).clipped(
            update(
                down.weights["a"] + size * gaussian(D, seed=seed + 10 + i),
                down.weights["b"] + size * gaussian(2, 3, seed=seed + 20 + i),
            ),
            down,
        )
        for i in range(4)
    ]
    assert all(moved_by(upload, down) <= norm * (1 + 1e-3) for upload in uploads)
    central = Privacy("central", norm, 0.0)
    ours, theirs = (
        released(central, [upload.weights for upload in clients])
        for clients in (uploads[:3], (*uploads[:2], uploads[3]))
    )
    assert moved_by(ours, theirs) <= 2 * norm / 3 * (1 + 1e-3)


# --- noise ---------------------------------------------------------------------------------------


def call(step: str = "client_update", **where: int) -> Call:
    """The call of a step in round 1 at client 0, or elsewhere."""
    return Call(step, SimpleNamespace(**{"id": 0, "round": 1, **where}), None)


def noise(privacy: Privacy, **where) -> Tensor:
    """The noise on an upload of zeros through the gate."""
    zeros = Means(torch.zeros(100, 200), torch.zeros(100, dtype=torch.int64))
    return Gate({}, privacy=privacy).up(zeros, call(**where))[0].vectors


def correlation(a: Tensor, b: Tensor) -> float:
    return abs(float(torch.corrcoef(torch.stack([a.ravel(), b.ravel()]))[0, 1]))


def test_local_noise_has_deviation_sigma_s_after_clipping():
    drawn = noise(Privacy("local", 3.0, 0.7))
    assert float(drawn.std()) == pytest.approx(2.1, rel=0.03)  # 20,000 numbers: 0.5 % is 1 sd
    assert float(drawn.mean()) == pytest.approx(0, abs=0.08)
    far = Gate({}, privacy=Privacy("local", 0.5, 1e-3)).up(
        Means(torch.full((1, D), 9.0), torch.ones(1, dtype=torch.int64)), call()
    )[0]
    assert update_norm([far.vectors]) == pytest.approx(0.5, abs=0.02)


def test_two_uploads_of_a_round_do_not_share_noise():
    seeded = Privacy("local", 1.0, 1.0, seed=5)
    first = noise(seeded)
    assert torch.equal(first, noise(seeded))
    for other in ({"step": "second_upload"}, {"round": 2}, {"id": 1}):
        assert correlation(first, noise(seeded, **other)) < 0.05
    assert correlation(first, noise(replace(seeded, seed=6))) < 0.05


def test_central_noise_is_added_once_to_the_mean():
    central = Privacy("central", 2.0, 3.0)
    uploads = [{"w": torch.full((100, 200), float(k))} for k in (1, 2, 6)]
    alone = Gate({}, privacy=central).up(Averaged(uploads[2]), call())[0]
    assert update_norm(alone.weights.values()) == pytest.approx(2.0)  # no noise on the way
    drawn = released(central, uploads).weights["w"] - 3  # the mean of 1, 2 and 6
    assert float(drawn.std()) == pytest.approx(3.0 * 2.0 / 3, rel=0.03)
    exact = released(Privacy("central", 2.0, 0.0), uploads)
    assert float(exact.weights["w"].mean()) == 3


Pictures = Fields(
    "Pictures",
    {
        "images": sent("images", axes="n channels height width"),
        "labels": sent("statistics", axes="n"),
    },
)


def test_what_nothing_covers_passes_as_it_is():
    pixels = torch.rand(2, 3, 4, 4)

    pictures = Pictures(pixels, torch.ones(2))
    for mode in ("central", "local"):
        gate = Gate({}, privacy=Privacy(mode, 0.1, 1.0))
        assert torch.equal(gate.up(pictures, call())[0].images, pixels)
        assert not gate.privacy.covers(Pictures)
    assert [place for place, _ in exempt_fields([Pictures, Means])] == [
        "Pictures.images",
        "Pictures.labels",
        "Means.counts",
    ]


def test_everything_but_images_and_statistics_is_covered():
    covered = {kind for kind in KINDS if is_covered(kind, torch.ones(1))}
    assert covered == {*KINDS} - {"images", "statistics"}
    assert {"weights", "prompts", "prototypes"} <= covered
    assert not is_covered("weights", torch.ones(1, dtype=torch.int64))
