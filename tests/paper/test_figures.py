"""Figures of methods side by side: what is drawn, named and marked."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

import figures
from ehd_hf.present.picture import COLOURS
from explanations import drawn, legend_of

# Size and milliseconds per window.
SIZES = {"greedy": (19.7, 61.0), "recency": (30.0, 3.1), "distiller": (20.5, 6.8), "distiller + prune": (18.8, 13.5)}


def names_of(axis):
    return [label.get_text() for label in axis.get_ticklabels() if label.get_text()]


def test_sizes_and_times_stand_side_by_side_with_recency_as_a_line(tmp_path):
    rows = [
        {
            "solver": name,
            "seconds_per_window": time / 1e3,
            "size": size,
            "size_low": size - 0.3,
            "size_high": size + 0.3,
        }
        for name, (size, time) in SIZES.items()
    ]
    figure = drawn(figures.size_time_plot(rows, "toy"), tmp_path)
    sizes, times = figure.axes
    order = sorted(SIZES, key=lambda name: -SIZES[name][0])
    assert names_of(sizes.yaxis) == order and figure.get_suptitle() == "toy"
    assert times.get_xscale() == "log" and "10 ms" in names_of(times.xaxis)
    dots = dict(zip(order, sizes.collections[1::2], strict=True))
    for y, (name, time) in enumerate(zip(order, times.collections, strict=True)):
        np.testing.assert_allclose(dots[name].get_offsets(), [[SIZES[name][0], y]])
        np.testing.assert_allclose(time.get_offsets(), [[SIZES[name][1] / 1e3, y]])
    (line,) = sizes.get_lines()
    assert set(line.get_xdata()) == {30.0}
    # Shape and filling differ too: recency, distillers, the others.
    faces = {name: to_hex(dot.get_facecolor()[0]) for name, dot in dots.items()}
    assert (faces["greedy"], faces["recency"]) == ("#ffffff", "#000000")
    assert faces["distiller"] == faces["distiller + prune"] == COLOURS[1].lower()
    assert len({len(dot.get_paths()[0].vertices) for dot in dots.values()}) == 2


def precision(name, value):
    return {"solver": name, "ap": value, "ap_low": value - 0.02, "ap_high": value + 0.03}


def test_average_precision_has_a_line_per_method_and_yardsticks(tmp_path):
    rows = [precision("oracle", 0.84), precision("random", 0.19), precision("recency", 0.46)]
    rows += [precision("greedy", 0.66), precision("greedy, true process", 0.69), precision("distiller", 0.7)]
    figure = drawn(figures.precision_plot(rows), tmp_path)
    (axes,) = figure.axes
    assert names_of(axes.yaxis) == ["recency", "greedy", "distiller"]
    assert sorted(float(line.get_xdata()[0]) for line in axes.get_lines()) == [0.19, 0.84]
    assert {text.get_text() for text in axes.texts} == {"oracle", "random"}
    intervals, filled, _, hollow = axes.collections
    assert sorted(filled.get_offsets().tolist()) == [[0.46, 0], [0.66, 1], [0.7, 2]]
    (dot,) = hollow.get_offsets().tolist()
    assert dot[0] == 0.69 and 0.5 < dot[1] < 1 and to_hex(hollow.get_facecolor()[0]) == "#ffffff"
    assert intervals.get_segments()[0][:, 0].tolist() == pytest.approx([0.44, 0.49])
    assert legend_of(figure) == ["with the trained model", "with the true likelihood"]
    assert legend_of(figures.precision_plot(rows[:4])) == []  # one kind of dots needs no legend
    assert names_of(figures.precision_plot(rows[4:5]).axes[0].yaxis) == ["greedy"]


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="size_time_plot needs at least one row; got none"):
        figures.size_time_plot([])


# --- the case study
