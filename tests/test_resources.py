"""What a run asks for, whether the nodes have it, and what is said when they do not."""

from __future__ import annotations

import pytest
from lab import refused

from fedray.config import Experiment
from fedray.runtime.resources import (
    at_a_time,
    preflight,
    trial_bundles,
    worker_bundles,
)


def asks(**keys: float) -> Experiment:
    return Experiment(**keys)


def node(cpu: float, gpu: float = 0) -> dict[str, float]:
    return {"CPU": cpu, "GPU": gpu}


# --- shares ----------------------------------------------------------------------------------


def test_one_cpu_a_worker_by_default():
    assert worker_bundles(asks(workers=3)) == [{"CPU": 1.0}] * 3
    assert worker_bundles(asks(workers=4, cpus=2)) == [{"CPU": 0.5}] * 4
    assert worker_bundles(asks(workers=2, cpus=8)) == [{"CPU": 4.0}] * 2


@pytest.mark.parametrize(
    ("gpus", "server_gpus", "workers", "share"),
    [(1, 0, 1, 1), (1, 0, 4, 0.25), (2, 0.5, 3, 0.5), (4, 0, 2, 2), (1, 0.25, 1, 0.75)],
)
def test_workers_share_the_gpus_that_the_server_leaves(gpus, server_gpus, workers, share):
    experiment = asks(gpus=gpus, server_gpus=server_gpus, workers=workers)
    assert [bundle["GPU"] for bundle in worker_bundles(experiment)] == [share] * workers


@pytest.mark.parametrize("workers", range(1, 33))
def test_shares_never_add_up_to_more_than_was_asked_for(workers):
    bundles = worker_bundles(asks(workers=workers, cpus=2, gpus=1))
    for kind, whole in (("CPU", 2), ("GPU", 1)):
        # Ray counts in ten-thousandths.
        share = bundles[0][kind] * 10_000
        assert share == pytest.approx(round(share), abs=1e-6)
        total = sum(round(bundle[kind] * 10_000) for bundle in bundles)
        assert whole * 10_000 - workers < total <= whole * 10_000


def test_the_server_s_bundle_comes_first_and_may_be_empty():
    plain = asks(workers=2)
    assert trial_bundles(plain) == [{}, {"CPU": 1.0}, {"CPU": 1.0}]
    served = asks(workers=1, gpus=1, server_gpus=0.5)
    assert trial_bundles(served) == [{"GPU": 0.5}, {"CPU": 1.0, "GPU": 0.5}]


def test_a_server_that_leaves_nothing_is_refused():
    with pytest.raises(ValueError, match="server_gpus=1 leaves nothing of gpus=1"):
        asks(gpus=1, server_gpus=1)


# --- whether it fits -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "nodes", "printed"),
    [
        (
            {"workers": 2},
            [node(2)],
            "2 workers need 2 CPU, 0 GPU; the cluster has 2 CPU, 0 GPU on 1 node(s); "
            "1 run(s) at a time",
        ),
        (
            {"workers": 4, "cpus": 1, "gpus": 1},
            [node(8, 2), node(8, 2)],
            "4 workers need 1 CPU, 1 GPU; the cluster has 16 CPU, 4 GPU on 2 node(s); "
            "4 run(s) at a time",
        ),
        (
            {"workers": 3, "cpus": 1, "gpus": 1, "server_gpus": 0.25},
            [node(4, 1)],
            "3 workers need 0.9999 CPU, 1 GPU; the cluster has 4 CPU, 1 GPU on 1 node(s); "
            "1 run(s) at a time",
        ),
    ],
)
def test_what_fits(keys, nodes, printed):
    experiment = asks(**keys)
    assert preflight(experiment, nodes) == printed
    assert printed.endswith(f"{at_a_time(experiment, nodes)} run(s) at a time")


# --- packing ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "nodes", "runs"),
    [
        # Shares below one GPU stay within one: two thirds fit once a GPU, thirds thrice.
        ({"workers": 3, "gpus": 2, "cpus": 0.3}, [node(4, 2)], 0),
        ({"workers": 3, "gpus": 2, "cpus": 0.3}, [node(4, 3)], 1),
        ({"workers": 3, "gpus": 1, "cpus": 0.3}, [node(4, 3)], 3),
        # Whole GPUs are of one node.
        ({"workers": 1, "gpus": 2}, [node(4, 1), node(4, 1)], 0),
        ({"workers": 2, "gpus": 2}, [node(4, 1), node(4, 1)], 1),
        ({"workers": 1, "gpus": 2}, [node(4, 2), node(4, 2)], 2),
        # A share and its CPUs are on the same node.
        ({"workers": 1, "cpus": 4, "gpus": 1}, [node(8, 0), node(1, 4)], 0),
        ({"workers": 1, "cpus": 4, "gpus": 1}, [node(8, 1), node(1, 4)], 1),
        # The server's half and two quarters fill a GPU.
        ({"workers": 2, "gpus": 1, "server_gpus": 0.5}, [node(4, 2)], 2),
        ({"workers": 2, "cpus": 1}, [node(2), node(1)], 3),
        ({"workers": 4}, [node(2)], 0),
        ({"gpus": 3}, [node(8, 4)], 0),
        ({"workers": 2, "cpus": 8}, [node(3), node(3), node(3)], 0),
    ],
)
def test_how_many_runs_fit(keys, nodes, runs):
    assert at_a_time(asks(**keys), nodes) == runs
    if not runs:
        refused(lambda: preflight(asks(**keys), nodes), "workers", "gpus")
