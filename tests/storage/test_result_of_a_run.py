"""What whole runs write: metrics in their own namespace, tracebacks of somebody's code."""

from __future__ import annotations

import pytest

from fedray.algorithms.personalised.local import Local
from fedray.core import LocalContext, Trained
from fedray.run import main
from fedray.storage.run_folder import RunFolder

QUICK = ["local_digits", "rounds=2", "local_epochs=1", "data.clients=3", "data.samples=300"]
SERIAL = ["--executor", "serial", "--no-track"]


def test_a_report_never_replaces_what_was_measured(tmp_path, monkeypatch):
    assert main([*QUICK, *SERIAL, "--out", str(tmp_path / "plain")]) == 0
    finish = Local.finish

    def boast(self, local: LocalContext, trained: Trained):
        local.client.reports["local_accuracy"] = 1.0
        return finish(self, local, trained)

    monkeypatch.setattr(Local, "finish", boast)
    assert main([*QUICK, *SERIAL, "--out", str(tmp_path / "boast")]) == 0
    plain, boast = (RunFolder(tmp_path / name).rounds() for name in ("plain", "boast"))
    for honest, boasted in zip(plain, boast, strict=True):
        assert boasted.metrics["local_accuracy"] == honest.metrics["local_accuracy"] < 1
    assert [r.metrics.get("client/local_accuracy") for r in boast] == [None, 1.0, 1.0]


def broken(*_: object) -> None:
    raise KeyError("a fault in the method")


def test_a_fault_in_a_clients_step_names_the_file_with_its_traceback(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Local, "loss", broken)
    out = tmp_path / "out"
    assert main([*QUICK, *SERIAL, "--out", str(out)]) == 1
    kept = RunFolder(out).error
    assert capsys.readouterr().err == (
        "failed: client 0, round 1, step client_update: KeyError: 'a fault in the method' "
        f"(traceback in {kept})\n"
    )
    assert "Traceback (most recent call last)" in kept.read_text()
    assert "in broken" in kept.read_text()
    assert main([*QUICK, *SERIAL, "--debug", "--out", str(tmp_path / "debug")]) == 1
    assert "in broken" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("hook", "where"),
    [
        ("init_server", "server, round 0, step round: "),
        ("round", "server, round 1, step round: "),
        ("with_setting", ""),
    ],
)
def test_a_fault_on_the_server_does_too(tmp_path, monkeypatch, capsys, hook, where):
    monkeypatch.setattr(Local, hook, broken)
    out = tmp_path / "out"
    assert main([*QUICK, *SERIAL, "--out", str(out)]) == 1
    kept = RunFolder(out).error
    assert capsys.readouterr().err == (
        f"failed: {where}KeyError: 'a fault in the method' (traceback in {kept})\n"
    )
    assert "in broken" in kept.read_text()
    assert main([*QUICK, *SERIAL, "--debug", "--out", str(tmp_path / "debug")]) == 1
    assert "in broken" in capsys.readouterr().err


def test_an_error_before_the_run_says_where(monkeypatch, capsys):
    monkeypatch.setattr("fedray.cli.run.several_seeds", broken)
    assert main([*QUICK, *SERIAL]) == 1
    printed = capsys.readouterr().err
    assert printed.startswith("failed: KeyError: 'a fault in the method' (")
    assert printed.endswith("; --debug shows the traceback\n")
    assert __file__ in printed
    assert main([*QUICK, *SERIAL, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
