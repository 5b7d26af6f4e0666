"""The picture of an explanation: what stands on the axes, in the legend and in the data that is drawn."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.colors import to_hex

from ehd_hf.models.hawkes import HawkesConfig, HawkesModel
from ehd_hf.present.picture import MAX_LANES, THEMES, _duration, kernel_plot
from explanations import HOSTILE, MARKS, drawn, legend_of, made


@pytest.mark.parametrize(("moments", "theme"), [(False, "light"), (True, "dark")])
def test_a_window_shows_its_events_by_mark_and_what_removing_does(tmp_path, moments, theme):
    explanation = made(moments=moments)
    figure = drawn(explanation.plot(title="why", theme=theme), tmp_path)
    past, future, below_past, below_future, curve, _ = figure.axes
    assert [label.get_text() for label in past.get_yticklabels()] == list(MARKS)
    assert past.get_title(loc="left") == f"history:\n7 events in {'7 h 30 min' if moments else '7.5 h'}"
    assert future.get_title(loc="left") == "future:\n4 events in 5 h"
    assert figure.get_suptitle() == "why" and below_past.get_ylabel() == "expected events\nper h"
    dots = ["distilled; larger: higher score", "left in the history", "what followed"]
    assert legend_of(figure) == [*dots, "expected from the whole history", "without the distilled events"]
    left, distilled = (dots for dots in past.collections if len(dots.get_offsets()) and hasattr(dots, "get_sizes"))
    assert len(left.get_offsets()) == 5 and len(distilled.get_offsets()) == 2
    assert to_hex(distilled.get_facecolor()[0]) == THEMES[theme].distilled.lower()
    assert (distilled.get_sizes() > left.get_sizes()[0]).all()
    # Both curves, in the history and in the future, each on its own stretch.
    for axes, points in ((below_past, slice(11)), (below_future, slice(11, None))):
        whole, without = axes.get_lines()[:2]
        np.testing.assert_allclose(whole.get_ydata(), explanation.intensity.whole[points])
        np.testing.assert_allclose(without.get_ydata(), explanation.intensity.left[points])
        assert whole.get_linestyle() != without.get_linestyle()  # different in grey too
    assert below_past.get_xlabel() == ("" if moments else "time (h)")
    np.testing.assert_allclose(curve.get_lines()[0].get_ydata(), explanation.tradeoff()["explained_share"])
    assert curve.get_title(loc="left") == "2 distilled: 75% (asked: 70%)"


def test_without_intensities_the_scores_are_drawn():
    figure = made(has_intensity=False, has_curve=False).plot()
    scores = figure.axes[2]
    heights = [y for dots in scores.collections if hasattr(dots, "get_sizes") for _, y in dots.get_offsets()]
    assert scores.get_ylabel() == "score" and legend_of(figure)[-1] == "what followed"
    assert sorted(heights) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])


def test_one_mark_has_its_own_intensity():
    explanation = made()
    mark = explanation.intensity.marks[1]
    axes = explanation.plot(mark=mark).axes[2]
    assert axes.get_ylabel() == f"expected\n{mark}\nper h"
    np.testing.assert_allclose(axes.get_lines()[0].get_ydata(), explanation.intensity.whole_by_mark[1][:11])


@pytest.mark.parametrize(
    ("has_intensity", "options", "reason"),
    [
        (True, {"mark": "coffee"}, "mark must be one of .* the future's; got 'coffee'"),
        (False, {"mark": "alert"}, "no intensities. Ask for them"),
        (True, {"theme": "pink"}, "theme must be one of light, dark; got 'pink'"),
    ],
)
def test_what_cannot_be_drawn_is_refused(has_intensity, options, reason):
    with pytest.raises(ValueError, match=reason):
        made(has_intensity=has_intensity).plot(**options)


def test_events_at_the_same_time_are_counted():
    explanation = made(marks=("alert",), has_intensity=False)
    tied = tuple(event._replace(time=1.0) for event in explanation.history[:3])
    figure = replace(explanation, history=tied + explanation.history[3:]).plot()
    assert [text.get_text() for text in figure.axes[0].texts] == ["3x"]


def test_a_hundred_marks_share_a_last_lane(tmp_path):
    figure = drawn(made(110, 5, marks=[f"mark {number}" for number in range(100)]).plot(), tmp_path)
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(names) == MAX_LANES and names[-1] == "77 other marks"
    assert {"mark 2", "mark 5", "mark 10"} <= set(names)  # distilled, or what followed


@pytest.mark.parametrize("marks", [HOSTILE, ("only",)])
@pytest.mark.parametrize("size", [(1, 1), (9, 3), (300, 7)])
def test_any_names_and_sizes_can_be_drawn(tmp_path, marks, size):
    figure = drawn(made(*size, marks=marks, moments=True).plot(title="$\\frac <b> 🚀"), tmp_path)
    assert all(len(label.get_text()) <= 24 for label in figure.axes[0].get_yticklabels())
    explanation = made(1, 1, moments=True, has_intensity=False)
    same = tuple(event._replace(time=explanation.history[0].time) for event in explanation.future)
    drawn(replace(explanation, future=same).plot(), tmp_path)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.25, "0.25 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min 59 s"), (3600, "1 h"), (90061, "1 d 1 h")],
)
def test_durations_read_as_people_say_them(seconds, words):
    begin = np.datetime64("2026-03-01", "ns")
    assert _duration((begin, begin + np.timedelta64(round(seconds * 1e9), "ns")), "h") == words
    assert _duration((1.0, 3.5), "h") == "2.5 h" and _duration((1.0, 3.5), None) == "time 2.5"
    assert _duration((1.0, 3.5), "1e6 s") == "2.5 x 1e6 s"


def test_kernels_show_the_strongest_pairs_and_their_delays(tmp_path):
    config = HawkesConfig(num_marks=3, id2label={0: "deploy", 1: "$alert", 2: "page"}, time_unit="h", num_scales=2)
    model = HawkesModel(config)
    model.fit_time_scale(torch.linspace(0.1, 2.0, 50))
    with torch.no_grad():
        model.raw_weights[1, 2, 0, 1] += 4.0
        model.raw_weights[0, 0, 1, 2] += 3.0
    figure = drawn(kernel_plot(model, top=2), tmp_path)
    axes, children = figure.axes[0], model.branching
    shown = [f"deploy \u2192 $alert: {children[0, 1]:.2g}", f"$alert \u2192 page: {children[1, 2]:.2g}"]
    assert legend_of(figure) == shown and axes.get_xlabel() == "time since the cause (h)"
    slow, fast = axes.get_lines()
    assert slow.get_color() != fast.get_color() and slow.get_linestyle() != fast.get_linestyle()
    assert slow.get_xdata()[slow.get_ydata().argmax()] > fast.get_xdata()[fast.get_ydata().argmax()]
    # On the logarithmic axis, counted in doublings, the area is the expected number of events.
    height = (slow.get_ydata()[1:] + slow.get_ydata()[:-1]) / 2
    area = (height * np.diff(np.log2(slow.get_xdata()))).sum()
    assert area == pytest.approx(children[0, 1].item(), rel=0.01)
    assert all(label.split(" \u2192 ")[1].startswith("page") for label in legend_of(kernel_plot(model, ["page"])))
    with pytest.raises(ValueError, match="effects must be of deploy.*got 'Page'"):
        kernel_plot(model, ["Page"])
    with pytest.raises(ValueError, match="top must be at least 1; got 0"):
        kernel_plot(model, top=0)
