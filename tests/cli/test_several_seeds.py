"""`seed=0,1,2`: a run of each seed, an ordinary one, and what they come to together."""

from __future__ import annotations

from pathlib import Path

import pytest
from rounds import rounds_in

from fedray.api import training
from fedray.base.errors import UserError
from fedray.cli.run import several_seeds
from fedray.results.pages.cells import spread_cell
from fedray.results.paired import t_interval
from fedray.run import main
from fedray.storage.metric import Metric
from fedray.storage.run_folder import RunFolder

WORDS = ["fedavg_digits", "rounds=2", "data.samples=240", "data.clients=4", "local_epochs=1"]
SERIAL = ["--executor", "serial", "--no-track"]


@pytest.mark.parametrize(
    ("assignments", "found"),
    [
        (["rounds=3"], ([], ["rounds=3"])),
        (["seed=3"], ([], ["seed=3"])),
        (["seed=0,1", "rounds=3"], ([0, 1], ["rounds=3"])),
        (["seed=[4, 2]"], ([4, 2], [])),
    ],
)
def test_which_seeds_are_meant(assignments, found):
    assert several_seeds(assignments) == found


@pytest.mark.parametrize("assignments", [["seed=0,0"], ["seed=0,1", "seed=2"]])
def test_seeds_that_contradict_each_other(assignments):
    with pytest.raises(UserError, match="seed="):
        several_seeds(assignments)


def rounds(folder: Path) -> list[dict]:
    return rounds_in(folder)


def without_times(found: list[dict]) -> list[dict]:
    return [{key: value for key, value in each.items() if "seconds" not in key} for each in found]


def test_each_seed_is_an_ordinary_run_and_a_stopped_one_goes_on(tmp_path, capsys, monkeypatch):
    home, alone = tmp_path / "home", tmp_path / "alone"
    real = training.begin

    def stop_in_seed_1(experiment, *args):
        for done in real(experiment, *args):
            yield done
            if experiment.seed == 1 and done.round == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(training, "begin", stop_in_seed_1)
    assert main([*WORDS, "seed=0,1", *SERIAL, "--out", str(home)]) == 130
    goes_on = [*WORDS, "seed=0,1", "--out", str(home), *SERIAL]
    said = capsys.readouterr().err
    assert said == f"interrupted; go on with: python -m fedray.run {' '.join(goes_on)}\n"

    monkeypatch.setattr(training, "begin", real)
    assert main(goes_on) == 0
    last = [RunFolder(home / f"seed_{seed}").read().final.local_accuracy for seed in (0, 1)]
    said = capsys.readouterr().out
    assert "over seeds 0, 1, mean and range of 2 seeds: " in said
    over_seeds = t_interval([100 * value for value in last])
    assert f"last {spread_cell(over_seeds, Metric('local_accuracy'))}" in said
    assert main([*WORDS, "seed=1", *SERIAL, "--out", str(alone)]) == 0
    assert without_times(rounds(home / "seed_1")) == without_times(rounds(alone))


def test_several_seeds_need_a_name(capsys):
    assert main(["seed=0,1", *SERIAL]) == 2
    assert "name an experiment" in capsys.readouterr().err
