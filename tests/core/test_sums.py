"""Sums over uploads: pairwise, in the order of the clients."""

from __future__ import annotations

import pytest
import torch

from fedray.core import mean_of, total_of, total_over, weighed


def test_the_additions_by_hand():
    uploads = {9: 1e16, 1: 1.0, 5: -1e16}  # halves: [1] and [5, 9]
    total = total_of(lambda value: {"x": torch.tensor(value).double()}, uploads)
    assert total.clients == (1, 5, 9)
    assert float(total["x"]) == 1.0


def test_clients_without_upload_leave_no_trace():
    summands = {4: None, 7: {"x": torch.ones(2)}, 8: None}
    total = total_over([4, 7, 8], summands.__getitem__)
    assert total.clients == (7,)
    assert torch.equal(total["x"], torch.ones(2))
    assert not total_over([4, 8], summands.__getitem__)
    assert not total_over([], summands.__getitem__)


def test_nested_sums_and_counters():
    uploads = {k: (float(k), k) for k in range(4)}
    total = total_of(
        lambda pair: {"w": {"deep": torch.tensor(pair[0])}, "steps": torch.tensor(pair[1])}, uploads
    )
    assert float(total["w"]["deep"]) == 6.0
    assert int(total["steps"]) == 3


def test_uploads_stay_as_they_are():
    uploads = {client: {"a": torch.ones(3, dtype=torch.double)} for client in range(5)}
    for summand in (lambda upload: upload, lambda upload: weighed(upload, 2.0)):
        total_of(summand, uploads)
        assert all(upload["a"].eq(1).all() for upload in uploads.values())


def test_uploads_of_different_names_have_no_sum():
    with pytest.raises(ValueError, match="only some of the uploads have 'a'"):
        total_of(lambda name: {name: torch.ones(1)}, {0: "a", 1: "b"})


def test_a_mean_of_equal_tensors_is_exact():
    tensor = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    total = total_of(
        lambda weight: {"w": weighed({"a": tensor}, weight), "n": torch.tensor(weight)},
        {client: 3.0 + client for client in range(11)},
    )
    mean = mean_of(total["w"], total["n"], {"a": tensor})
    assert mean["a"].dtype == torch.float32
    assert torch.equal(mean["a"], tensor)
