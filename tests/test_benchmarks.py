"""The benchmarks' child processes say why they died, and the benchmarks' commands parse."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks import gpu
from benchmarks.common import Child, ratio, time_in_turns
from benchmarks.overhead import largest_difference, start
from tools.originals.federation import State, greatest_difference
from tools.originals.records import distance


@pytest.mark.slow
def test_the_last_words_of_a_process_that_died_are_shown(tmp_path):
    child = start("nobody", "loop", tmp_path)
    with pytest.raises(SystemExit, match=r"nobody, loop: .* code 1\n(.*\n)*KeyError: 'nobody'"):
        child.ask("round")
    with pytest.raises(SystemExit, match="KeyError"):
        child.ask("round")


@pytest.mark.slow
def test_a_child_answers_lines(tmp_path):
    program = "from benchmarks.common import serve; print('noise'); serve(lambda line: len(line))"
    child = Child("a child", ["-c", program], tmp_path / "log")
    assert [child.ask("abc"), child.ask("")] == [3, 0]
    child.close()


@pytest.mark.ray
@pytest.mark.slow
def test_clients_per_second_are_measured_without_a_gpu_too(tmp_path):
    processes = gpu.Processes(0, 0.1, tmp_path)
    failed, *_ = processes.measure(gpu.Variant("perceptron", 0, 1), (1, 1e9))
    assert failed.startswith("failed: ")
    rate, steps, teraflops, *samples = processes.measure(gpu.Variant("perceptron", 1, 1), (2, 1e12))
    processes.close()
    assert float(rate) > 0
    assert float(steps) == pytest.approx(2 * float(rate), abs=1)
    assert float(teraflops) == pytest.approx(float(rate), rel=0.01)
    assert len(samples) == 2


def test_steps_and_operations_of_a_client_are_counted(tmp_path):
    steps, operations = gpu.work_of_a_client("perceptron", tmp_path)
    assert steps == 1  # 13 images of 1347 / 100, batches of 16
    images = 1347 / 100
    forward = 2 * (64 * 128 + 128 * 10)
    backward = 2 * forward - 2 * 64 * 128  # nobody needs the gradient of the images
    assert operations == pytest.approx(images * (forward + backward), rel=0.1)


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_comparison_that_meets_nan_gives_nan(wrong):
    """Wherever it stands: Python's max(0.0, nan) is 0."""
    values, other = ([[1.0] * 12, [2.0] * 12] for _ in range(2))
    other[wrong][5] = math.nan
    models = [
        {name: torch.tensor(numbers) for name, numbers in zip("ab", side, strict=True)}
        for side in (values, other)
    ]
    ours, theirs = (State([model], []) for model in models)
    entries = [{"a": [100, *side[0]], "b": [100, *side[1]]} for side in (values, other)]
    assert math.isnan(largest_difference(*models))
    assert math.isnan(greatest_difference(ours, theirs))
    assert math.isnan(distance(*entries))


def test_steps_run_in_turn():
    order: list[str] = []

    def step(name: str, seconds: float) -> float:
        order.append(name)
        return seconds

    steps = {"mine": lambda: step("mine", 3.0), "loop": lambda: step("loop", 2.0)}
    seconds = time_in_turns(steps, 2)
    assert order == ["mine", "loop", "mine", "loop"]
    assert ratio(seconds["mine"], seconds["loop"]) == (1.5, 1.5, 1.5)
