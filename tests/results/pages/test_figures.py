"""What figures of points show: places, ends of intervals, names of values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedray.results.pages import figures
from fedray.results.pages.figures import Plot, Series, figure_curves, figure_points
from fedray.results.paired import Interval, t_interval


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`drawn(series..., **plot)` draws one panel of curves, or of points, and returns its axes."""

    def drawn(*series: Series, draw: Any = figure_curves, **plot: Any) -> Any:
        kept: list[Any] = []
        monkeypatch.setattr(figures, "_save", lambda figure, path: kept.append(figure))
        draw([Plot(series, "x", "accuracy (%)", **plot)], tmp_path / "x.png")
        return kept[0].axes[0]

    return drawn


def one(value: float) -> Interval:
    return t_interval([value])


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1, 5, 20], "linear"),
        ([1, 5, 21], "symlog"),
        ([0.0, 0.01, 1], "symlog"),
        ([0, 1, 10], "linear"),
        ([0], "linear"),
        ([100, 1, 1], "symlog"),
    ],
)
def test_wide_ranges_stand_on_a_log_axis(values: list[float], scale: str, drawn: Any) -> None:
    axes = drawn(Series({value: one(50.0) for value in values}), positions=values)
    assert axes.get_xscale() == scale
    assert sorted(axes.lines[0].get_xdata()) == sorted({*values})


def test_bars_are_intervals_or_ranges_within_100_per_cent(drawn: Any) -> None:
    points = {x: t_interval([45.0, y]) for x, y in ((1, 50.0), (2, 97.5))}
    for ranges, ends in ((True, [[45, 50], [45, 97.5]]), (False, [[15.7, 79.3], [0, 100]])):
        series = Series(points, joined=False, ranges=ranges)
        axes = drawn(series, positions=[1, 2], is_share=True)
        segments = axes.collections[0].get_segments()
        assert [list(segment[:, 1]) for segment in segments] == [
            pytest.approx(each, abs=0.1) for each in ends
        ]
    axes = drawn(Series(points), draw=figure_points, positions=[1, 2])
    dots = [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "."]
    assert dots == [[45, 50], [45, 97.5]]


def test_a_single_seed_has_no_bar_and_the_best_a_ring(drawn: Any) -> None:
    axes = drawn(Series({3: one(70.0), 1: one(50.0)}, ring=3), positions=[1, 3])
    assert not axes.collections
    assert (list(axes.lines[-1].get_xdata()), list(axes.lines[-1].get_ydata())) == ([3], [70])


def test_words_stand_beside_each_other_in_curves_and_below_each_other_in_points(drawn: Any) -> None:
    points, names = {"minilm": one(50.0), "bert": one(60.0)}, ["minilm", "bert", "none"]
    axes = drawn(Series(points, joined=False), positions=names)
    assert [label.get_text() for label in axes.get_xticklabels()] == names
    assert list(axes.containers[0][0].get_xdata()) == [0, 1]
    series = Series(points, printed={"bert": (61.0, None)})
    axes = drawn(series, draw=figure_points, positions=names)
    assert [label.get_text() for label in axes.get_yticklabels()] == names
    assert list(axes.containers[0][0].get_ydata()) == [0, 1]
    assert [list(line.get_xdata()) for line in axes.lines if line.get_marker() == "D"] == [[61]]


@pytest.mark.parametrize("count", [6, 9])
def test_few_values_are_named(count: int, drawn: Any) -> None:
    values = [2.0**power for power in range(count)]
    axes = drawn(Series({value: one(50.0) for value in values}), positions=values)
    names = [text.get_text() for text in axes.get_xticklabels()]
    assert (names == [f"{value:g}" for value in values]) == (count == 6)
