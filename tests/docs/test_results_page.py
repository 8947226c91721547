"""The summary of the tables that were run."""

import json
from pathlib import Path

import pytest

from _build.results import details, not_run, summary, take, with_part
from fedray.errors import UserError
from fedray.records import sealed
from fedray.studies.store import check_table

CLAIM = {"claim": "mine > base", "metric": "local_accuracy", "verdict": "holds"}
CONTROL = {
    "control": "random",
    "of": "mine",
    "reading": "explains it away",
    "mean": 2.04,
    "low": -1.0,
    "high": 3.1,
}


def a_table(name="tiny", verdict="holds", unit="share", **more):
    return {
        "format": 4,
        "table": name,
        "answers": "does mine lead?",
        "made": {
            "command": f"python -m fedray.table {name}",
            "runs": 30,
            "seconds": 5400.0,
            "commit": "abc",
            "commits": ["abc"],
            "machine": "x86_64, 2 cores",
        },
        "units": {"local_accuracy": unit},
        "claims": [CLAIM, {**CLAIM, "verdict": verdict}],
        "controls": [CONTROL],
        "plan": {"metrics": ["local_accuracy"], "report": {"seeds": [0, 1]}, "tuning": {}},
        **more,
    }


def test_a_claim_counts_as_decided_when_it_holds_or_is_refuted():
    text = summary([a_table(verdict="undecided"), a_table("other", verdict="refuted")], 2)
    assert "**3 of 4 claims decided** (2 hold, 1 refuted) in 2 tables." in text
    assert "| [tiny](results/tiny/table.md) | does mine lead? | 1 | 0 | 1 |" in text
    assert "2 further tables of the papers are ready" in text
    assert "mine > base" not in text  # claims are on the tables' own pages


def test_fragile_verdicts_are_counted():
    fragile = {**CLAIM, "fragile": ["undecided without seed 1"]}
    text = summary([a_table(claims=[CLAIM, fragile])], 0)
    assert "(2 hold, 0 refuted; 1 are [fragile](trust.md#fragile-verdicts)) in 1 table." in text


def test_a_control_has_its_difference_and_its_reading():
    start = "| [tiny](results/tiny/table.md) | random for mine | "
    assert f"{start}+2.0 [-1.0, +3.1] | explains it away |" in details([a_table()])
    assert f"{start}+2.04 [-1, +3.1] | explains it away |" in details([a_table(unit="")])
    none = {key: value for key, value in CONTROL.items() if key not in ("mean", "low", "high")}
    assert f"{start}no runs | explains it away |" in details([a_table(controls=[none])])
    assert "Controls" not in details([a_table(controls=[])])


def test_a_line_says_how_a_table_was_made_and_by_which_code():
    start = (
        "- [tiny](results/tiny/table.md): `python -m fedray.table tiny`, seeds 0, 1, 30 runs, "
        "1.5 h on x86_64, 2 cores, commit"
    )
    assert f"{start} abc\n" in details([a_table()])
    found = a_table()
    found["made"]["commits"] = ["d0", "e1", "f2"]  # those of tuning too
    assert f"{start}s d0, e1, f2\n" in details([found])


def test_the_papers_tables_that_were_not_run_are_counted(tmp_path):
    folder = tmp_path / "tune/tables"
    folder.mkdir(parents=True)
    for name in ("fedtsp_table1", "fedtsp_table2", "digits"):
        (folder / f"{name}.yaml").write_text(f"answers: {name}, and why?\n")
    (tmp_path / "docs/results/fedtsp_table1").mkdir(parents=True)
    (tmp_path / "docs/results/fedtsp_table1/table.json").write_text(
        json.dumps(sealed(a_table("fedtsp_table1")))
    )
    assert not_run(tmp_path) == 1


def test_what_is_taken_is_read_again(tmp_path):
    made = tmp_path / "made"
    made.mkdir()
    (made / "table.json").write_text(json.dumps(sealed(a_table())))
    (made / "table.md").write_text("# tiny\n\n![the table as a figure](figure.png)\n")
    (made / "figure.png").write_bytes(b"\x89PNG\r\n")
    to = take(made, tmp_path)
    assert to == tmp_path / "docs/results/tiny"
    assert (to / "table.md").read_text() == (made / "table.md").read_text()
    assert (to / "figure.png").read_bytes() == b"\x89PNG\r\n"
    assert check_table(to / "table.json") == a_table()


def test_an_edited_table_is_not_taken(tmp_path):
    edited = {**sealed(a_table()), "answers": "mine leads"}
    (tmp_path / "table.json").write_text(json.dumps(edited))
    with pytest.raises(UserError, match=r"table\.json cannot be read: .* damaged or edited"):
        take(tmp_path, tmp_path)
    assert not (tmp_path / "docs").exists()


def test_every_published_table_is_whole():
    paths = sorted(Path(__file__).parents[2].glob("docs/results/*/table.json"))
    assert [check_table(path)["table"] for path in paths] == [path.parent.name for path in paths]
    assert paths


def test_every_published_page_says_that_each_seed_chose():
    for path in Path(__file__).parents[2].glob("docs/results/*/table.md"):
        assert "of 5 seeds by itself" in path.read_text()


def test_folders_of_the_machine_are_cut_from_why_runs_failed(tmp_path):
    here = 'nan in "loss" (traceback in /tmp/my/runs/0a1b/error.txt, line 3; and/or /data/x.npz)'
    short = 'nan in "loss" (traceback in error.txt, line 3; and/or x.npz)'
    cells = [{"seeds": [{"reason": None}], "dropped": [{"reason": here}]}]
    kept = "--plugin /home/me/mine.py"
    table = a_table(cells=cells, runs=[{"reason": f"it diverged: {here}"}], notes=[f"mine: {here}"])
    table["made"]["command"] += f" {kept}"
    (tmp_path / "table.json").write_text(json.dumps(sealed(table)))
    (tmp_path / "table.md").write_text(f"- mine: {here}.\n- command: {kept}\n")
    to = take(tmp_path, tmp_path)
    assert (to / "table.md").read_text() == f"- mine: {short}.\n- command: {kept}\n"
    found = check_table(to / "table.json")
    assert found["cells"][0] == {"seeds": [{"reason": None}], "dropped": [{"reason": short}]}
    assert found["runs"] == [{"reason": f"it diverged: {short}"}]
    assert found["notes"] == [f"mine: {short}"]
    assert found["made"] == table["made"]


def test_a_folder_without_a_table_is_refused(tmp_path):
    with pytest.raises(UserError, match="folder of a table's invocation"):
        take(tmp_path, tmp_path)
    assert not (tmp_path / "docs").exists()


def test_what_stands_around_the_summary_stays():
    text = with_part(
        "before\n<!-- claims: begin -->\nstale\n<!-- claims: end -->\nafter\n", "fresh"
    )
    assert text == "before\n<!-- claims: begin -->\n\nfresh\n\n<!-- claims: end -->\nafter\n"
    assert with_part("no place for it", "fresh") == "no place for it"
