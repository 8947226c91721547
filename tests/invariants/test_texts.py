"""What a method prints, logs or warns of reaches the command once, with its origin, on Ray."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedray import run, sweep, table
from fedray.config import dump_yaml

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore:the import warns")]

PLUGIN = '''
"""FedAvg that talks."""

import logging
import sys
import warnings

from fedray.algorithms.averaging.fedavg import FedAvg
from fedray.core import method
from fedray.errors import UserError

log = logging.getLogger(__name__)


def talk(where: str) -> None:
    print(f"{where} prints")
    print(f"{where} complains", file=sys.stderr)
    warnings.warn(f"{where} warns")
    log.warning(f"{where} logs")


talk("the import")


@method("talking", "Talking", "-")
class Talking(FedAvg):
    """FedAvg that talks."""

    fails: str = ""

    def client_update(self, client, state, down):
        talk("a step")
        if self.fails == "client":
            raise ValueError("no such thing")
        if self.fails == "user":
            raise UserError("no such thing")
        return super().client_update(client, state, down)

    def server_update(self, state, uplinks, server):
        talk("the server")
        if self.fails == "server":
            raise ValueError("no such thing")
        return super().server_update(state, uplinks, server)
'''
KEYS = {
    "algorithm": "talking",
    "rounds": 1,
    "local_epochs": 1,
    "participation": 1.0,
    "data.clients": 2,
    "data.samples": 120,
    "data.partition.min_samples": 5,
    "cpus": 1,
}
WORDS = [f"{key}={value}" for key, value in KEYS.items()]


@pytest.fixture
def plugin(tmp_path, monkeypatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDRAY_RESULTS", str(tmp_path / "results"))
    Path("talking_method.py").write_text(PLUGIN)
    return "talking_method.py"


def once(messages: list[str], end: str) -> str:
    """Return the one message with this end."""
    found = [message for message in messages if message.endswith(end) or f"{end} (" in message]
    assert len(found) == 1, (end, messages)
    return found[0]


def assert_said(messages: list[str], of_run: str = "", server: str = "server: ") -> None:
    """Assert that the texts of a run's steps were logged once, with their origins."""
    for client in (0, 1):
        for text in ("prints", "complains"):
            assert once(messages, f"client {client}: a step {text}").startswith(of_run)
    for text in ("a step logs", "UserWarning: a step warns"):
        assert ": client " in f": {once(messages, text)}"
    for text in ("prints", "complains", "logs"):
        assert once(messages, f"the server {text}") == f"{of_run}{server}the server {text}"
    assert "(talking_method.py, line " in once(messages, "UserWarning: the server warns")
    assert not [message for message in messages if "the import" in message.partition(": ")[2]]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_run(plugin, ray_nodes, caplog, capsys, workers):
    words = ["fedavg_digits", "--plugin", plugin, *WORDS, f"workers={workers}", "--no-track"]
    assert run.main(words) == 0
    assert_said(caplog.messages)
    assert capsys.readouterr().out.count("the import prints\n") == 1, "the command's own import"


@pytest.mark.parametrize(("fails", "code"), [("client", 1), ("user", 2), ("server", 1)])
def test_a_run_that_fails(plugin, ray_nodes, caplog, fails, code):
    words = [*WORDS, f"algorithm.fails={fails}", "workers=1", "--no-track"]
    assert run.main(["fedavg_digits", "--plugin", plugin, *words]) == code
    once(caplog.messages, "client 0: a step prints")
    once(caplog.messages, "client 0: UserWarning: a step warns")
    if fails == "server":
        assert_said(caplog.messages)


def test_a_sweep_with_a_run_that_fails(plugin, ray_nodes, caplog):
    space = {"algorithm.fails": {"grid": ["", "user"]}}
    study = {"answers": "Does it talk?", "experiment": "fedavg_digits", "space": space}
    Path("talks.yaml").write_text(dump_yaml({**study, "set": KEYS, "report": {"seeds": [0]}}))
    assert sweep.main(["talks.yaml", "--plugin", plugin, "--no-track"]) == 0
    whole = [message for message in caplog.messages if message.startswith("fails= seed=0: ")]
    failed = [message for message in caplog.messages if message.startswith("fails=user seed=0: ")]
    assert [m for m in whole if m.endswith("client 1: a step prints")]
    assert [m for m in failed if m.endswith("client 0: a step prints")]
    for text in ("a step logs", "UserWarning: a step warns", "the server logs"):
        once(caplog.messages, text)
    once(caplog.messages, "the server prints")


@pytest.mark.slow
def test_a_table(plugin, ray_nodes, caplog):
    keys = {key: value for key, value in KEYS.items() if key != "algorithm"}
    study = {"answers": "Does it talk?", "rows": {"talking": {}}, "set": keys}
    small = {"report": {"seeds": [0]}, "tuning": {"configurations": 3}}
    Path("talks.yaml").write_text(dump_yaml({**study, **small}))
    assert table.main(["talks.yaml", "--plugin", plugin, "--no-track"]) == 0
    texts = [message for message in caplog.messages if "a step prints" in message]
    assert texts
    assert all("talking" in message.partition(": ")[0] for message in texts)
    once(caplog.messages, "UserWarning: a step warns")
    once(caplog.messages, "the server logs")
