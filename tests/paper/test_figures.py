"""Figures of methods side by side: what is drawn, named and marked, and that no label covers another."""

import itertools

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text

from benchmark_page import scaling_plot
from ehd_hf.present.picture import COLOURS
from figures import (
    curves_plot,
    left_share_plot,
    length_plot,
    mark_share_plot,
    overlap_plot,
    precision_plot,
    size_time_plot,
    sizes_plot,
    slide_plot,
)

SIZES = {  # size, ms per window: crowded, as methods of the same kind are
    "greedy": (19.7, 61.0),
    "recency": (30.0, 3.1),
    "distiller": (20.5, 6.8),
    "distiller + prune": (18.8, 13.5),
    "greedy + drop": (18.1, 78.0),
    "integrated gradient": (20.0, 7.4),
    "integrated gradient (per_round=2)": (19.8, 19.0),
    "integrated gradient + prune": (18.6, 14.5),
    "backward": (19.0, 72.0),
    "leave-one-out": (24.4, 6.5),
}


def drawn(figure, tmp_path):
    """The figure, saved once: labels that do not fit or do not parse fail here."""
    assert isinstance(figure, Figure)
    figure.savefig(tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").stat().st_size > 0
    return figure


def legend_of(figure):
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    return [text.get_text() for legend in legends for text in legend.get_texts()]


def size_rows(sizes):
    return [
        {
            "solver": name,
            "size": size,
            "size_low": size - 0.3,
            "size_high": size + 0.3,
            "seconds_per_window": time / 1e3,
        }
        for name, (size, time) in sizes.items()
    ]


def test_sizes_stand_against_time_with_recency_as_a_line(tmp_path):
    figure = drawn(size_time_plot(size_rows(SIZES), "toy"), tmp_path)
    (axes,) = figure.axes
    assert axes.get_xscale() == "log" and axes.get_title() == "toy"
    assert {"5 ms", "10 ms", "50 ms"} <= {label.get_text().replace("\N{MICRO SIGN}", "u") for label in ticks(axes)}
    dots = axes.collections[1::2]
    for dot, (size, time) in zip(dots, SIZES.values(), strict=True):
        np.testing.assert_allclose(dot.get_offsets(), [[time / 1e3, size]])
    (line,) = axes.get_lines()
    assert set(line.get_ydata()) == {30.0}
    # Told apart by shape and filling as well: recency, distillers, the others.
    faces = [to_hex(dot.get_facecolor()[0]) for dot in dots]
    assert faces[:3] == ["#ffffff", "#000000", COLOURS[1].lower()] and faces[3] == faces[2]
    assert len({len(dot.get_paths()[0].vertices) for dot in dots}) == 2


def ticks(axes):
    return [label for label in axes.get_xticklabels() if label.get_text()]


def boxes_of(figure):
    """Where each label stands, by its text."""
    figure.draw_without_rendering()
    (axes,) = figure.axes
    return axes, {text.get_text(): Text.get_window_extent(text) for text in axes.texts}


@pytest.mark.parametrize("shift", [0.0, 0.5, 0.9])
def test_no_label_covers_another_or_a_point_or_leaves_the_axes(shift):
    """Also as the methods move closer and closer together."""
    names = list(SIZES)
    middle = np.mean([np.log(time) for _, time in SIZES.values()])
    sizes = {
        name: (20 + (1 - shift) * (size - 20), float(np.exp(middle + (1 - 0.8 * shift) * (np.log(time) - middle))))
        for name, (size, time) in SIZES.items()
    }
    axes, boxes = boxes_of(size_time_plot(size_rows(sizes)))
    assert set(names) <= set(boxes)
    for one, other in itertools.combinations(boxes.values(), 2):
        assert not one.overlaps(other)
    for size, time in sizes.values():
        x, y = axes.transData.transform((time / 1e3, size))
        assert not any(box.contains(x, y) for box in boxes.values())
    for box in boxes.values():
        assert axes.bbox.contains(*box.min) and axes.bbox.contains(*box.max)


def test_a_single_method_and_many_decades_of_time_are_drawn_too(tmp_path):
    drawn(size_time_plot(size_rows({"greedy": (3.0, 5.0)})), tmp_path)
    figure = drawn(size_time_plot(size_rows({"greedy": (3.0, 5e3), "recency": (4.0, 1e-3)})), tmp_path)
    assert all(label.get_text()[:2] in ("1 ", "10") for label in ticks(figure.axes[0]))


def curve_rows():
    curves = {"recency": (0.2, 0.6), "greedy": (0.8, 0.3), "distiller": (0.7, 0.4), "backward": (0.9, 0.2)}
    return [
        {
            "solver": name,
            "deletion": [0.0, -out, -1.0],
            "insertion": [-1.0, alone - 1, 0.0],
            "deletion_mean": -(out + 1) / 3,
        }
        for name, (out, alone) in curves.items()
    ]


def test_curves_rise_from_nothing_to_everything_in_both_panels(tmp_path):
    figure = drawn(curves_plot(curve_rows(), "toy"), tmp_path)
    lost, regained = figure.axes
    assert legend_of(figure) == ["backward", "greedy", "distiller", "recency"]  # the steepest first
    lines = {name: (one, two) for name, one, two in zip(legend_of(figure), *map(curves_of, figure.axes), strict=True)}
    np.testing.assert_allclose(lines["greedy"][0].get_ydata(), [0, 0.8, 1])
    np.testing.assert_allclose(lines["greedy"][1].get_ydata(), [0, 0.3, 1])
    looks = {(line.get_color(), line.get_linestyle()) for line, _ in lines.values()}
    assert len(looks) == 4 and lines["distiller"][0].get_linewidth() > lines["greedy"][0].get_linewidth()
    for one, two in lines.values():
        assert one.get_color() == two.get_color() and one.get_linestyle() == two.get_linestyle()
    assert "100%" in [label.get_text() for label in lost.get_yticklabels()]
    assert lost.get_xlim() == regained.get_xlim() == (0, 2)
    assert "taken out" in lost.get_xlabel() and "kept" in regained.get_xlabel()


def curves_of(axes):
    return [line for line in axes.get_lines() if len(line.get_xdata()) == 3]


def precision(name, value):
    return {"solver": name, "ap": value, "ap_low": value - 0.02, "ap_high": value + 0.03}


def test_average_precision_has_a_line_per_method_and_yardsticks(tmp_path):
    rows = [precision("oracle", 0.84), precision("random", 0.19), precision("recency", 0.46)]
    rows += [precision("greedy", 0.66), precision("greedy, true process", 0.69), precision("distiller", 0.7)]
    figure = drawn(precision_plot(rows, "toy"), tmp_path)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["recency", "greedy", "distiller"]
    assert sorted(float(line.get_xdata()[0]) for line in axes.get_lines()) == [0.19, 0.84]
    assert {text.get_text() for text in axes.texts} == {"oracle", "random"}
    intervals, filled, _, hollow = axes.collections
    assert sorted(filled.get_offsets().tolist()) == [[0.46, 0], [0.66, 1], [0.7, 2]]
    (dot,) = hollow.get_offsets().tolist()
    assert dot[0] == 0.69 and 0.5 < dot[1] < 1 and to_hex(hollow.get_facecolor()[0]) == "#ffffff"
    assert [segment[:, 0].tolist() for segment in intervals.get_segments()][0] == pytest.approx([0.44, 0.49])
    assert legend_of(figure) == ["with the trained model", "with the true likelihood"]
    assert axes.get_xlim() == (0, 1) and "average precision" in axes.get_xlabel()
    assert legend_of(precision_plot(rows[:4])) == []  # nothing to tell apart
    assert [label.get_text() for label in precision_plot(rows[4:5]).axes[0].get_yticklabels()] == ["greedy"]


def overlap(check, name, value):
    return {
        "check": check,
        "solver": name,
        "overlap": value,
        "overlap_low": value - 0.1,
        "overlap_high": value + 0.1,
        "chance": 0.3,
    }


def test_overlaps_have_a_panel_per_check_and_chance_beside_them(tmp_path):
    rows = [overlap("distiller seeds", "distiller", 0.8), overlap("point process seeds", "recency", 0.5)]
    rows += [overlap("shuffled weights", "recency", 0.4), overlap("point process seeds", "greedy", 0.6)]
    figure = drawn(overlap_plot(rows, "toy"), tmp_path)
    names = [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes]
    assert names == [["distiller"], ["recency", "greedy"], ["recency"]]
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert "seeds of the distiller" in titles[0] and "should be near chance" in titles[2]
    _, found, chance = figure.axes[1].collections
    assert found.get_offsets().tolist() == [[0.5, 0], [0.6, 1]]
    assert chance.get_offsets().tolist() == [[0.3, 0], [0.3, 1]]
    assert legend_of(figure) == ["found", "random sets of the same sizes"]
    assert all(axes.get_xlim() == (0, 1) for axes in figure.axes)


@pytest.mark.parametrize(
    ("counts", "shown"),
    [
        ([200, 1000, 2000, 10_000, 20_000, 10**6], [200, 1000, 10_000, 10**6]),
        ([25, 50, 100], [25, 50, 100]),
        ([7], [7]),
    ],
)
def test_an_axis_of_growth_names_the_counts_whose_names_have_room(tmp_path, counts, shown):
    known = {"axis": "windows", "series": "some", "unit": "GB", "median": 0.5, "low": 0.5, "high": 0.6}
    figure = drawn(scaling_plot([{**known, "x": count} for count in counts]), tmp_path)
    assert figure.axes[0].get_xticks().tolist() == shown
    assert len(figure.axes[0].get_lines()[0].get_xdata()) == len(counts)


@pytest.mark.parametrize(
    "plot", [size_time_plot, curves_plot, precision_plot, overlap_plot, mark_share_plot, length_plot, sizes_plot]
)
def test_nothing_to_draw_is_refused(plot):
    with pytest.raises(ValueError, match="needs at least one .*; got none"):
        plot([])


# --- the case study

MARKS = [
    {
        "label": "Guru",
        "num_events": 1234,
        "share": 0.5,
        "expected": 0.3,
        "recency": 0.45,
        "low": 0.4,
        "high": 0.6,
        "significant": True,
    },
    {
        "label": "Caucus",
        "num_events": 7,
        "share": 0.2,
        "expected": 0.3,
        "recency": 0.45,
        "low": 0.0,
        "high": 0.4,
        "significant": False,
    },
]


def test_left_events_along_training_are_percentages_by_run(tmp_path):
    figure = drawn(left_share_plot({"L_c alone": [(0, 0.5), (10, 0.0)], "L_n alone": [(0, 0.5), (10, 1.0)]}), tmp_path)
    (axes,) = figure.axes
    first, second = axes.get_lines()
    np.testing.assert_allclose(first.get_ydata(), [0.5, 0.0])
    assert axes.get_ylim() == (0, 1) and axes.get_xlabel() == "training step"
    assert "100%" in [label.get_text() for label in axes.get_yticklabels()]
    assert legend_of(figure) == ["L_c alone", "L_n alone"]
    assert first.get_color() != second.get_color() and first.get_linestyle() != second.get_linestyle()


def test_marks_are_named_ordered_and_significance_is_filled(tmp_path):
    figure = drawn(mark_share_plot(MARKS, "toy"), tmp_path)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Caucus (7)", "Guru (1.23k)"]
    filled, hollow, random, recent = axes.collections[1:]
    assert filled.get_offsets().tolist() == [[0.5, 1.0]] and to_hex(filled.get_facecolor()[0]) == COLOURS[0].lower()
    assert hollow.get_offsets().tolist() == [[0.2, 0.0]] and to_hex(hollow.get_facecolor()[0]) == "#ffffff"
    assert random.get_offsets()[:, 0].tolist() == [0.3, 0.3]
    assert recent.get_offsets()[:, 0].tolist() == [0.45, 0.45]
    names = ["distilled: unlike random", "distilled: no difference", "at random", "the last events"]
    assert legend_of(figure) == names
    assert axes.get_title() == "toy"
    assert len(legend_of(mark_share_plot(MARKS[:1]))) == 3  # no entry for what is not there


def test_lengths_have_a_pdf_and_a_cdf(tmp_path):
    figure = drawn(length_plot({"(15, 40)": [0.25, 0.5, 0.25], "(25, 50)": [0.0, 0.5, 0.25, 0.25]}), tmp_path)
    density, cumulative = figure.axes
    np.testing.assert_allclose(density.get_lines()[0].get_ydata(), [0.25, 0.5, 0.25])
    np.testing.assert_allclose(cumulative.get_lines()[1].get_ydata(), [0.0, 0.5, 0.75, 1.0])
    assert legend_of(figure) == ["(15, 40)", "(25, 50)"]
    assert legend_of(length_plot({"only": [1.0]})) == []


def test_slides_show_what_is_rare(tmp_path):
    figure = drawn(slide_plot([10, 85, 4, 1], [70, 10, 5, 10, 5], "toy"), tmp_path)
    ejected, added = figure.axes
    np.testing.assert_allclose([bar.get_height() for bar in ejected.patches], [0.7, 0.1, 0.05, 0.1, 0.05])
    assert ejected.get_yscale() == "log" and "15.0% of slides move 3 or more" in ejected.get_title()
    assert "1.0% of slides" in added.get_title() and "added" in added.get_xlabel()
    assert "1%" in [label.get_text() for label in ejected.get_yticklabels()]


def test_sizes_break_where_windows_are_missing(tmp_path):
    figure = drawn(sizes_plot({3: ([1, 2, 5, 6], [4, 4, 2, 3]), 8: ([0, 1], [1, 2]), 9: ([0], [1])}), tmp_path)
    assert [axes.get_title() for axes in figure.axes if axes.get_visible()] == [
        "sequence 3",
        "sequence 8",
        "sequence 9",
    ]
    x, y = figure.axes[0].get_lines()[0].get_data()
    assert np.isnan(x[2]) and np.isnan(y[2]) and len(x) == 5
