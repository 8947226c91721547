"""Which plug-ins a run's numbers depend on: what another run names makes it no other run."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugged import METHOD

from fedray.config import with_used_plugins
from fedray.config.plugins import use
from fedray.runtime.resolve import resolve

OTHER = METHOD.replace('"scaled"', '"other"')
METRIC = '''
from fedray.plugin import Measure, Metric, metrics


@metrics.add
class Count(Measure):
    """How many clients were tested."""

    name = "count"
    metrics = (Metric("tested_clients"),)

    def compute(self, evaluated):
        return {"tested_clients": float(len(evaluated.tested))} if evaluated.tested else {}
'''
TEXTS = {"scaled": METHOD, "others": OTHER}


@pytest.fixture(autouse=True)
def none_afterwards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    use(())


def used(algorithm: str, **more: str) -> list[str]:
    """The plug-ins that a run of a method uses, of all that are given."""
    for name, text in {**TEXTS, **more}.items():
        Path(f"{name}.py").write_text(text)
    files = [f"{name}.py" for name in ("scaled", "others", *more)]
    words = [f"algorithm={algorithm}", f"plugins=[{', '.join(files)}]"]
    experiment = resolve("fedavg_digits", words)
    assert {plugin.module for plugin in experiment.plugins} == {*TEXTS, *more}
    return [plugin.module for plugin in with_used_plugins(experiment).plugins]


@pytest.mark.parametrize(
    ("algorithm", "modules"),
    [
        ("fedavg", []),
        ("scaled", ["scaled"]),
        ("other", ["others"]),
    ],
)
def test_a_run_uses_the_plugins_that_it_names(algorithm, modules):
    assert used(algorithm) == modules


def test_metrics_and_what_registers_nothing_are_of_every_run():
    assert used("fedavg", count=METRIC, effects="import torch\n") == ["count", "effects"]
    assert used("scaled", count=METRIC, effects="x = 1\n") == ["scaled", "count", "effects"]
