"""The benchmarks' child processes say why they died, and the benchmarks' commands parse."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.common import ROOT, Child, environment, free_port, ratio, time_in_turns
from benchmarks.overhead import start
from benchmarks.text_tower import start_side
from fedray.runtime import devices

COMMANDS = (
    "faults", "fooling", "gpu", "null_tables", "originals", "overhead", "prompts", "scale", "soak",
    "sweep", "text_tower",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_benchmark_has_help(name):
    words = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    done = subprocess.run(words, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


def test_every_benchmark_is_listed_here():
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"common"}
    packages = {path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")}
    assert {*COMMANDS} == files | packages


def test_the_last_words_of_a_process_that_died_are_shown(tmp_path):
    child = start("nobody", "loop", tmp_path)
    with pytest.raises(SystemExit, match=r"nobody, loop: .* code 1\n(.*\n)*KeyError: 'nobody'"):
        child.ask("round")
    with pytest.raises(SystemExit, match="KeyError"):
        child.ask("round")


def test_a_checkout_that_does_not_import_is_quoted(tmp_path):
    (tmp_path / "fedray").mkdir()
    (tmp_path / "fedray" / "__init__.py").write_text("raise RuntimeError('half a checkout')")
    with pytest.raises(SystemExit, match=r"(?s)older side: .*half a checkout"):
        start_side("older", tmp_path, [10, 1, 1], tmp_path).ask("step")


def test_a_folder_without_fedray_is_not_measured_as_the_installed_one(tmp_path):
    with pytest.raises(SystemExit, match=f"{tmp_path} is no checkout of fedray"):
        start_side("older", tmp_path, [10, 1, 1], tmp_path).ask("step")


def test_a_child_answers_lines(tmp_path):
    program = "from benchmarks.common import serve; print('noise'); serve(lambda line: len(line))"
    child = Child("a child", ["-c", program], tmp_path / "log")
    assert [child.ask("abc"), child.ask("")] == [3, 0]
    child.close()


@pytest.mark.ray
@pytest.mark.slow
def test_clients_per_second_are_measured_without_a_gpu_too(tmp_path):
    rate, *samples = gpu.measure(("perceptron", 1, 1), 0, 0.1, tmp_path)
    assert float(rate) > 0
    assert len(samples) == 2


@pytest.mark.slow
def test_a_variant_that_fails_is_said_in_its_row(tmp_path):
    assert gpu.measure(("perceptron", 0, 1), 0, 0.1, tmp_path)[0].startswith("failed: ")


def test_without_a_gpu_the_benchmark_ends_with_one_sentence(monkeypatch):
    monkeypatch.setattr(devices, "accelerator", lambda: None)
    monkeypatch.setattr(sys, "argv", ["gpu"])
    with pytest.raises(SystemExit, match="torch finds no GPU here"):
        gpu.main()


def test_steps_run_in_turn():
    order: list[str] = []

    def step(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    steps = {"mine": lambda: step("mine", 3.0), "loop": lambda: step("loop", 2.0)}
    seconds = time_in_turns(steps, 2)
    assert order == ["mine", "loop", "mine", "loop"]
    assert ratio(seconds["mine"], seconds["loop"]) == (1.5, 1.5, 1.5)


def test_a_free_port_is_below_those_of_the_kernel():
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert free_port() < low
