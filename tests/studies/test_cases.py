"""What users reported about sweeps and their figures. A test is named after what they met."""

from __future__ import annotations

import subprocess
import sys

import pytest
from sweeps import carry_out_all, sweep, write_sweep

from fedray.run import main as run_main
from fedray.studies import trials
from fedray.studies.space import draws, parse_space

MOODY = """
from fedray.plugin import FedAvg, method


@method("moody", "Moody", "-")
class Moody(FedAvg):
    "FedAvg whose loss is not finite on one seed."


    def loss(self, output, batch, local):
        value = super().loss(output, batch, local)
        return value * float("nan") if local.client.setting.streams.seed == 1 else value
"""


def test_one_seed_that_fails_stops_no_other(here, capsys):
    (here / "moody.py").write_text(MOODY)
    keys = ["rounds=1", "data.samples=120", "data.clients=2", "local_epochs=1", "model.group=mlp"]
    words = ["fedavg_digits", *keys, "--plugin", "moody.py", "algorithm=moody", "seed=0,1,2"]
    assert run_main([*words, "--executor", "serial", "--no-track", "--out", "m"]) == 1
    printed = capsys.readouterr()
    assert "over seeds 0, 2" in printed.out
    assert "1 of 3 seeds failed: 1" in printed.err


@pytest.mark.parametrize(("count", "found"), [(8, 8), (20, 8), (3, 3)])
def test_random_search_tries_as_many_as_it_says(count, found):
    axes = parse_space({"lr": {"choice": [1, 2, 3, 4]}, "rounds": {"randint": [1, 3]}})
    assert len(draws(axes, count)) == found


def test_the_figure_of_a_sweep_circles_what_was_chosen(here, monkeypatch):
    drawn = []
    monkeypatch.setattr(trials, "figure_curves", lambda plots, path, **more: drawn.extend(plots))
    write_sweep(
        metrics=["local_accuracy"], choose="train_loss", space={"lr": {"grid": [0.0001, 0.1]}}
    )
    study = sweep("rounds=1")
    carry_out_all(study)
    result = trials.SweepOutcome(study)
    assert result.configs[result.best] == {"lr": 0.1}
    trials.draw_sweep(result, here / "sweep.png")
    assert [series.ring for series in drawn[0].series] == [0.1]


def test_asha_says_that_a_resumed_sweep_begins_with_empty_rungs(here, capsys):
    from fedray.studies.tune import scheduler

    write_sweep(asha={"grace_rounds": 1})
    study = sweep()
    scheduler(study)
    assert not capsys.readouterr().out
    study.tell(study.ask(), "lost")
    scheduler(study)
    assert "may stop others" in capsys.readouterr().out


@pytest.mark.slow
def test_no_thread_registers_a_lock_while_ray_forks():
    program = "import sys, fedray.cli.start; print('concurrent.futures.thread' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "True\n"
