"""Shared: an own cache, a tiny BERT with random weights, and whole small runs in this process."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # PyTorch, Ray and the hub read these once
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("RAY_AUTH_MODE", "disabled")

import itertools
import random
import string
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from clips import save_clip
from encoding import save_bert
from hypothesis import settings
from tensors import CPU, same
from torch import Tensor

from fedray.config.plugins import use
from fedray.config.registry import HOMES, registry
from fedray.core import algorithms
from fedray.data import ReadOptions
from fedray.data.imageset import ImageSet
from fedray.data.sources.digits import Digits
from fedray.federation import Federation
from fedray.runtime.assembly import Assembly
from fedray.runtime.resolve import from_tree
from fedray.runtime.serial import SerialExecutor
from fedray.storage.run import Round
from fedray.tracking import follow

follow.CLOSE_SECONDS = 120.0  # on a busy machine
settings.register_profile("fedray", deadline=None, derandomize=True)
settings.load_profile("fedray")

COUNTER = itertools.count()

SMALL: dict[str, Any] = {
    "rounds": 2,
    "local_epochs": 1,
    "batch_size": 16,
    "lr": 0.05,
    "data": {"clients": 4, "samples": 240, "partition": {"name": "dirichlet", "alpha": 0.5}},
    "model": {"feature_dim": 16},
    "report": {"select": "test"},
}

WORDS = (
    "[PAD] [UNK] [CLS] [SEP] [MASK] a photo of zero one two three four five six seven eight nine "
    ": . with small round long thin dark line loop"
)


@pytest.fixture(scope="module", autouse=True)
def no_ray_of_another_file():
    """A file's tests leave no Ray in this process."""
    yield
    if ray := sys.modules.get("ray"):
        ray.shutdown()


@pytest.fixture(scope="session")
def caches(tmp_path_factory) -> Path:
    """Where the tests' caches are: pytest would look through all folders for each new one."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(autouse=True)
def cache(caches, monkeypatch):
    """Every test has a cache of its own."""
    folder = caches / str(next(COUNTER))
    folder.mkdir()
    monkeypatch.setenv("FEDRAY_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    """What a test registers, and the plug-ins that it uses, are gone after it."""
    registries = [registry(kind) for kind in HOMES]
    before = [set(entries._entries) for entries in registries]
    yield
    use(())
    for entries, names in zip(registries, before, strict=True):
        for name in set(entries._entries) - names:
            if not entries.home(name).startswith("fedray."):
                del entries._entries[name]


@pytest.fixture(scope="session", autouse=True)
def _digits_once() -> Iterator[None]:
    """The digits, whose arrays are read-only, are read once for all tests."""
    read, found = Digits.read, {}

    def once(self: Digits, root: Path, options: ReadOptions) -> ImageSet:
        if options not in found:
            found[options] = read(self, root, options)
        return found[options]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Digits, "read", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_power_cut() -> Iterator[None]:
    """Tests kill processes and never the machine: nothing has to wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def empty_data(tmp_path, monkeypatch) -> None:
    """Every data.root is an empty folder of that name."""

    def folder(root: str) -> Path:
        path: Path = tmp_path / Path(root).name
        path.mkdir(exist_ok=True)
        return path

    monkeypatch.setattr("fedray.config.resolution.resolve_root", folder)


@pytest.fixture(autouse=True)
def _start_no_tracking(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no process that writes to MLflow, unless a test has a database for it."""
    if "empty_database" not in request.fixturenames:
        child = SimpleNamespace(communicate=lambda timeout: ("",), returncode=0)
        monkeypatch.setattr(follow, "_child", lambda *_: child)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory) -> Path:
    """MLflow's database with its tables, which takes seconds to make: for tests to copy."""
    from sqlalchemy import Engine, event

    from fedray.tracking.store import client_of

    @event.listens_for(Engine, "connect")
    def _wait_for_no_disk(connection: Any, _: Any) -> None:
        connection.execute("PRAGMA synchronous = OFF")

    path = tmp_path_factory.mktemp("database") / "mlflow.db"
    client_of(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory) -> Path:
    """A BERT of width 16 that knows the digits' names, as save_pretrained writes it."""
    return save_bert(tmp_path_factory.mktemp("tiny_bert"), WORDS.split(), 24)


@pytest.fixture(scope="session")
def letter_bert(tmp_path_factory) -> Path:
    """A BERT of width 16 that spells every word, so that no two classes read the same."""
    letters = [*string.ascii_lowercase, *string.digits]
    words = [*WORDS.split()[:5], *string.punctuation, *letters, *(f"##{one}" for one in letters)]
    return save_bert(tmp_path_factory.mktemp("letter_bert"), words, 128)


@pytest.fixture(scope="session")
def tiny_clip(tmp_path_factory) -> Path:
    """A CLIP for 8-pixel images with random weights, as open_clip writes it."""
    folder = tmp_path_factory.mktemp("tiny_clip")
    save_clip(folder)
    return folder


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        assembly: its parts.
        results: what each round gave, round 0 first.
        servers: the server's state after each round.
        models: every client's model at the end, as its state has it.
        memories: every client's memory at the end.
    """

    assembly: Assembly
    results: list[Round]
    servers: list[Mapping[str, Any]]
    models: dict[int, Mapping[str, Tensor]]
    memories: dict[int, Mapping[str, Any]]

    def same_clients_as(self, other: Run) -> bool:
        """Whether all clients' weights, and accuracies in every round, are equal bit for bit."""
        accuracies = [[result.per_client for result in run.results] for run in (self, other)]
        return accuracies[0] == accuracies[1] and all(
            same(self.models[client], other.models[client]) for client in self.models
        )


@pytest.fixture
def assemble(request):
    """`assemble(algorithm, {"rounds": 3, ...})` gives the parts of a small experiment on digits.

    `data` replaces who owns what.
    """

    def assemble(
        algorithm: str = "local", changes: Mapping[str, Any] | None = None, data: Any = None
    ) -> Assembly:
        tree = {**SMALL, "algorithm": {"name": algorithm}}
        if algorithms.get(algorithm).requires.text:
            encoder = {"name": "bert", "path": str(request.getfixturevalue("tiny_bert"))}
            tree["text"] = {"encoder": encoder, "style": "handcrafted"}
        if algorithms.get(algorithm).requires.public:
            tree["data"] = {**SMALL["data"], "public": {"name": "share", "fraction": 0.2}}
        if algorithms.get(algorithm).requires.prompts:
            clip = {"name": "openclip", "path": str(request.getfixturevalue("tiny_clip"))}
            tree["model"] = {"clip": clip}
        return Assembly(from_tree(tree, (changes or {}).items()), data)

    return assemble


@pytest.fixture
def run(assemble):
    """`run(algorithm, {"rounds": 3, ...})` runs it; `data` replaces who owns what."""

    def run(
        algorithm: str = "local", changes: Mapping[str, Any] | None = None, data: Any = None
    ) -> Run:
        assembly = assemble(algorithm, changes, data)
        executor = SerialExecutor(assembly, CPU)
        federation = Federation(
            assembly.algorithm,
            executor,
            assembly.gate,
            assembly.plan,
            assembly.server(CPU),
        )
        results, servers = [], []
        for result in federation.rounds():
            results.append(result)
            servers.append(federation.snapshot.server)
        everyone = range(assembly.plan.clients)
        first = assembly.algorithm.init_client
        states = dict(executor.states)
        for client in everyone:
            if client not in states:
                states[client] = first(executor._runtime.client(client, 0))
        models = {client: states[client].model for client in everyone}
        memories = {client: states[client].memory for client in everyone}
        return Run(assembly, results, servers, models, memories)

    return run


@pytest.fixture
def worker() -> Any:
    """A worker in this process."""
    from fedray.runtime.ray_executor import Worker

    return Worker(1, 0)


SECOND_TIER = {"ray", "slow", "long"}
"""Marks of tests that may start processes, servers and Ray, and take longer than two seconds."""
FACTS = ("git", "uname", "fc-list", "system_profiler")
"""Programs that a test of the first tier may start: a run's record and MLflow ask the first two,
once in a process, and matplotlib one of the others, once on a machine."""
_quick_test: str | None = None
"""The running test of the first tier."""


def _refuse_processes(event: str, arguments: tuple[Any, ...]) -> None:
    """Fail a test of the first tier that starts a process or listens at a port."""
    if _quick_test is None or event not in ("subprocess.Popen", "os.fork", "socket.bind"):
        return
    if event == "subprocess.Popen" and arguments[0] in FACTS:
        return
    if event == "socket.bind" and isinstance(arguments[1], str):
        return  # the name of a file
    raise AssertionError(f"{_quick_test} starts a process or a server ({event}); mark it slow")


sys.addaudithook(_refuse_processes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _quick_test
    is_quick = not SECOND_TIER & {mark.name for mark in item.iter_markers()}
    _quick_test = item.nodeid if is_quick else None
    try:
        return (yield)
    finally:
        _quick_test = None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the files in a random order")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the files that take long, so that no worker is left alone with one at the end."""
    long = Counter(i.path for i in items if SECOND_TIER & {m.name for m in i.iter_markers()})
    items.sort(key=lambda item: -long[item.path])
    seed = config.getoption("shuffle")
    if seed is not None:
        files = sorted({item.path for item in items})
        random.Random(seed).shuffle(files)
        items.sort(key=lambda item: files.index(item.path))
