"""An installed package with an entry point `fedray.plugins`: in processes that find it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from lab import refused
from plugged import DATA, METHOD, SMALL

from fedray.config.plugins import read_plugin, use

SERIAL = ["--executor", "serial", "--no-track"]


def install(folder: Path, text: str, version: str = "1.0") -> dict[str, str]:
    """A tiny package as pip would leave it; returns the environment that finds it."""
    package, info = folder / "extra_methods", folder / "extra_methods-1.0.dist-info"
    for made in (package, info):
        made.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "register.py").write_text(text)
    about = f"Metadata-Version: 2.1\nName: extra-methods\nVersion: {version}\n"
    (info / "METADATA").write_text(about)
    (info / "entry_points.txt").write_text("[fedray.plugins]\nextra = extra_methods.register\n")
    path = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), path]))}


def call(env: dict[str, str], *words: str) -> tuple[int, str]:
    """Return the exit code of a command, and what it said on stderr."""
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=280)
    return done.returncode, done.stderr


def test_what_is_installed_is_named_by_version_and_hash(tmp_path, monkeypatch):
    install(tmp_path, METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    found = read_plugin("extra_methods.register")
    assert not found.files
    assert (found.version, found.given) == ("1.0", "extra_methods.register")
    use([found])
    use(())
    install(tmp_path, METHOD + "\n", "1.0")
    refused(lambda: use([replace(found, folder="/other")]), "extra_methods", "1.0")
    refused(lambda: use([replace(found, module="other")]), "other")


@pytest.mark.long
def test_an_installed_method_is_found_recorded_and_held_to_its_version(tmp_path):
    out = str(tmp_path / "run")
    env = install(tmp_path / "site", METHOD + DATA.split('"""', 2)[2])
    run = ["fedray.run", "fedavg_digits", *SMALL, "algorithm=scaled", *SERIAL, "--out", out]
    code, said = call(env, *run)
    assert code == 0, said
    text = (tmp_path / "run" / "run.json").read_text()
    (plugin,) = json.loads(text)["plugins"]
    assert (plugin["module"], plugin["version"]) == ("extra_methods.register", "1.0")
    assert not plugin["files"]
    assert "tested_clients" in text  # installed metrics are measured

    resume = ["fedray.run", "--resume", out, *SERIAL]
    assert call(env, *resume)[0] == 0
    install(tmp_path / "site", METHOD + "\n", "1.1")
    code, said = call(env, *resume)
    assert (code, said.count("\n")) == (2, 1)
    assert "1.1" in said
    install(tmp_path / "site", "import nothing_of_the_kind\n")
    code, said = call(env, "fedray", "ls", "algorithms")
    assert (code, said.count("\n")) == (2, 1)
    assert "extra_methods.register" in said
