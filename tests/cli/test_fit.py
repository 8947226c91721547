"""`fedray fit`: which settings are tried, how rounds are timed, and what is printed."""

from __future__ import annotations

import re

import pytest

from fedray.cli import fit
from fedray.cli.fit import Measurement, candidates
from fedray.cli.main import main
from fedray.errors import UserError
from fedray.runtime.resolve import resolve


@pytest.fixture
def emulated(monkeypatch):
    monkeypatch.setattr("fedray.runtime.devices.emulates_bfloat16", lambda device: True)


@pytest.fixture
def supported(monkeypatch):
    monkeypatch.setattr("fedray.runtime.devices.emulates_bfloat16", lambda device: False)


def test_workers_are_as_many_as_cpus_and_clients_allow(emulated):
    experiment = resolve("fedavg_digits", ["data.clients=3"])
    for cpus, workers in ((1, [None, 1]), (2, [None, 1, 2]), (64, [None, 1, 2])):
        plain = [each for each in candidates(experiment, cpus) if "stacked" not in each]
        assert [each.get("workers") for each in plain] == workers


def test_only_what_the_method_and_the_processor_support_is_tried(supported):
    words = ["participation=1.0", "data.clients=4"]
    tried = [*candidates(resolve("fedavg_digits", words), 1)]
    assert {"stacked": 20} in tried
    assert {"precision": "bfloat16"} in tried
    assert not [each for each in tried if {"stacked", "precision"} <= each.keys()]
    alone = [*candidates(resolve("fedavg_digits", [*words, "algorithm=fedgen"]), 1)]
    assert not [each for each in alone if "stacked" in each]
    half = [*candidates(resolve("fedavg_digits", [*words, "precision=bfloat16"]), 1)]
    assert not [each for each in half if "precision" in each]


@pytest.mark.parametrize(
    ("name", "key"),
    [("promptfl_clip", "model.clip_precision"), ("fedtsp_digits", "text.precision")],
)
def test_a_frozen_tower_is_tried_in_bfloat16(supported, name, key):
    assert {key: "bfloat16"} in [*candidates(resolve(name, []), 1)]


@pytest.mark.parametrize(
    ("took", "timed"),
    [
        ([9, 5, 1, 2, 3, 4, 4], [1, 2, 3]),
        ([9, 5, 2], [2]),
        ([9, 5], [5]),
        ([30, 30, 30, 30], [30]),
    ],
)
def test_rounds_after_the_first_are_timed(monkeypatch, took, timed):
    now = [0.0]
    monkeypatch.setattr(fit.time, "monotonic", lambda: now[0])

    def rounds():
        for seconds in took:
            now[0] += seconds
            yield None

    assert fit._time_rounds(rounds()) == timed


def test_the_fastest_settings_come_first(monkeypatch, capsys):
    found = [
        Measurement({}, 0.5, 10**9),
        Measurement({"workers": 2}, failure="no room"),
        Measurement({"workers": 1, "stacked": 20}, 0.25, 2 * 10**9, 3 * 10**9),
        Measurement({"workers": 1}, 0.75, 10**9),
    ]
    monkeypatch.setattr(fit, "measure_all", lambda _: iter(found))
    assert main(["fit", "fedavg_digits", "lr=0.1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "2 workers: no room" in lines
    assert "fastest here: fedray run fedavg_digits lr=0.1 workers=1 stacked=20" in lines
    rows = [line for line in lines if " GB" in line]
    assert rows[0].split()[:3] == ["1", "worker,", "stacked=20"]


def test_workers_auto_is_what_was_fastest_for_rounds_of_the_same_cost(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDRAY_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=r"run `fedray fit` with the same experiment and keys"):
        resolve("fedavg_digits", ["workers=auto"])
    found = [Measurement({"workers": n}, seconds) for n, seconds in ((1, 0.5), (8, 0.2), (2, 0.3))]
    monkeypatch.setattr(fit, "measure_all", lambda _: iter(found))
    assert main(["fit", "fedavg_digits", "workers=auto"]) == 0
    for others in ([], ["seed=7", "lr=0.3", "rounds=2", "eval_every=0"]):
        assert resolve("fedavg_digits", ["workers=auto", *others]).workers == 8
    for costlier in ("local_epochs=9", "model.group=cnn3", "algorithm=fedprox", "stacked=2"):
        with pytest.raises(UserError, match="no rounds like these were measured"):
            resolve("fedavg_digits", ["workers=auto", costlier])


def test_settings_that_are_impossible_say_why():
    def refuse(settings):
        raise UserError("no room")

    assert fit.measure_settings({"workers": 8}, refuse).failure == "no room"


@pytest.mark.ray
def test_an_experiment_is_measured(capsys):
    words = ["fedavg_digits", "data.samples=60", "data.clients=2", "model.group=mlp"]
    assert main(["fit", *words, "precision=bfloat16"]) == 0
    out = capsys.readouterr().out
    assert "fastest here: fedray run fedavg_digits data.samples=60 " in out
    for setting in ("one process", "1 worker"):
        [seconds] = re.findall(rf"^{setting}: (\S+) s a round$", out, re.MULTILINE)
        assert 0 < float(seconds) < 60
    assert re.search(r"1 worker .* [\d.]+ [MG]B", out)
