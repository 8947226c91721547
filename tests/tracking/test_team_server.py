"""The team's server for real: MLflow with passwords on PostgreSQL and an S3-compatible store."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.team import (
    PASSWORDS,
    USER,
    Team,
    artifacts_differ,
    log_through_faults,
    look,
    make_runs,
    team,
    upload_all,
    why_not,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


@pytest.fixture(scope="module")
def server() -> Iterator[Team]:
    with pytest.MonkeyPatch.context() as patch, team(workers=1) as started:
        for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
            patch.setenv(name, "")
        started.as_admin().create_user(USER, PASSWORDS[0])
        yield started


def test_nothing_is_lost_and_nothing_twice(
    server: Team, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.as_user(USER, PASSWORDS[0])
    folders = make_runs(tmp_path, trials=4, rounds=6, metrics=200)
    log_through_faults(server, folders, rounds=6)
    said = capsys.readouterr().err
    for folder in folders:
        missing = [line for line in said.splitlines() if str(folder) in line][-1]
        assert "is missing 2 round(s) and the end of 1 run(s)" in missing
    assert "it refuses the user or the password (401)" in said
    upload_all(server, folders)
    assert look(server.database, "through faults", folders, metrics=200) == []
    assert artifacts_differ(server, "through faults", folders) == []


def test_a_backup_holds_the_runs(server: Team, tmp_path: Path) -> None:
    server.call("backup", str(tmp_path / "backup"))
    assert (tmp_path / "backup").read_bytes().startswith(b"PGDMP")


def test_nothing_listens_beyond_the_loopback_and_secrets_are_private(server: Team) -> None:
    outside = socket.gethostbyname(socket.gethostname())
    if not outside.startswith("127."):
        for name in ("MLFLOW_PORT", "DATABASE_PORT", "STORAGE_PORT"):
            with pytest.raises(OSError), socket.socket() as caller:
                caller.connect((outside, int(server.environment[name])))
    assert (server.data / "secrets.env").stat().st_mode & 0o077 == 0
    log = (server.data / "team.log").read_text()
    assert "ready" in log
    assert not any(server.secret(name) in log for name in ("POSTGRES_PASSWORD",))
    assert server.secret("MLFLOW_AUTH_ADMIN_PASSWORD") not in log
