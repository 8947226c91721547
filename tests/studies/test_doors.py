"""What a user can mend in a study's file or command: exit code 2, one line that names it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pretended_runs import publish
from sweeps import laptop, write_sweep

from fedray.cli.main import main
from fedray.storage.files import sealed

SWEEPS: list[tuple[dict[str, Any], str]] = [
    ({"serach": "grid"}, "'serach' in sweep tiny"),
    ({"search": "gird"}, "tiny.tuning.search"),
    ({"space": {}}, "tiny.space is missing"),
    ({"space": {"lr": {"gird": [1]}}}, "space.lr"),
    ({"space": {"lr": {"grid": []}}}, "space.lr"),
    ({"space": {"lr": {"grid": [1, 1.0]}}}, "space.lr"),
    ({"space": {"lr": {"uniform": [0, 1]}}}, "space.lr"),
    ({"search": "optuna", "space": {"lr": {"uniform": [1, 0]}}}, "space.lr"),
    ({"search": "optuna", "space": {"lr": {"loguniform": [0, 1]}}}, "space.lr"),
    ({"search": "optuna", "space": {"lr": {"randint": [0, 1.5]}}}, "space.lr"),
    ({"search": "optuna", "space": {"participation": {"uniform": [0.5, 2.0]}}}, "participation"),
    ({"search": "optuna", "space": {"participation": {"uniform": [-1.0, 0.5]}}}, "participation"),
    ({"search": "optuna", "space": {"workers": {"choice": [1, 2]}}}, "space.workers"),
    ({"space": {"lr, seed": {"grid": [[0.1, 0]]}}}, "seed cannot be searched"),
    ({"space": {"lr, rounds": {"grid": [[1, 2, 3]]}}}, "space.lr, rounds"),
    ({"space": {"lr, rounds": {"uniform": [0, 1]}}}, "space.lr, rounds"),
    ({"space": {"lr": {"grid": [1]}, "lr, rounds": {"grid": [[1, 1]]}}}, "names lr twice"),
    ({"space": {"algorithm.lambda": {"grid": [1, -1]}}}, "lambda=-1: algorithm.lambda"),
    ({"asha": {"grace_rounds": 1}, "scales": laptop(set={"eval_every": 2})}, "asha.grace_rounds"),
    ({"asha": {}, "seeds": [0, 1]}, "tuning.asha"),
    ({"asha": {}, "search": "optuna", "configurations": 2}, "tuning.asha"),
    ({"tuning": {"rounds": 3}}, "tuning.rounds"),
    ({"seeds": [0, 0]}, "report.seeds"),
    ({"rows": {"mine": "fedavg"}}, "rows is for tables"),
    ({"scales": {"desk": {"experiment": "tiny.yaml"}}}, "tiny.scales"),
    ({"scales": {"laptop": {}}}, "tiny.experiment is missing"),
    ({"scales": laptop(experiment="tiny_digits")}, "'tiny_digits'"),
    ({"scales": laptop(set={"report": {"select": "test"}})}, "report belongs to the study"),
    ({"scales": laptop(set={"runds": 3})}, "'runds'"),
    ({"space": {"report.select": {"grid": ["test"]}}}, "report.select cannot be searched"),
    ({"metrics": ["local_accuracy", "global_acuracy"]}, "global_acuracy"),
    ({"metrics": ["accuracy_novel"]}, "accuracy_novel exists on test images only"),
    ({"validation_fraction": None}, "data.validation_fraction"),
]
WEAK = {"algorithm": "fedavg", "control": "a weak reason"}
BOTH = ["local_accuracy", "global_accuracy"]
TABLES: list[tuple[dict[str, Any], str]] = [
    ({"rows": {}}, "table tiny: rows is empty"),
    ({"rows": {"mine": 3}}, "rows.mine"),
    ({"rows": {"mine": {"lr": 1}}}, "'lr' in table tiny.rows.mine"),
    ({"rows": {"mine": {"set": {"seed": 1}}}}, "rows.mine.set: seed"),
    ({"rows": {"mine": {"experiment": "x"}}}, "'experiment' in table tiny.rows.mine"),
    ({"rows": {"mine": {"tuned_as": "you"}}}, "rows.mine.tuned_as"),
    ({"rows": {"mine": {"tuned_as": "local", "space": {"lr": None}}}}, "rows.mine.tuned_as"),
    ({"rows": {"mine": {"metrics": {"x": "y"}}}}, "rows.mine.metrics"),
    ({"rows": {"mine": {"algorithm": "fedproto", "set": {"lr": 0.5}}}}, "lr is tuned for row mine"),
    ({"rows": {"mine @ home": "fedproto"}}, "rows.mine @ home"),
    ({"rows": {"mine": {**WEAK, "of": "nobody"}}}, "rows.mine.of"),
    ({"rows": {"mine": WEAK}}, "rows.mine: a control"),
    ({"colums": {}}, "'colums' in table tiny"),
    ({"columns": {"a": 0.1}}, "columns.a"),
    ({"columns": {"a": {"data alpha": 1}}}, "columns.a"),
    ({"columns": {"a": {"lr": 0.1}}}, "set by column a"),
    ({"columns": {"mean": {}}}, "column names mean and each"),
    ({"report": {"select": "tests"}}, "report.select"),
    ({"report": {"seeds": [1, 1]}}, "report.seeds"),
    ({"scales": {"huge": {}}}, "scales"),
    ({"scales": {"laptop": {"rows": {"yours": {}}}}}, "row 'yours'"),
    ({"tuning": {"once": [0]}}, "'once' in table tiny.tuning"),
    ({"tuning": {"configurations": 1}}, "tuning.configurations=1"),
    ({"tuning": {"configurations": None}}, "tuning.configurations"),
    ({"tuning": {"at": "b"}}, "tuning.at"),
    ({"space": {"lr": {"uniform": [0, 1]}}}, "space.lr"),
    ({"space": [1]}, "table tiny: space"),
    ({"claims": ["mine > local"]}, "tiny.claims.0"),
    ({"claims": [{"better": "mine", "worse": "yours"}]}, "row 'yours'"),
    ({"claims": [{"better": "mine", "worse": "local @ b"}]}, "column 'b'"),
    ({"claims": [{"better": "mine", "worse": "mine"}]}, "mine > mine"),
    ({"claims": [{"better": "mine", "worse": "local", "on": "b"}]}, "column 'b'"),
    ({"claims": [{"better": "mine", "worse": "local", "metric": "x"}]}, "metric 'x'"),
    ({"claims": [{"better": "mine", "worse": "local", "by": "us"}]}, "'by' in table tiny.claims"),
    ({"paper": {"numbers": {"mine": 1}}}, "paper.source is missing"),
    ({"paper": {"source": "?", "numbers": {"mine": [1, 2, 3]}}}, "paper.numbers.mine"),
    (
        {"paper": {"source": "?", "item": "fedtsp, Table 5", "rows": {"mine": "Nobody"}}},
        "paper.rows.mine",
    ),
    (
        {"rows": {"mine": {"metrics": {"global_accuracy": None}}}, "metrics": BOTH,
         "claims": [{"better": "mine", "worse": "local", "metric": "global_accuracy"}]},
        "claims: mine > local",
    ),
    (
        {"rows": {"mine": None, "fedproto": {"control": "no words", "of": "mine"}},
         "metrics": ["train_loss", "local_accuracy"], "choose": "local_accuracy"},
        "controls need a first metric",
    ),
    ({"metrics": ["local_acuracy"]}, "local_acuracy"),
    ({"metrics": ["local_accuracy", "global_acuracy"]}, "global_acuracy"),
    ({"metrics": BOTH}, "has no global_accuracy"),
    ({"metrics": BOTH, "rows": {"mine": "fedbn"}, "baselines": []}, "fedbn has no global_accuracy"),
    (
        {"rows": {"mine": {"algorithm": "local", "metrics": {"local_accuracy": "union_accuracy"}}}},
        "local has no validation/union_accuracy",
    ),
    ({"extends": "tinny"}, "extends: there is no table 'tinny'"),
    ({"extends": "tiny"}, "extends itself"),
]  # fmt: skip
COMMANDS: list[tuple[list[str], str]] = [
    (["sweep"], "NAME"),
    (["sweep", "tinny"], "'tinny'"),
    (["sweep", "tiny", "rounds"], "'rounds'"),
    (["sweep", "tiny", "seed=0,a"], "seeds"),
    (["sweep", "tiny", "seed=-1"], "seeds"),
    (["sweep", "tiny", "algorithm.lambda=3"], "algorithm.lambda is tuned"),
    (["sweep", "tiny", "algorithm={name: fedproto, lambda: 3}"], "algorithm.lambda is tuned"),
    (["sweep", "tiny", "algorithm=local"], "'lambda' in algorithm"),
    (["sweep", "tiny", "data.source=parquet", "data.root=/nowhere"], "data.root=/nowhere"),
    (["sweep", "tiny", "--scale", "paper"], "no paper scale"),
    (["table"], "NAME"),
    (["table", "digit"], "'digit'"),
    (["table", "tiny", "tuning.sedes=[1]"], "'sedes' in table tiny.tuning"),
    (["table", "tiny", "report.seeds=3"], "report.seeds"),
    (["table", "tiny", "lr=0.3"], "lr is tuned for row mine"),
    (["table", "tiny", "batch_size=-1"], "mine: lr=0.02: batch_size"),
    (["table", "tiny", "data.validation_fraction=null"], "data.validation_fraction"),
    (["table", "tiny", "--scale", "printed"], "no printed scale"),
    (["table", "tiny", "--rows", "bse"], "row 'bse'"),
    (["table", "tiny", "--from", "nowhere"], "nowhere/table.json does not exist"),
    (["table", "skewed", "data.partition.alpha=1"], "column Dir(0.1) sets data.partition.alpha"),
    (["table", "skewed", "data.partition=iid"], "column Dir(0.1) sets data.partition.alpha"),
    (["table", "longer", "rounds=2"], "column rounds=1 sets rounds"),
    (["table", "weak", "--rows", "mine,weak"], "rows.weak.over"),
]
ON_TEST = {"report.select": "test"}
PLACES: list[dict[str, Any]] = [
    {"set": ON_TEST},
    {"set": {"report": {"select": "test"}}},
    {"scales": {"laptop": {"set": ON_TEST}}},
    {"rows": {"mine": {"algorithm": "fedproto", "set": ON_TEST}}},
    {"scales": {"laptop": {"rows": {"mine": {"set": ON_TEST}}}}},
    {"columns": {"a": ON_TEST, "b": {}}},
    {"scales": {"laptop": {"columns": {"a": ON_TEST}}}},
    {"space": {"report.select": {"grid": ["test"]}}},
    {"space": {"lr, report.select": {"grid": [[0.1, "test"]]}}},
    {"rows": {"mine": {"space": {"report.select": {"grid": ["test"]}}}}},
]


@pytest.fixture
def refused(here, capsys) -> Callable[..., None]:
    """`refused(words, says)` checks that a command is refused in one line, and writes nothing."""

    def refused(words: list[str], says: str) -> None:
        assert main(words) == 2
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1 or "Usage" in error
        assert not (here / "results").exists()

    return refused


@pytest.mark.parametrize(("changes", "says"), SWEEPS)
def test_a_sweeps_file(refused, changes, says):
    write_sweep(**changes)
    refused(["sweep", "tiny", "--plan"], says)


@pytest.mark.parametrize(("changes", "says"), TABLES)
def test_a_tables_file(refused, write, changes, says):
    write(**changes)
    refused(["table", "tiny", "--plan"], says)


@pytest.mark.parametrize(("words", "says"), COMMANDS)
def test_a_command(refused, here, write, words, says):
    write_sweep()
    files = {"skewed": {"columns": {"Dir(0.1)": {"data.partition.alpha": 0.1}, "Dir(1)": {}}},
             "longer": {"curve": {"rounds": [1, 3]}},
             "weak": {"rows": {"mine": "fedproto", "weak": {**WEAK, "over": "local"}}}}  # fmt: skip
    if len(words) > 1 and words[1] in files:
        write(**files[words[1]]).rename(here / "tune" / "tables" / f"{words[1]}.yaml")
    write()
    refused(words, says)


@pytest.mark.parametrize("place", PLACES)
def test_a_file_chooses_on_the_test_by_its_switch_alone(refused, write, place):
    write(**place)
    refused(["table", "tiny", "--plan"], "report")


# --- a published table ----------------------------------------------------------------------------


def _with_value(tree: dict) -> dict:
    values = next(iter(tree["runs"].values()))["values"]
    return values.update(dict.fromkeys(values, 0.95)) or tree


def _with_choice(tree: dict) -> dict:
    next(iter(tree["runs"].values()))["choice"] = "high"
    return tree


def _resealed(tree: dict) -> str:
    return json.dumps(sealed({key: value for key, value in tree.items() if key != "checksum"}))


DAMAGES: list[tuple[Callable[[dict], str], str]] = [
    (lambda tree: "{", "cannot be read"),
    (lambda tree: "[]", "checksum"),
    (lambda tree: "[" * 10**6, "nested too deeply"),
    (lambda tree: json.dumps({k: v for k, v in tree.items() if k != "checksum"}), "checksum"),
    (lambda tree: json.dumps(_with_value(tree)), "checksum"),
    (lambda tree: _resealed({**tree, "format": 1}), "format 1"),
    (lambda tree: _resealed({k: v for k, v in tree.items() if k != "runs"}), "runs is missing"),
    (lambda tree: _resealed({**tree, "made": {}}), "made.command is missing"),
    (lambda tree: _resealed(_with_choice(tree)), "choice"),
]


def test_a_published_table(refused, play, here):
    publish(play(lambda wanted: [(0.0, 0.0), (0.5, 0.5)]))
    path = Path(here / "out" / "table.json")
    whole = path.read_text()
    for damage, says in DAMAGES:
        path.write_text(damage(json.loads(whole)))
        refused(["table", "tiny", "--from", "out", "--plan"], says)
        refused(["table", "tiny", "--from", "out", "--plan"], "out/table.json")
