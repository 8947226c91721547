from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def uri(tmp_path: Path, empty_database: Path) -> str:
    """An MLflow database without runs."""
    path = tmp_path / "store" / "mlflow.db"
    path.parent.mkdir()
    shutil.copy(empty_database, path)
    return f"sqlite:///{path}"
