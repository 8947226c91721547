"""The plot of a partition."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest

from fedray.data.plot import begin_plot, plot_partition


@pytest.mark.parametrize(("clients", "classes"), [(20, 10), (100, 100), (3, 250), (1000, 2)])
def test_a_table_of_any_size_is_plotted(tmp_path, clients, classes):
    from PIL import Image

    rng = np.random.default_rng(0)
    counts = rng.integers(0, 50, (clients, classes)) * (rng.random((clients, classes)) < 0.3)
    path = tmp_path / "partition.png"
    plot_partition(counts, [f"class {k}" for k in range(classes)], path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert 300 < image.width < 3000
        assert 200 < image.height < 3000


def test_names_that_do_not_fit(tmp_path):
    with pytest.raises(ValueError, match="2 class names for 3 classes"):
        plot_partition(np.ones((2, 3), np.int64), ["a", "b"], tmp_path / "x.png")


@pytest.mark.slow
def test_another_process_draws_the_same_plot(tmp_path):
    counts, names = np.arange(6).reshape(2, 3), ["a", "b", "$c"]
    later = [("later", counts[::-1])]
    plot_partition(counts, names, tmp_path / "here.png", later, "first: ")
    drawing = begin_plot(counts, names, later, "first: ")
    assert drawing.result() == (tmp_path / "here.png").read_bytes()
    with pytest.raises(subprocess.CalledProcessError) as raised:
        begin_plot(counts, names[:2], [], "").result()
    assert b"2 class names for 3 classes" in raised.value.stderr
