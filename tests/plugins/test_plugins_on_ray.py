"""Plug-ins on two Ray workers, and in a sweep's trials: the numbers are those of one process.

Ray's processes do not find the plug-in's file: it is removed before anything of it is run.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from plugged import DATA, METHOD, MODEL, PAYLOAD, run, write

import fedray
from fedray.config.plugins import use
from fedray.run import main
from fedray.runtime.resolve import resolve
from fedray.runtime.server import run_on_ray
from fedray.storage.run_folder import RunFolder
from fedray.sweep import main as sweep

pytestmark = [pytest.mark.ray, pytest.mark.slow]

DATA_KEYS = ["data.source=tones", "data.augment=inverted", "data.partition=turns"]
TWO = "workers=2"


@pytest.fixture(scope="module")
def two_cpus(tmp_path_factory):
    from fedray.runtime.cluster import connect

    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_AUTH_MODE", "disabled")
    patch.setenv("FEDRAY_CACHE", str(tmp_path_factory.mktemp("cache")))
    yield connect(num_cpus=2)
    patch.undo()
    use(())


def metrics(out: Path) -> list[dict[str, float]]:
    return [dict(done.metrics) for done in RunFolder(out).rounds()]


def test_every_kind_on_two_workers_without_the_file(tmp_path, two_cpus):
    here = tmp_path / "here"
    here.mkdir()
    plugins = write(here, mine=METHOD, nets=MODEL, data=DATA)
    keys = ["algorithm={name: scaled, scale: 2}", "model.group=net", *DATA_KEYS]
    words = ["rounds=2", "local_epochs=1", "data.clients=3", *keys, TWO]
    experiment = resolve("fedavg_digits", words, plugins[1::2])
    for path in here.iterdir():
        path.unlink()
    said = list[str]()
    list(run_on_ray(experiment, tmp_path / "ray", began=0.0, say=said.append))
    assert said == ["data.source=tones: 200 images of 2 classes, no official test"]
    use(())  # so that modules that this process loaded while there was a file look for it again
    config = str(tmp_path / "ray" / "run.json")
    serial = [config, "--executor", "serial", "--no-track", "--out", str(tmp_path / "serial")]
    assert main(serial) == 0
    assert metrics(tmp_path / "ray") == metrics(tmp_path / "serial")
    assert metrics(tmp_path / "ray")[-1]["tested_clients"] == 3
    assert (tmp_path / "ray" / "plugins" / "mine.py").read_text() == METHOD
    kept = [fedray.load(tmp_path / each).model().state_dict() for each in ("ray", "serial")]
    assert all(torch.equal(tensor, kept[1][name]) for name, tensor in kept[0].items())


@pytest.mark.parametrize("size", [pytest.param(3, marks=pytest.mark.long), 300_000])
def test_a_payload_of_ones_own_comes_back_as_itself(tmp_path, two_cpus, size):
    """Large ones go through Ray's object store as they are, small ones as bytes."""
    words = [
        "fedavg_digits",
        *write(tmp_path, sender=PAYLOAD),
        f"algorithm={{name: sends, size: {size}}}",
    ]
    small = ["rounds=1", "local_epochs=1", "data.samples=200", "data.clients=3"]
    done = [*words, *small, TWO, "data.partition=iid", "--no-track", "--out", str(tmp_path / "run")]
    assert main(done) == 0
    traffic = RunFolder(tmp_path / "run").rounds()[-1].up
    assert traffic.total_bytes == 3 * 4 * size


SWEEP = """
answers: "does a plug-in get into a trial"
space:
  algorithm.scale: {grid: [1, 3]}
scales:
  laptop:
    experiment: fedavg_digits
    set: {rounds: 1, local_epochs: 1, data.samples: 200, data.clients: 3, data.partition: iid,
          algorithm: scaled, workers: 1}
"""


@pytest.mark.long
def test_a_sweeps_trials_have_it(tmp_path, two_cpus, capsys):
    (tmp_path / "scales.yaml").write_text(SWEEP)
    plugin, out = write(tmp_path, mine=METHOD), tmp_path / "swept"
    command = [str(tmp_path / "scales.yaml"), *plugin, "--no-track", "--out", str(out)]
    assert sweep(command) == 0
    assert "--plugin" in capsys.readouterr().out  # the command of the best configuration
    assert (out / "plugins" / "mine.py").read_text() == METHOD
    found = [out / path for path in json.loads((out / "runs.json").read_text())["runs"]]
    assert len(found) == 2  # in the store, in the order of the sweep
    alone = run(tmp_path / "alone", "fedavg_digits", *plugin, "algorithm={name: scaled, scale: 3}")
    assert metrics(found[1]) == [dict(done.metrics) for done in alone.rounds]
