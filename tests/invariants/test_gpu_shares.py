"""Workers and server get the shares that were asked for, on pretended GPUs."""

from __future__ import annotations

import pytest
import ray
from small import wait_for

from fedray.runtime.pool import WorkerPool
from fedray.runtime.ray_executor import Worker
from fedray.runtime.resources import preflight

pytestmark = pytest.mark.ray


def assigned(worker):
    """An actor's resources, and the numbers of its GPUs."""

    def look(_):
        context = ray.get_runtime_context()
        return context.get_assigned_resources(), ray.get_gpu_ids()

    return worker.__ray_call__.remote(look)


@pytest.mark.long
@pytest.mark.slow
def test_three_workers_share_what_the_server_leaves_of_two_gpus(small, ray_nodes):
    shares = ("workers=3", "cpus=0.75", "gpus=2", "server_gpus=0.5")
    experiment = small.experiment(*shares)
    assert "3 workers need 0.75 CPU, 2 GPU" in preflight(experiment, ray_nodes)
    before = ray.available_resources()
    pool = WorkerPool(Worker, experiment)
    try:
        found = ray.get([assigned(worker) for worker in pool.workers])
        assert [share for share, _ in found] == [{"CPU": 0.25, "GPU": 0.5}] * 3
        gpus = [ids for _, ids in found]
        assert all(len(ids) == 1 for ids in gpus)
        assert len({ids[0] for ids in gpus}) == 2
        left = wait_for(lambda: ray.available_resources().get("GPU") == 0.5)
        assert left
    finally:
        pool.close()
    wait_for(lambda: ray.available_resources().get("GPU") == before["GPU"])


def test_workers_without_gpus_take_none(pool):
    share, gpus = ray.get(assigned(pool.workers[0]))
    assert share == {"CPU": 0.3333}
    assert gpus == []
