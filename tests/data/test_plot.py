"""The plot of a partition."""

from __future__ import annotations

import numpy as np
import pytest

from fedray.data.plot import plot_partition


@pytest.mark.parametrize(("clients", "classes"), [(20, 10), (100, 100), (3, 250), (1000, 2)])
def test_a_table_of_any_size_is_plotted(tmp_path, clients, classes):
    from PIL import Image

    rng = np.random.default_rng(0)
    counts = rng.integers(0, 50, (clients, classes)) * (rng.random((clients, classes)) < 0.3)
    path = tmp_path / "partition.png"
    plot_partition({"": counts}, [f"class {k}" for k in range(classes)], path)
    with Image.open(path) as image:
        assert image.format == "PNG"
        assert 300 < image.width < 3000
        assert 200 < image.height < 3000
