"""Earlier looks at a table's verdicts, and registered plans."""

from __future__ import annotations

import shutil

import pytest
from pretended_runs import pretend
from sweeps import asked

from fedray.errors import UserError
from fedray.studies.outcome import outcome
from fedray.studies.pages import write_table
from fedray.studies.registration import (
    changes,
    describe_registration,
    design,
    first_registration,
    register,
)
from fedray.studies.study import Study
from fedray.table import main

ROWS = {"mine": {"algorithm": "fedproto"}, "base": {"algorithm": "fedavg"}}
CHANGES = {
    "rows": ROWS,
    "baselines": [],
    "report": {"seeds": [0, 1]},
    "metrics": ["local_accuracy", "local_accuracy_weighted"],
    "claims": ["mine > base"],
}
TWO = ["mine > base", {"claim": "mine > base", "metric": "local_accuracy_weighted"}]


def curve(wanted):
    value = 0.5 + (wanted.place.row == "mine") / 10 + wanted.seed / 1000 - wanted.experiment.lr
    return [(0.0, 0.0), (value, value / 2)]


@pytest.fixture
def invoke(here, write):
    """`invoke(*words, key=...)` carries out the table tiny with pretended runs; returns it."""

    def invoke(*words: str, **keys: object) -> Study:
        write(**CHANGES | keys)
        study = asked(["tiny", *words])
        study.home.mkdir(parents=True)
        study.write()
        outcome(study)
        pretend(study, curve)
        write_table(study)
        return study

    return invoke


def looks(study: Study) -> list[tuple[list[int], list[str]]]:
    return [(look.seeds, look.changed) for look in outcome(study).looks.looks]


def test_a_table_made_again_as_it_was_is_no_look(invoke):
    invoke("--out", "results/tables/tiny/1")
    again = invoke("--out", "results/tables/tiny/2")
    assert looks(again) == []
    assert outcome(again).looks.count("fixed") == 1


def test_seeds_added_after_a_page_was_written_are_a_second_look(invoke):
    invoke("--out", "results/tables/tiny/1")
    second = invoke("--out", "results/tables/tiny/2", report={"seeds": [0, 1, 2]})
    assert looks(second) == [([0, 1], [])]
    found = outcome(second)
    assert (found.looks.count("fixed"), found.looks.count("anytime")) == (2, 1)
    [note] = [note for note in found.notes if note.startswith("The verdicts of")]
    assert note.startswith("The verdicts of seeds 0, 1 (")
    assert note.endswith("tiny/1) were known before: seed 2 was added")
    third = invoke("--out", "results/tables/tiny/3", report={"seeds": [0, 1, 2, 3]})
    assert looks(third) == [([0, 1], []), ([0, 1, 2], [])]


def test_a_changed_grid_is_a_look_whatever_the_test(invoke):
    invoke("--out", "results/tables/tiny/1")
    second = invoke("--out", "results/tables/tiny/2", space={"lr": {"grid": [0.02, 0.3]}})
    assert looks(second) == [([0, 1], ["row mine changed", "row base changed"])]
    assert outcome(second).looks.count("anytime") == 2


def test_rows_that_are_added_are_no_look(invoke):
    invoke("--out", "results/tables/tiny/1")
    rows = ROWS | {"third": {"algorithm": "fedprox"}}
    assert looks(invoke("--out", "results/tables/tiny/2", rows=rows)) == []


def test_claims_that_are_dropped_still_count_in_the_correction(invoke):
    first = invoke("--out", "results/tables/tiny/1", claims=TWO)
    both = [claim.corrected for claim in outcome(first).claims]
    second = invoke("--out", "results/tables/tiny/2")
    found = outcome(second)
    assert found.looks.dropped == ["mine > base (local_accuracy_weighted)"]
    assert [claim.corrected for claim in found.claims] == both[:1]
    assert any(note.startswith("Earlier pages also tested mine > base") for note in found.notes)


def test_finished_runs_without_a_page_are_a_look(invoke, here):
    invoke("--out", "results/tables/tiny/1")
    shutil.rmtree(here / "results" / "tables")
    second = invoke("--out", "results/tables/tiny/2", report={"seeds": [0, 1, 2]})
    assert looks(second) == [([0, 1], [])]


def test_a_copy_under_another_name_is_found_by_its_runs(invoke, write):
    invoke("--out", "results/tables/tiny/1", claims=TWO)
    file = write(**CHANGES | {"claims": TWO})
    file.rename(file.with_name("copy.yaml"))
    assert outcome(asked(["copy"])).looks.dropped == []
    write(**CHANGES).rename(file.with_name("copy.yaml"))
    study = asked(["copy"])
    assert outcome(study).looks.dropped == ["mine > base (local_accuracy_weighted)"]


def test_an_interrupted_invocation_keeps_the_looks_that_it_began_with(invoke):
    invoke("--out", "results/tables/tiny/1")
    second = invoke("--out", "results/tables/tiny/2", report={"seeds": [0, 1, 2]})
    second.write()
    assert looks(Study.read(second.home)) == [([0, 1], [])]


def test_what_the_file_says_is_a_look(invoke):
    report = {"seeds": [0, 1, 2, 3], "looked_at": [[0], [0, 1]]}
    study = invoke(report=report)
    assert looks(study) == [([0], []), ([0, 1], [])]
    notes = [note for note in outcome(study).notes if note.startswith("The verdicts of")]
    assert notes == [
        "The verdicts of seed 0 were known before: seed 1 was added",
        "The verdicts of seeds 0, 1 were known before: seeds 2, 3 were added",
    ]


# --- registration ---------------------------------------------------------------------------------


def test_a_registered_plan_is_said_on_the_page_with_what_changed(invoke, write, capsys):
    write(**CHANGES)
    assert main(["tiny", "--register"]) == 0
    assert "registered before the first run" in capsys.readouterr().out
    study = invoke("--out", "results/tables/tiny/1")
    text = describe_registration(study.registered, study.plan)
    assert text.endswith("nothing changed since")
    assert text in (study.home / "table.md").read_text()
    later = invoke("--out", "results/tables/tiny/2", report={"seeds": [0, 1, 2]}, claims=TWO[1:])
    assert describe_registration(later.registered, later.plan).endswith(
        "changed since: claim mine > base (local_accuracy_weighted) added; claim mine > base "
        "(local_accuracy) removed; seed 2 added"
    )


def test_a_plan_is_registered_once_and_replaced_only_before_any_invocation(invoke, write):
    write(**CHANGES)
    study = asked(["tiny"])
    home = study.home.parent
    first = register(study, home)
    assert register(asked(["tiny"]), home) == first
    write(**CHANGES | {"report": {"seeds": [0, 1, 2]}})
    second = register(asked(["tiny"]), home)
    assert first_registration(home, "laptop") == second
    invoke("--out", str(home / "1"), report={"seeds": [0, 1, 2]})
    write(**CHANGES | {"report": {"seeds": [0, 1, 2, 3]}})
    third = register(asked(["tiny"]), home)
    assert third.runs_before == 12
    assert first_registration(home, "laptop") == second


def test_pages_older_than_a_registration_before_the_first_run_were_exploration(invoke, write):
    invoke("rounds=1", "--out", "results/tables/tiny/1")
    write(**CHANGES)
    assert looks(asked(["tiny"])) == [([0, 1], ["tuning changed", "rounds changed"])]
    assert main(["tiny", "--register"]) == 0
    study = asked(["tiny"])
    assert study.registered.runs_before == 0
    assert looks(study) == []


def test_an_edited_registration_is_refused(write, here):
    write(**CHANGES)
    assert main(["tiny", "--register"]) == 0
    path = here / "results" / "tables" / "tiny" / "registered.json"
    path.write_text(path.read_text().replace('"runs_before": 0', '"runs_before": 1'))
    with pytest.raises(UserError, match="edited"):
        asked(["tiny"])


def test_changes_are_said_in_words():
    before = {"claims": ["a"], "seeds": [0], "rows": {"a": 1, "b": 2}, "tuning": {"x": 1}}
    now = {"claims": ["b"], "seeds": [0, 1, 2], "rows": {"a": 2, "c": 1}, "tuning": {"x": 2}}
    assert changes(before, now) == [
        "claim b added", "claim a removed", "seeds 1, 2 added", "row a changed", "row b removed",
        "row c added", "tuning changed",
    ]  # fmt: skip
    assert changes(now, now) == []


def test_a_design_knows_no_labels(write):
    write(**CHANGES)
    first = design(asked(["tiny"]).plan)
    write(**CHANGES | {"rows": ROWS | {"mine": {"algorithm": "fedproto", "label": "Mine"}}})
    assert design(asked(["tiny"]).plan) == first


def test_finished_runs_are_a_look_where_each_seed_chooses_by_itself(invoke, here):
    each = {"tuning": {"configurations": 3, "once": None}}
    invoke("--out", "results/tables/tiny/1", **each)
    shutil.rmtree(here / "results" / "tables")
    second = invoke("--out", "results/tables/tiny/2", report={"seeds": [0, 1, 2]}, **each)
    assert looks(second) == [([0, 1], [])]


def test_an_invocation_that_is_begun_anew_is_no_look(invoke, here):
    first = invoke("--out", "results/tables/tiny/1", report={"seeds": [0, 1, 2]})
    for name in ("table.json", "table.md"):
        (first.home / name).unlink()
    shutil.rmtree(here / "results" / "store" / sorted(first._measured)[0][0])
    again = invoke("--out", "results/tables/tiny/2", report={"seeds": [0, 1, 2]})
    assert looks(again) == []
