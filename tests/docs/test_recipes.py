"""Every recipe of docs/recipes/ runs as it stands, for two small rounds."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run
from pages import DOCS, ROOT, files, ours

from fedray.cli.new import single
from fedray.config.plugins import use
from fedray.storage.run_folder import RunFolder

RECIPES = sorted((DOCS / "recipes").glob("*.md"))
PAGES = [page for page in RECIPES if page.stem != "index"]
SMALL = ["rounds=2", "local_epochs=1", "data.clients=3", "workers=1"]
SERIAL = ["--executor", "serial", "--no-track"]
NEW = {"text-guidance": ("guided", "text"), "own-prompts": ("mixed", "prompts")}
"""Recipes whose file `fedray new method` writes: its name and its option."""
METRICS = {
    "drift": "client/drift",
    "shared_temperature": "client/log_scale",
    "spread": "local_accuracy_range",
}
"""Metrics that a recipe's plug-in adds, by its file's name."""

pytestmark = pytest.mark.skipif(not DOCS.is_dir(), reason="docs/ is not part of the wheel")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder of its own; plug-ins are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    yield
    use(())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_recipe_runs(page):
    for name, text in files(page).items():
        Path(name).write_text(text)
    commands = [shlex.split(command) for command in ours(page)]
    assert len(commands) == len(files(page)), "a command for each file"
    for number, (_, word, *words) in enumerate(commands):
        assert word == "run"
        samples = [] if "data.source=tones" in words else ["data.samples=200"]
        partition = [] if any("partition" in each for each in words) else ["data.partition=iid"]
        words = [each.replace("resnet18", "cnn2") for each in words]
        out = f"run{number}"
        assert run([*words, *SMALL, *samples, *partition, *SERIAL, "--out", out]) == 0
        metrics = RunFolder(Path(out)).read().rounds[-1].metrics
        plugin = Path(words[words.index("--plugin") + 1]).stem
        assert METRICS.get(plugin, "local_accuracy") in metrics


@pytest.mark.long
def test_the_recipes_with_state_keep_the_laws():
    plugins, methods = [], []
    for page in ("personal-parameter", "payload", "prototypes", "server-step", *NEW):
        for name, text in files(DOCS / "recipes" / f"{page}.md").items():
            Path(name).write_text(text)
            plugins += ["--plugin", name]
        (command,) = ours(DOCS / "recipes" / f"{page}.md")
        (method,) = re.findall(r"algorithm=(\w+)", command)
        methods.append(method)
    checked = subprocess.run(
        [sys.executable, "-m", "fedray", "check", *methods, *plugins],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("recipe", NEW)
def test_a_recipe_shows_what_fedray_new_writes(recipe):
    name, uses = NEW[recipe]
    page = DOCS / "recipes" / f"{recipe}.md"
    assert files(page)[f"{name}.py"] == f"# {name}.py\n" + single("method", name, uses)
    assert f"`fedray new method {name} --{uses}`" in page.read_text()


def test_the_files_that_contributing_shows_run_outside_the_package():
    """A copy of FedProx with another name gives FedProx's numbers, also on the page's network."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    prox, mini = re.findall(r"```python\n(\"\"\".*?)```", text, re.DOTALL)
    Path("prox.py").write_text(prox.replace('@method("fedprox"', '@method("prox"'))
    Path("mini.py").write_text(mini)
    words = ["fedavg_digits", *SMALL, "data.samples=200", "data.partition=iid", *SERIAL]
    words += ["--plugin", "mini.py", "model.group=mini"]
    found = []
    for name, plugin in {"fedprox": [], "prox": ["--plugin", "prox.py"]}.items():
        method = f"algorithm={{name: {name}, mu: 0.5}}"
        assert run([*words, *plugin, method, "--out", name]) == 0
        found.append(RunFolder(Path(name)).read().rounds[-1].metrics)
    assert found[0] == found[1]
