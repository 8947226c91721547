"""One local Ray for all tests of the laws, and the small experiment that they repeat."""

from __future__ import annotations

import os

import pytest
from small import Small


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """One cache for this folder's tests: Ray's processes keep the one that they started with."""
    patch = pytest.MonkeyPatch()
    patch.setenv("FEDRAY_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="package")
def ray_nodes(cache):
    """A local Ray with two CPUs and two pretended GPUs; gives its nodes."""
    import ray

    from fedray.runtime.cluster import connect

    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    ray.shutdown()
    yield connect(num_cpus=2, num_gpus=2)
    ray.shutdown()


@pytest.fixture(scope="session")
def small(tiny_bert, tmp_path_factory):
    """The experiment that every executor and every disturbance must reproduce."""
    return Small(tiny_bert, tmp_path_factory.mktemp("undisturbed"))
