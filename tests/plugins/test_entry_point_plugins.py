"""An installed package with an entry point `fedray.plugins`: in processes that find it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from plugged import DATA, METHOD, SMALL

from fedray.base.errors import UserError
from fedray.config.plugins import read_plugin, use

RUN = ["-m", "fedray.run", "fedavg_digits", *SMALL, "--executor", "serial", "--no-track"]


def install(folder: Path, text: str, version: str = "1.0") -> dict[str, str]:
    """A tiny package as pip would leave it; returns the environment that finds it."""
    package, info = folder / "extra_methods", folder / "extra_methods-1.0.dist-info"
    package.mkdir(parents=True, exist_ok=True)
    info.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("")
    (package / "register.py").write_text(text)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: extra-methods\nVersion: {version}\n"
    )
    (info / "entry_points.txt").write_text("[fedray.plugins]\nextra = extra_methods.register\n")
    path = os.environ.get("PYTHONPATH", "")
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(folder), path]))}


def call(env: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=env, capture_output=True, text=True, timeout=280
    )


def test_what_is_installed_is_named_by_version_and_hash(tmp_path, monkeypatch):
    install(tmp_path, METHOD)
    monkeypatch.syspath_prepend(tmp_path)
    found = read_plugin("extra_methods.register")
    assert not found.files
    assert (found.version, found.given) == ("1.0", "extra_methods.register")
    use([found])
    use(())
    install(tmp_path, METHOD + "\n", "1.0")
    with pytest.raises(UserError, match=r"is not that of the experiment \(version 1.0, hash"):
        use([replace(found, folder="/other")])
    with pytest.raises(UserError, match="the plug-in other is neither a file here nor installed"):
        use([replace(found, module="other")])


@pytest.mark.long
def test_an_installed_method_is_found_recorded_and_held_to_its_version(tmp_path):
    out = tmp_path / "run"
    env = install(tmp_path / "site", METHOD + DATA.split('"""', 2)[2])
    done = call(env, *RUN, "algorithm=scaled", "--out", str(out))
    assert done.returncode == 0, done.stderr
    run = json.loads((out / "run.json").read_text())
    (plugin,) = run["plugins"]
    assert (plugin["module"], plugin["version"]) == ("extra_methods.register", "1.0")
    assert not plugin["files"]
    assert "tested_clients" in (out / "run.json").read_text()  # installed metrics are measured
    assert not (out / "plugins").exists()

    again = call(
        env, "-m", "fedray.run", "--resume", str(out), "--executor", "serial", "--no-track"
    )
    assert again.returncode == 0, again.stderr
    install(tmp_path / "site", METHOD + "\n", "1.1")
    other = call(env, "-m", "fedray.run", "--resume", str(out), "--executor", "serial")
    assert other.returncode == 2
    assert "that is installed here (version 1.1, hash " in other.stderr
    assert "is not that of the experiment (version 1.0, hash " in other.stderr

    install(tmp_path / "site", "import nothing_of_the_kind\n")
    broken = call(env, "-m", "fedray", "ls", "algorithms")
    assert broken.returncode == 2
    assert broken.stderr == (
        "error: the installed plug-in extra_methods.register of the package extra-methods does not "
        "import: ModuleNotFoundError: No module named 'nothing_of_the_kind'; repair or "
        "uninstall it\n"
    )
