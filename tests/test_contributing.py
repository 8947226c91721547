"""What CONTRIBUTING shows works as it stands there, from a folder outside the package."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedray

PACKAGE = Path(fedray.__file__).parent
PAGE = PACKAGE.parent / "CONTRIBUTING.md"
BLOCK = re.compile(r"```python\n(\"\"\".*?)```", re.DOTALL)

RUN = """
import json, sys
from pathlib import Path

import torch

for name in {names}:
    __import__(name)

from fedray.config import parse_assignments, read_experiment
from fedray.runtime.resolve import resolve
from fedray.runtime.serial import SerialExecutor
from fedray.runtime.session import Session

def serial(assembly):
    return SerialExecutor(assembly, torch.device("cpu"))

found = {{}}
for out, *words in json.loads(sys.argv[1]):
    rounds = list(Session(resolve(*words[:1], words[1:]), Path(out), serial).rounds())
    found[Path(out).name] = rounds[-1].metrics
print("FOUND " + json.dumps(found))
"""

SMALL = ["rounds=1", "local_epochs=1", "data.samples=200", "data.clients=3"]
IID = ["data.partition=iid"]


def blocks() -> dict[str, str]:
    """The whole files that the page shows, by their first lines."""
    return {text.split("\n")[0].strip('"'): text for text in BLOCK.findall(PAGE.read_text())}


pytestmark = pytest.mark.skipif(
    not PAGE.exists(), reason="CONTRIBUTING.md is not part of an installed wheel"
)


def test_fedprox_is_the_very_file():
    source = (PACKAGE / "algorithms" / "averaging" / "fedprox.py").read_text()
    assert f"```python\n{source}```" in PAGE.read_text()
    below = source.split('"""', 2)[2].strip().splitlines()
    assert len(below) <= 40


@pytest.mark.slow
def test_files_outside_the_package_add_what_they_show(tmp_path):
    shown = blocks()
    names = ["prox", "mini"]
    assert len(shown) == len(names)
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in zip(names, shown.values(), strict=True):
        # the package has a fedprox already: this is somebody's own copy of it
        text = text.replace('@method("fedprox"', '@method("prox"')
        (folder / f"{name}.py").write_text(text)
    runs = {
        "theirs": ["fedavg_digits", "algorithm={name: fedprox, mu: 0.5}", *SMALL, *IID],
        "mine": ["fedavg_digits", "algorithm={name: prox, mu: 0.5}", *SMALL, *IID],
        "mini": ["fedavg_digits", "algorithm=prox", "model.group=mini", *SMALL, *IID],
    }
    words = json.dumps([[str(tmp_path / name), *arguments] for name, arguments in runs.items()])
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(names=names), words],
        cwd=folder,
        env={"PYTHONPATH": f"{PACKAGE.parent}:{folder}", "PATH": "", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.split("FOUND ")[1])
    assert found["mine"] == found["theirs"]
    result = json.loads((tmp_path / "mine" / "run.json").read_text())
    assert result["config"]["algorithm"] == {"name": "prox", "weights": "samples", "mu": 0.5}
