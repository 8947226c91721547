from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import report as main
from PIL import Image
from written_runs import ACCURACY, LOSS, Tree, groups_in, write_partition, write_run

from fedray.base.errors import UserError
from fedray.config import EXECUTION_KEYS, Experiment, override
from fedray.results.comparisons import Report
from fedray.results.frame import NOT_COMPARED, RunGroup, group_runs, load_runs, rank_groups
from fedray.results.numbers import COLUMNS
from fedray.results.pages import figures
from fedray.results.pages.cells import cell, difference_cell, in_megabytes, spread_cell
from fedray.results.pages.figures import figure_matrix
from fedray.results.pages.report import (
    difference_in_words,
    draw_rounds,
    draw_traffic,
    write_partitions,
)
from fedray.results.paired import Interval, t_interval
from fedray.storage.files import write_json
from fedray.storage.metric import Metric
from fedray.storage.run_folder import write_run_list


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were saved, to look into."""
    kept: list[Any] = []
    save = figures._save

    def keep(figure: Any, path: Path) -> None:
        kept.append(figure)
        save(figure, path)

    monkeypatch.setattr(figures, "_save", keep)
    return kept


# --- groups --------------------------------------------------------------------------------------


def test_keys_that_do_not_matter_are_those_that_identity_leaves_out(tmp_path: Path) -> None:
    others: Tree = {
        "name": "other",
        "workers": 7,
        "cpus": 3.0,
        "gpus": 2.0,
        "server_gpus": 0.5,
        "checkpoint_every": 5,
        "data.root": "/elsewhere",
        "data.download": True,
        "faults.start_timeout_s": 9.0,
        "faults.max_failures": 9,
        "keep.models": "none",
    }
    assert set(others) | {"seed"} == NOT_COMPARED
    assert set(EXECUTION_KEYS) < NOT_COMPARED
    base = Experiment(gpus=1.0)
    for index, (key, value) in enumerate(others.items()):
        changed = Experiment.model_validate(override(base.tree(), [(key, value)]))
        assert changed.tree() != base.tree(), key
        assert changed.identity() == base.identity(), key
        write_run(tmp_path / str(index), [0.1], {"gpus": 1.0, key: value, "seed": index})
    (member,) = groups_in(tmp_path).values()
    assert [run.seed for run in member.runs] == list(range(len(others)))


def test_labels_say_what_differs(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1], {"algorithm.name": "fedtsp", "algorithm.lambda": 7})
    write_run(tmp_path / "b", [0.1], {"algorithm.name": "fedtsp", "algorithm.lambda": 0.25})
    write_run(tmp_path / "c", [0.1], {"algorithm.name": "fedprox", "algorithm.mu": 1})
    assert set(groups_in(tmp_path)) == {
        "fedtsp lambda=7",
        "fedtsp lambda=0.25",
        "fedprox",
    }


def test_labels_name_the_data_where_it_differs(tmp_path: Path) -> None:
    method, data = "algorithm.alpha", "data.partition.alpha"
    both = {"algorithm.name": "fml", "data.partition.name": "dirichlet"}
    write_run(tmp_path / "a", [0.1], {**both, method: 0.5, data: 0.1})
    write_run(tmp_path / "b", [0.1], {**both, method: 0.7, data: 0.3})
    assert set(groups_in(tmp_path)) == {
        "fml alpha=0.5 @ digits alpha=0.1",
        "fml alpha=0.7 @ digits alpha=0.3",
    }


def test_numbers_over_seeds(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.0, 0.5, 0.4], {"seed": 0})
    write_run(tmp_path / "b", [0.2, 0.6, 0.8], {"seed": 1}, bytes_=3_000_000)
    member = groups_in(tmp_path)["fedtsp"]
    best, final = (
        Report([member], [ACCURACY], at).numbers.interval(member.side, ACCURACY.name)
        for at in ("best", "final")
    )
    assert (best.mean, best.std, best.n) == (pytest.approx(65), pytest.approx(30 / 2**0.5), 2)
    # t(0.975) with one degree of freedom is 12.7062; the deviation over sqrt 2 is 0.2
    assert (final.mean, final.half) == (pytest.approx(60), pytest.approx(12.7062 * 20, abs=1e-2))
    curve = member.curve(ACCURACY)
    assert list(curve) == [0, 1, 2]
    assert curve[1].mean == pytest.approx(55)
    assert member.per_round("up") == 2_000_000
    assert member.per_round("down") == 4_000_000
    assert member.traffic() == {0: 0, 1: 6_000_000, 2: 12_000_000}
    assert member.by_seed(Metric("unheard_of"), "best") == {}


def test_differences_are_paired_by_seed_and_p_is_students(tmp_path: Path) -> None:
    finals = {
        "fedtsp": {0: 0.50, 1: 0.60, 2: 0.70, 5: 0.1},
        "fedproto": {0: 0.48, 1: 0.54, 2: 0.69, 7: 0.9},
        "local": {0: 0.30},
    }
    for method, by_seed in finals.items():
        for seed, value in by_seed.items():
            changes = {"algorithm": method, "seed": seed}
            write_run(tmp_path / f"{method}{seed}", [0.0, value], changes)
    groups = [groups_in(tmp_path)[name] for name in ("fedproto", "fedtsp", "local")]
    found = Report(groups, [ACCURACY], "best")
    (_, fedtsp, p), (_, local, none) = found.differences
    # 2, 6 and 1 points: mean 3, variance 7, t = 3 / sqrt(7/3), and with 2 degrees of freedom
    # p = 1 - t / sqrt(2 + t^2)
    t = 3 / math.sqrt(7 / 3)
    assert (fedtsp.interval.mean, fedtsp.interval.n) == (pytest.approx(3), 3)
    assert fedtsp.interval.std == pytest.approx(7**0.5)
    # two comparisons were asked for, though local's cannot be answered
    assert p == pytest.approx(2 * (1 - t / math.sqrt(2 + t * t)))
    assert difference_in_words(fedtsp, p) == "within the spread"
    assert local.interval.mean == pytest.approx(-18)
    assert (none, difference_in_words(local, none)) == (None, "one seed: no spread")


def test_seeds_without_a_partner_are_said(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.2], {"seed": 0})
    write_run(tmp_path / "b", [0.1, 0.3], {"seed": 5, "algorithm": "fedproto"})
    found = Report(list(groups_in(tmp_path).values()), [ACCURACY], "best")
    ((_, comparison, p),) = found.differences
    assert (comparison.interval, difference_in_words(comparison, p)) == (None, "no seed in common")


def test_all_metrics_are_read_in_the_round_that_the_first_chooses(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.9, 0.2], {"seed": 3})
    (member,) = groups_in(tmp_path).values()
    for loss, done in zip((5.0, 3.0, 1.0), member.runs[0].run.rounds, strict=True):
        done.metrics["train_loss"] = loss  # type: ignore[index]
    frame = Report([member], [ACCURACY, LOSS], "best").numbers.frame
    assert frame[["metric", "seed", "value", "round"]].values.tolist() == [
        ["local_accuracy", 3, pytest.approx(90), 1],
        ["train_loss", 3, 3.0, 1],
    ]
    assert frame["status"].tolist() == ["finished"] * 2
    assert frame["bytes"].tolist() == [6_000_000] * 2


@pytest.mark.parametrize("root", ["my set", "my set=2", "a b=c d", "lambda=7"])
def test_a_table_of_data_sets_has_methods_without_the_keys_of_the_data(
    root: str, tmp_path: Path
) -> None:
    for number, (place, strength) in enumerate([(root, 7), (root, 1), ("other", 7), ("other", 1)]):
        keys = {"algorithm.name": "fedtsp", "algorithm.lambda": strength, "data.root": place}
        write_run(tmp_path / str(number), [0.1], keys, data=place)
    report = Report(list(groups_in(tmp_path).values()), [ACCURACY], "final")
    assert [member.row for member in report.groups] == ["fedtsp lambda=7", "fedtsp lambda=1"] * 2
    assert report.numbers.columns == [f"digits {root}", "digits other"]
    assert len(report.numbers.frame.drop_duplicates(["row", "column"])) == 4


def test_curves_hold_rounds_that_every_seed_measured(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.0, 0.5, 0.4], {"seed": 0}, rounds=2)
    write_run(tmp_path / "b", [0.2, 0.6], {"seed": 1}, rounds=2)
    assert list(groups_in(tmp_path)["fedtsp"].curve(ACCURACY)) == [0, 1]


def test_the_best_loss_is_the_lowest(tmp_path: Path) -> None:
    for name, loss in (("avg", 2.0), ("bn", 1.0)):
        changes = {"algorithm.name": f"fed{name}"}
        write_run(tmp_path / name, [0.1, 0.2], changes, metrics={"train_loss": loss})
    groups = list(groups_in(tmp_path).values())
    names = [member.method for member in rank_groups(groups, LOSS, "best")]
    assert names == ["fedbn", "fedavg"]


def test_of_two_runs_of_one_seed_the_longer_one_counts(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.2], rounds=2)
    write_run(tmp_path / "b", [0.1, 0.2, 0.3], rounds=2)
    groups, notes = group_runs(load_runs([tmp_path]))
    assert [run.folder.name for run in groups[0].runs] == ["b"]
    assert notes == [f"seed 0 of fedtsp has two runs; {tmp_path / 'a'} is left out"]


# --- what is unfair ------------------------------------------------------------------------------


def seeds_of(groups: dict[str, RunGroup]) -> dict[str, list[int]]:
    return {label: [run.seed for run in member.runs] for label, member in groups.items()}


def warnings_of(folder: Path) -> list[str]:
    groups, notes = group_runs(load_runs([folder]))
    return Report(groups, [ACCURACY], "best", notes).caveats


def test_runs_on_other_images_are_never_one_row(tmp_path: Path) -> None:
    for data, seed in (("a" * 64, 0), ("a" * 64, 1), ("b" * 64, 0), ("b" * 64, 2)):
        changes = {"seed": seed, "data.root": "/data/set"}
        write_run(tmp_path / f"{data[0]}{seed}", [0.1, 0.2], changes, data=data)
    found = groups_in(tmp_path)
    assert seeds_of(found) == {
        "fedtsp @ digits set data=aaaaaaaaaaaa": [0, 1],
        "fedtsp @ digits set data=bbbbbbbbbbbb": [0, 2],
    }
    groups = list(found.values())
    assert Report(groups, [ACCURACY], "best").differences == [], "a column for each data set"


def test_runs_with_other_texts_in_the_same_file_are_never_one_row(tmp_path: Path) -> None:
    key = "text.descriptions"
    for content, seed in (("a" * 64, 0), ("a" * 64, 1), ("b" * 64, 0), ("b" * 64, 2)):
        changes = {"seed": seed, key: "/texts.json"}
        write_run(tmp_path / f"{content[0]}{seed}", [0.1, 0.2], changes, files={key: content})
    changes = {"algorithm": "fedavg", key: "/texts.json"}
    write_run(tmp_path / "without texts", [0.1, 0.2], changes)
    found = groups_in(tmp_path)
    assert seeds_of(found) == {
        "fedavg": [0],
        "fedtsp descriptions=aaaaaaaaaaaa": [0, 1],
        "fedtsp descriptions=bbbbbbbbbbbb": [0, 2],
    }
    assert warnings_of(tmp_path) == [
        f"{key} differs: fedtsp descriptions=aaaaaaaaaaaa and fedtsp descriptions=bbbbbbbbbbbb"
    ]


def test_seeds_of_other_environments_are_a_warning(tmp_path: Path) -> None:
    for seed, torch in enumerate(("2.6", "2.7")):
        changes, versions = {"seed": seed}, {"git": "abc", "torch": torch, "ray": f"2.{seed}"}
        write_run(tmp_path / f"{seed}", [0.1, 0.2], changes, versions=versions)
    assert warnings_of(tmp_path) == [
        "fedtsp: seeds 0 and 1 were made in different environments: torch 2.6, now 2.7",
    ]


def test_what_is_best_is_as_the_metric_declares_not_as_it_is_called(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", [0.1, 0.3, 0.2])
    (loaded,) = load_runs([folder])
    declared = [Metric("local_accuracy", direction="min")]
    run = replace(loaded.run, info=replace(loaded.run.info, metrics=declared))
    assert run.value("local_accuracy", "best", "local_accuracy") == 0.2


def test_unfinished_runs_are_a_warning(tmp_path: Path) -> None:
    write_run(tmp_path / "a", [0.1, 0.2], rounds=9)
    assert warnings_of(tmp_path) == ["not finished: fedtsp seed 0 has 1 of 9 rounds"]


# --- the table -----------------------------------------------------------------------------------


def test_cells() -> None:
    assert cell(Interval.of(94.314, 0.526, 3), ACCURACY) == "94.3 ± 1.3"
    assert cell(Interval.of(94.314, 0.0526, 3), ACCURACY) == "94.31 ± 0.13"
    assert cell(Interval.of(94.314, 0.0, 1), ACCURACY) == "94.31"
    assert cell(Interval.of(94.314, 0.0, 1), ACCURACY, "+") == "+94.31"
    assert cell(Interval.of(1.23456, 0.0321, 2), LOSS) == "1.235 ± 0.29"
    assert cell(None, ACCURACY) == "–"
    assert difference_cell(Interval.of(-1.25, 0.526, 3), ACCURACY) == "-1.2 [-2.6, 0.1]"
    assert difference_cell(Interval.of(1.25, 0.0, 1), ACCURACY) == "+1.25"
    assert spread_cell(t_interval([70.25, 71.5]), ACCURACY) == "70.9 (70.2–71.5)"
    assert [in_megabytes(b) for b in (0, 65_960, 1_234_000, 123_456_789)] == [
        "0",
        "0.066",
        "1.23",
        "123",
    ]


def test_the_command_writes_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method, last in (("fedtsp", 0.8), ("fedproto", 0.7)):
        for seed in (0, 1):
            changes = {"algorithm.name": method, "seed": seed, "algorithm.lambda": last}
            write_run(
                tmp_path / "runs" / f"{method}{seed}",
                [0.1, 0.9 * last + 0.1 * seed, last],
                changes,
            )
    first = tmp_path / "runs" / "fedtsp0"
    matrices = {"text_similarity": [[1, 0.5], [0.5, 1]]}
    write_json(first / "matrices.json", {2: matrices})
    partition = {"class_names": ["cat", "dog"], "histogram": [[3, 0], [1, 4]]}
    write_partition(first, partition)

    assert main([str(tmp_path / "runs")]) == 0
    printed = capsys.readouterr().out
    out = tmp_path / "runs" / "report"
    assert printed.index("fedtsp ") < printed.index("fedproto ")
    assert {path.name for path in out.iterdir()} == {
        "table.md",
        "table.csv",
        "by_round.png",
        "by_traffic.png",
        "heatmap_01_fedtsp_text_similarity.png",
        "partition_1.png",
    }
    assert all(str(path) in printed for path in out.iterdir())
    table = (out / "table.md").read_text()
    assert "| fedtsp | 2 | 81.0 ± 12.7 | 80.00 ± 0.00 | 1 | 2 |" in table
    assert "| fedproto | 2 | -9.5 ± 6.4 | 0.033 | beyond the spread |" in table
    with (out / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["row"], row["seed"]) for row in rows] == [
        (method, seed) for method in ("fedtsp", "fedproto") for seed in "01"
    ]
    assert [float(row["value"]) for row in rows] == pytest.approx([80, 82, 70, 73])
    for path in out.glob("*.png"):
        assert path.read_bytes().startswith(b"\x89PNG")

    assert main([str(tmp_path / "runs"), "--out", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "table.md").exists()


def test_a_seed_that_was_killed_before_its_first_round_leaves_figures(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "whole", [0.1, 0.5, 0.7], {"seed": 0})
    write_run(tmp_path / "runs" / "killed", [], {"seed": 1}, rounds=2)
    assert main([str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "by_traffic.png").stat().st_size > 0


def test_a_folder_stands_for_the_runs_that_it_lists(tmp_path, capsys):
    runs = tmp_path / "tables" / "store"
    for name, accuracy in (("a", 0.5), ("b", 0.7), ("tuning", 0.9)):
        write_run(runs / name, [0.1, accuracy], {"lr": accuracy})
    folder = tmp_path / "tables" / "mine" / "1"
    folder.mkdir(parents=True)
    write_run_list(folder, [runs / "a", runs / "b", runs / "a"])
    assert main([str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "50.0" in printed
    assert "70.0" in printed
    assert "90.0" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{tmp}/none"], r"none is not a folder"),
        (["{tmp}/empty"], r"there is no run.json in or below"),
        (["{tmp}/table"], r"there is no run.json in or below .*/store/k"),
        (["{tmp}/runs", "--metric", "local_acuracy"], r"Did you mean 'local_accuracy'"),
        (["{tmp}/runs", "--metric", "per_client"], r"no run has measured 'per_client'"),
        (["{tmp}/broken"], r"run.json cannot be read"),
        (
            ["{tmp}/runs", "--out", "{tmp}/runs/a/run.json/in"],
            "Not a directory",
        ),
        (["{tmp}/runs"], r"matrices.json cannot be read"),
    ],
)
def test_what_the_user_can_mend_is_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "table").mkdir()
    write_run_list(tmp_path / "table", [tmp_path / "store" / "k"])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    (write_run(tmp_path / "runs" / "a", [0.1]) / "matrices.json").write_text("[")
    assert main([argument.format(tmp=tmp_path) for argument in arguments]) == 2
    printed = capsys.readouterr().err
    assert len(printed.splitlines()) == 1
    with pytest.raises(UserError, match=message):
        raise UserError(printed)


# --- figures -------------------------------------------------------------------------------------


def test_curves_have_a_band_over_seeds(tmp_path: Path, drawn: list[Any]) -> None:
    for seed, last in ((0, 0.5), (1, 0.7)):
        write_run(tmp_path / str(seed), [0.0, last], {"seed": seed})
    write_run(tmp_path / "b", [0.0, 0.4], {"algorithm.name": "fedproto"})
    members = rank_groups(list(groups_in(tmp_path).values()), ACCURACY, "best")
    draw_rounds(Report(members, [ACCURACY], "best"), tmp_path / "a.png")
    (axes,) = drawn[0].axes
    assert [line.get_label() for line in axes.lines] == ["fedtsp", "fedproto"]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([0.0, 60.0])
    (band,) = axes.collections
    ends = band.get_paths()[0].vertices[:, 1]
    assert (ends.min(), ends.max()) == pytest.approx((0.0, 100.0))  # no share is above 1
    assert axes.get_ylabel() == "local accuracy (%)"


def test_traffic_adds_up_and_a_silent_method_is_a_level_line(
    tmp_path: Path, drawn: list[Any]
) -> None:
    write_run(tmp_path / "a", [0.0, 0.4, 0.5])
    write_run(tmp_path / "b", [0.0, 0.3, 0.3], {"algorithm.name": "local"}, bytes_=0)
    members = rank_groups(list(groups_in(tmp_path).values()), ACCURACY, "best")
    draw_traffic(Report(members, [ACCURACY], "best"), tmp_path / "a.png")
    (axes,) = drawn[0].axes
    curve, level = axes.lines
    assert list(curve.get_xdata()) == [0, 3, 6]
    assert list(curve.get_ydata()) == pytest.approx([0, 40, 50])
    assert level.get_label() == "local (sends nothing)"
    assert list(level.get_ydata()) == pytest.approx([30, 30])
    assert axes.get_xscale() == "linear"

    write_run(tmp_path / "c", [0.0, 0.4, 0.5], {"algorithm.name": "fedavg"}, bytes_=10**8)
    draw_traffic(Report(list(groups_in(tmp_path).values()), [ACCURACY], "best"), tmp_path / "a.png")
    assert drawn[1].axes[0].get_xscale() == "symlog"


def test_only_the_best_curves_are_drawn_and_it_says_so(tmp_path: Path, drawn: list[Any]) -> None:
    for index in range(15):
        write_run(tmp_path / str(index), [0.0, index / 20], {"algorithm.lambda": index})
    members = rank_groups(list(groups_in(tmp_path).values()), ACCURACY, "best")
    draw_rounds(Report(members, [ACCURACY], "best"), tmp_path / "a.png")
    (axes,) = drawn[0].axes
    labels = [line.get_label() for line in axes.lines]
    assert labels == [f"fedtsp lambda={index}" for index in range(14, 2, -1)]
    assert drawn[0].get_suptitle() == "the best 12; 3 more are in the table"


def test_a_heat_map_takes_its_colours_from_off_diagonal_values(
    drawn: list[Any], tmp_path: Path
) -> None:
    matrix = [[1.0, 0.2, 0.3], [0.2, 1.0, 0.4], [0.3, 0.4, 1.0]]
    figure_matrix(matrix, ["cat", "dog", "cow"], "similarity", tmp_path / "a.png")
    axes = drawn[0].axes[0]
    (image,) = axes.images
    assert image.get_clim() == (0.2, 0.4)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog", "cow"]
    assert [text.get_text() for text in axes.texts][:3] == ["1.00", "0.20", "0.30"]
    figure_matrix(
        np.zeros((70, 70)).tolist(), [str(i) for i in range(70)], "big", tmp_path / "b.png"
    )
    assert len(drawn[1].axes[0].texts) == 0
    assert "69" not in [label.get_text() for label in drawn[1].axes[0].get_yticklabels()]


def test_every_phase_of_a_partition_is_drawn_and_newcomers_are_named(tmp_path: Path) -> None:
    histogram = [[3, 0], [1, 4]]
    tree = {"class_names": ["cat", "dog"], "histogram": histogram}
    later = {"later": [{"round": 2, "histogram": histogram[::-1]}]}
    join = {"data.clients": 2, "join.clients": 1, "join.round": 2}
    runs = [
        write_run(tmp_path / "plain", [0.1, 0.2, 0.3]),
        write_run(tmp_path / "evolving", [0.1, 0.2, 0.3], join, partition="evolving"),
        write_run(tmp_path / "twice", [0.1, 0.2, 0.3], {"seed": 3}, partition="evolving"),
    ]
    for folder, partition in zip(runs, (tree, tree | later, tree), strict=True):
        write_partition(folder, partition)
    drawn = write_partitions(list(groups_in(tmp_path).values()), tmp_path)
    assert len(drawn) == 2  # the same partition once
    with Image.open(drawn[0]) as one, Image.open(drawn[1]) as both:
        assert max(one.height, both.height) > 1.8 * min(one.height, both.height)
