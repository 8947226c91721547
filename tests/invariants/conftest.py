"""A local Ray for tests of the laws, and the small experiment that they repeat."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedray.core import algorithms

pytest.register_assert_rewrite("small")


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """One cache for this folder's tests: Ray's processes keep the one that they started with."""
    patch = pytest.MonkeyPatch()
    patch.setenv("FEDRAY_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def small(tiny_bert, tmp_path_factory):
    """The experiment that every executor and every disturbance must reproduce."""
    from small import Small

    return Small(tiny_bert, tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="module")
def ray_nodes(cache):
    """A local Ray that pretends to have four CPUs and two GPUs; gives its nodes."""
    from fedray.runtime.cluster import connect

    patch = pytest.MonkeyPatch()
    patch.delenv("OMP_NUM_THREADS", raising=False)  # as for users: Ray sets it by the CPUs
    patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # for faulty.py
    yield connect(num_cpus=4, num_gpus=2)
    patch.undo()


@pytest.fixture(scope="module")
def pool(ray_nodes, small):
    """Three workers on one CPU; they know the methods of faulty.py."""
    import faulty

    from fedray.runtime.pool import WorkerPool

    pool = WorkerPool(faulty.Worker, small.experiment("workers=3"))
    yield pool
    pool.close()


@pytest.fixture
def faulty_methods(monkeypatch):
    """This process knows the methods of faulty.py, for one test."""
    import faulty

    monkeypatch.setattr(algorithms, "_entries", dict(algorithms._entries))
    faulty.register()
