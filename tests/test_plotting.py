"""Figures: what stands on the axes, in the legend and in the data that is drawn."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from ehd_hf.plotting import (
    COLOURS,
    explanation_plot,
    left_share_plot,
    length_plot,
    mark_share_plot,
    sizes_plot,
    slide_plot,
)

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


def legend_of(figure):
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes if axes.get_legend())]
    return [text.get_text() for legend in legends for text in legend.get_texts()]


def drawn(figure, tmp_path):
    """The figure, saved once: labels that do not fit or do not parse fail here."""
    assert isinstance(figure, Figure)
    figure.savefig(tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").stat().st_size > 0
    return figure


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


@pytest.mark.parametrize("moments", [False, True])
def test_a_window_is_drawn_with_probabilities_roles_and_mark_names(tmp_path, moments):
    times = [1.0, 2.0, 4.0, 5.5]
    frame = pd.DataFrame(
        {
            "position": range(4),
            "time": pd.Timestamp("2026-03-02") + pd.to_timedelta(times, unit="h") if moments else times,
            "mark": ["deploy", "alert", "deploy", "page"],
            "role": ["left", "distilled", "distilled", "future"],
            "probability": [0.1, 0.9, 0.8, None],
        }
    )
    figure = drawn(explanation_plot(frame, "why", "h"), tmp_path)
    chance, line = figure.axes
    assert [label.get_text() for label in line.get_yticklabels()] == ["page", "alert", "deploy"]
    assert legend_of(figure) == ["distilled (2)", "left (1)", "future (1)"]
    assert chance.get_ylabel() == "P(distil)" and chance.get_title() == "why"
    assert line.get_xlabel() == ("time" if moments else "time (h)")
    heights = sorted(y for dots in chance.collections[1::2] for _, y in dots.get_offsets())
    assert heights == [0.1, 0.8, 0.9]


@pytest.mark.parametrize(
    "draw", [lambda: left_share_plot({}), lambda: mark_share_plot([]), lambda: length_plot({}), lambda: sizes_plot({})]
)
def test_nothing_to_draw_is_refused(draw):
    with pytest.raises(ValueError, match="needs at least one .*; got none"):
        draw()
