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


def test_deletion_curves_stand_side_by_side_by_conditioning(tmp_path):
    rows = [
        {"conditioning": conditioning, "solver": solver, "deletion": [0.0, -lost, -1.0]}
        for conditioning in ("survival", "paper")
        for solver, lost in (("greedy", 0.8), ("recency", 0.2), ("backward", 0.9))
    ]
    figure = drawn(figures.conditioning_plot(rows, "toy"), tmp_path)
    assert [axes.get_title() for axes in figure.axes] == ["paper conditioning", "survival conditioning"]
    for axes in figure.axes:
        lines = {line.get_label(): line.get_ydata() for line in axes.get_lines() if len(line.get_ydata()) == 3}
        np.testing.assert_allclose([lines["recency"], lines["greedy"]], [[0, 20, 100], [0, 80, 100]])
    assert legend_of(figure) == ["recency", "greedy"]


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


def test_overlaps_have_a_panel_per_check_and_chance_beside_them(tmp_path):
    values = [("distiller seeds", "distiller", 0.8), ("point process seeds", "recency", 0.5)]
    values += [("shuffled weights", "recency", 0.4), ("point process seeds", "greedy", 0.6)]
    rows = [
        {"check": check, "solver": name, "overlap": x, "overlap_low": x - 0.1, "overlap_high": x + 0.1, "chance": 0.3}
        for check, name, x in values
    ]
    figure = drawn(figures.overlap_plot(rows), tmp_path)
    assert [names_of(axes.yaxis) for axes in figure.axes] == [["distiller"], ["recency", "greedy"], ["recency"]]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert "seeds of the distiller" in titles[0] and "should be near chance" in titles[2]
    _, explained, chance = figure.axes[1].collections
    assert explained.get_offsets().tolist() == [[0.5, 0], [0.6, 1]]
    assert chance.get_offsets().tolist() == [[0.3, 0], [0.3, 1]]
    assert legend_of(figure) == ["explanations", "random sets of the same sizes"]


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="size_time_plot needs at least one row; got none"):
        figures.size_time_plot([])


# --- the case study


def test_left_events_along_training_are_percentages_by_run(tmp_path):
    curves = {"L_c alone": [(0, 0.5), (10, 0.0)], "L_n alone": [(0, 0.5), (10, 1.0)]}
    figure = drawn(figures.left_share_plot(curves), tmp_path)
    (axes,) = figure.axes
    first, second = axes.get_lines()
    np.testing.assert_allclose(first.get_ydata(), [0.5, 0.0])
    assert axes.get_ylim() == (0, 1) and "100%" in names_of(axes.yaxis)
    assert legend_of(figure) == ["L_c alone", "L_n alone"]
    assert first.get_color() != second.get_color() and first.get_linestyle() != second.get_linestyle()


def test_marks_are_named_ordered_and_significance_is_filled(tmp_path):
    keys = ("label", "num_events", "share", "low", "high", "significant")
    values = [("Guru", 1234, 0.5, 0.4, 0.6, True), ("Caucus", 7, 0.2, 0.0, 0.4, False)]
    marks = [dict(zip(keys, row, strict=True)) | {"expected": 0.3, "recency": 0.45} for row in values]
    figure = drawn(figures.mark_share_plot(marks), tmp_path)
    (axes,) = figure.axes
    assert names_of(axes.yaxis) == ["Caucus (7)", "Guru (1,234)"]
    filled, hollow, random, recent = axes.collections[1:]
    assert filled.get_offsets().tolist() == [[0.5, 1.0]] and to_hex(filled.get_facecolor()[0]) == COLOURS[0].lower()
    assert hollow.get_offsets().tolist() == [[0.2, 0.0]] and to_hex(hollow.get_facecolor()[0]) == "#ffffff"
    assert random.get_offsets()[:, 0].tolist() == [0.3, 0.3]
    assert recent.get_offsets()[:, 0].tolist() == [0.45, 0.45]
    assert len(legend_of(figure)) == 4 and len(legend_of(figures.mark_share_plot(marks[:1]))) == 3


def test_lengths_have_a_pdf_and_a_cdf(tmp_path):
    lengths = {"(15, 40)": [0.25, 0.5, 0.25], "(25, 50)": [0.0, 0.5, 0.25, 0.25]}
    figure = drawn(figures.length_plot(lengths), tmp_path)
    density, cumulative = figure.axes
    np.testing.assert_allclose(density.get_lines()[0].get_ydata(), [0.25, 0.5, 0.25])
    np.testing.assert_allclose(cumulative.get_lines()[1].get_ydata(), [0.0, 0.5, 0.75, 1.0])
    assert legend_of(figure) == ["(15, 40)", "(25, 50)"]
    assert legend_of(figures.length_plot({"only": [1.0]})) == []


def test_slides_show_what_is_rare(tmp_path):
    figure = drawn(figures.slide_plot({"ejected": [70, 10, 5, 10, 5], "added": [10, 85, 4, 1]}), tmp_path)
    ejected, added = figure.axes
    np.testing.assert_allclose([bar.get_height() for bar in ejected.patches], [0.7, 0.1, 0.05, 0.1, 0.05])
    assert ejected.get_yscale() == "log" and "15.0% of slides move 3 or more" in ejected.get_title()
    assert "1.0% of slides" in added.get_title() and "1%" in names_of(ejected.yaxis)


def test_sizes_break_where_windows_are_missing(tmp_path):
    figure = drawn(figures.sizes_plot([(3, [1, 2, 5, 6], [4, 4, 2, 3]), (8, [0, 1], [1, 2])]), tmp_path)
    assert [axes.get_title() for axes in figure.axes] == ["sequence 3", "sequence 8", "", ""]
    x, y = figure.axes[0].get_lines()[0].get_data()
    assert np.isnan(x[2]) and np.isnan(y[2]) and len(x) == 5
