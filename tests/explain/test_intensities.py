"""The intensity along a window, with and without the distilled events, against arithmetic."""

import dataclasses

import numpy as np
import pytest
import torch

import ehd_hf.explain.intensities
from ehd_hf.data.windows import Spans
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.explanation import Windows
from ehd_hf.explain.intensities import MAX_MARKS, NUM_POINTS, intensity_curves, intensity_grid
from helpers import AdditiveMTPP, PoissonMTPP

BASE, WEIGHT = (0.5, 0.25, 1.0), torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 0.5], [0.0, 0.0, 0.0]])
TIMES, MARKS = np.array([1.0, 2.0, 4.0, 7.0, 7.5]), np.array([0, 1, 0, 2, 1])


def window(keep=(1, 1, 0, 1, 1), num_future=2, times=TIMES, marks=MARKS, shown=None):
    """One window whose clock starts at 0, and which events of its history are distilled: those not kept."""
    first, origins = np.zeros(1, int), np.zeros(1)
    spans = Spans(times, marks, first, first + len(times), first + num_future, origins, first, first)
    distilled = ~np.array(keep, bool)[: len(times) - num_future]
    return Windows(spans, times if shown is None else shown, np.array([0], object)), distilled


def joined(parts):
    """The windows of all parts, one after the other."""
    spans, shown, names = (list(column) for column in zip(*parts, strict=True))
    starts = np.cumsum([0, *map(len, shown)])[:-1]
    first = np.concatenate([part.first + start for part, start in zip(spans, starts, strict=True)])
    columns = (np.concatenate(column) for column in zip(*spans, strict=True))
    return Windows(Spans(*columns)._replace(first=first), np.concatenate(shown), np.concatenate(names))


def curves_of(model, *windows):
    parts, distilled = zip(*windows, strict=True)
    return intensity_curves(model, joined(parts), distilled)


def rates(time, times, marks, keep):
    """Rates (C,) just before `time`, by plain addition."""
    found = torch.tensor(BASE)
    for event, mark, kept in zip(times, marks, keep, strict=True):
        if event < time and kept:
            found = found + WEIGHT[mark]
    return found.numpy()


def test_curves_are_the_intensities_given_all_events_and_given_those_kept():
    (curves,) = curves_of(AdditiveMTPP(BASE, WEIGHT), window())
    keep = (1, 1, 0, 1, 1)
    for place, time in enumerate(curves.times):
        after = place + 1 < len(curves.times) and curves.times[place + 1] > time and time in TIMES
        moment = time + 1e-9 if after else time
        assert curves.whole[place] == pytest.approx(rates(moment, TIMES, MARKS, (1,) * 5).sum())
        assert curves.left[place] == pytest.approx(rates(moment, TIMES, MARKS, keep).sum())
    assert curves.marks == ("2", "1")  # of the future, in the order they appear
    np.testing.assert_allclose(curves.whole_by_mark[1][-1], rates(7.5, TIMES, MARKS, (1,) * 5)[1])
    np.testing.assert_allclose(curves.left_by_mark[1][-1], rates(7.5, TIMES, MARKS, keep)[1])


def test_windows_of_any_length_get_the_same_curves_together_and_alone(monkeypatch):
    generator = np.random.default_rng(0)
    windows = []
    for count in (3, 9, 5, 30):
        times = np.sort(generator.exponential(size=count).cumsum())
        windows.append(window(generator.random(count) < 0.5, 2, times, generator.integers(3, size=count)))
    model = AdditiveMTPP(BASE, WEIGHT)
    together = curves_of(model, *windows)
    monkeypatch.setattr(ehd_hf.explain.intensities, "_NUMBERS_PER_BATCH", 1)
    for one, other in zip(together, curves_of(model, *windows), strict=True):
        for field in dataclasses.fields(one):
            a, b = getattr(one, field.name), getattr(other, field.name)
            np.testing.assert_array_equal(a, b) if isinstance(a, np.ndarray) else None
            assert isinstance(a, np.ndarray) or a == b


def test_a_grid_shows_every_jump_and_gives_the_future_its_own_points():
    times = np.array([0.0, 5.0, 100.0, 100.5, 101.0])
    query, shown, split = intensity_grid(times, 2)
    assert len(query) == len(shown) and (np.diff(shown) >= 0).all()
    assert shown[0] == 0.0 and shown[split - 1] == 100.0 == shown[split] and shown[-1] == 101.0
    assert len(shown) - split > 50  # though the future is a hundredth of the time
    for time in times[1:-1]:
        assert (shown == time).sum() == 2  # before and after it
    after = (shown == 5.0) & (query > 5.0)
    assert after.sum() == 1 and query[after] < 5.0 + 1e-3


@pytest.mark.parametrize("count", [2, 3, 40, 200, 2000])
def test_the_number_of_points_is_bounded(count):
    times = np.random.default_rng(0).exponential(size=count).cumsum()
    query, shown, split = intensity_grid(times, 1)
    assert 2 <= len(query) <= 4 * NUM_POINTS and np.isfinite(query).all() and 1 <= split < len(shown)
    assert (query >= shown).all()


def test_tied_times_have_a_point_and_no_more():
    query, shown, split = intensity_grid(np.array([3.0, 3.0, 3.0]), 1)
    assert shown.tolist() == [3.0, 3.0] and split == 1 and (query > 3.0).all()
    (curves,) = curves_of(PoissonMTPP([1.0, 2.0]), window((1, 0, 1), 1, np.full(3, 3.0), np.array([0, 1, 0])))
    assert curves.whole.tolist() == curves.left.tolist() == [3.0, 3.0]


def test_curves_keep_the_clock_of_the_events():
    timestamps = np.datetime64("2026-03-01T08:00", "ns") + (TIMES * 3600).astype("timedelta64[s]")
    model = AdditiveMTPP(BASE, WEIGHT)
    model.config.time_unit = "h"
    (number,), (timestamp,) = curves_of(model, window(shown=TIMES + 1e9)), curves_of(model, window(shown=timestamps))
    assert number.times[0] == 1e9 + 1.0 and number.times[-1] == 1e9 + 7.5
    assert timestamp.times[0] == timestamps[0] and timestamp.times[-1] == timestamps[-1]
    np.testing.assert_array_equal(number.whole, timestamp.whole)


def test_only_a_few_marks_of_the_future_get_curves_of_their_own():
    model = PoissonMTPP(np.arange(1.0, 10.0).tolist())
    (curves,) = curves_of(model, window((1,) * 9, 8, np.arange(9.0), np.arange(9)))
    assert curves.marks == ("1", "2", "3", "4", "5") and len(curves.marks) == MAX_MARKS
    assert curves.whole_by_mark.shape == curves.left_by_mark.shape == (MAX_MARKS, len(curves.times))
    np.testing.assert_allclose(curves.whole_by_mark[:, 0], [2, 3, 4, 5, 6])


def test_an_explanation_has_intensities_only_if_they_were_asked_for():
    explainer = EHDDistiller(AdditiveMTPP(BASE, WEIGHT), future=2, share=0.5)
    several = [list(zip((TIMES + shift).tolist(), MARKS.tolist(), strict=True)) for shift in (0, 50)]
    plain, drawn = explainer.explain(several[0]), explainer.explain(several[0], intensities=True)
    assert plain.intensity is None and drawn.intensity is not None
    assert plain == drawn and plain.to_dict() == drawn.to_dict() and "intensity" not in repr(drawn)
    keep = [*(not chosen for chosen in drawn.distill_mask), True, True]
    np.testing.assert_allclose(drawn.intensity.left[-1], rates(7.5, TIMES, MARKS, keep).sum())
    np.testing.assert_allclose(drawn.intensity.whole[-1], rates(7.5, TIMES, MARKS, [True] * 5).sum())
    first, second = explainer.explain(several, intensities=True)
    np.testing.assert_allclose(first.intensity.times + 50, second.intensity.times)
    np.testing.assert_allclose(first.intensity.whole, second.intensity.whole)
