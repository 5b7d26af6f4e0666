"""The two values of a question: which windows, and what is asked of them. Against plain loops and by hand."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from ehd_hf.models.perplexity import dppl, dppl_parts, log_perplexity, log_perplexity_of_masks
from ehd_hf.models.question import Question
from ehd_hf.models.window import Window, most_recent, places_of
from helpers import random_window, slow_log_perplexity, tiny_fullynn

DROPS = st.floats(-5, 5)
TARGETS = {"epsilon": st.floats(0.01, 1.0), "share": st.floats(0.01, 1.0), "size": st.integers(1, 5)}
QUESTIONS = st.one_of(
    st.builds(Question, **{name: values}, delta=st.none() | st.floats(0, 3)) for name, values in TARGETS.items()
)


# --- questions


@given(QUESTIONS, st.lists(st.tuples(DROPS, DROPS, DROPS), min_size=1, max_size=5), st.floats(0, 0.5))
def test_numbers_arrays_and_tensors_are_judged_alike(question, rows, margin):
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    tensors = [torch.from_numpy(column) for column in columns]
    one_by_one = [bool(question.met(*row, margin)) for row in rows]
    assert question.met(*columns, margin).tolist() == question.met(*tensors, margin).tolist() == one_by_one
    limits = [question.limit(row[2]) for row in rows]
    assert question.limit(columns[2]).tolist() == question.limit(tensors[2]).tolist() == limits


@given(QUESTIONS, DROPS, DROPS, DROPS, st.floats(0, 0.5))
def test_a_question_is_met_as_its_definition_says(question, left, distilled, empty, margin):
    if question.epsilon is not None:
        expected = left < math.log(question.epsilon) - margin  # strictly below
    else:
        expected = question.size is not None or left <= question.share * empty - margin  # at most
    if question.delta is not None:
        expected = expected and distilled >= margin - question.delta
    assert question.met(left, distilled, empty, margin) == expected


def test_an_epsilon_is_strict_and_a_share_and_a_delta_are_not():
    half, share, enough = Question(epsilon=0.5), Question(share=0.5), Question(share=0.5, delta=0.25)
    assert not half.met(math.log(0.5), 0.0, -1.0) and half.met(math.nextafter(math.log(0.5), -1), 0.0, -1.0)
    assert share.met(-0.5, 0.0, -1.0) and not share.met(math.nextafter(-0.5, 0), 0.0, -1.0)
    assert not share.met(-0.5, 0.0, -1.0, margin=1e-5) and share.met(-0.5 - 1e-5, 0.0, -1.0, margin=1e-5)
    assert enough.met(-0.5, -0.25, -1.0) and not enough.met(-0.5, math.nextafter(-0.25, -1), -1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "one of epsilon, share and size; got none"),
        ({"epsilon": 0.5, "size": 2}, "one of epsilon, share and size; got 0.5 and 2"),
        ({"epsilon": 0.0}, r"epsilon must lie in \(0, 1\]; got 0.0"),
        ({"share": 1.5}, r"share must lie in \(0, 1\]; got 1.5"),
        ({"share": math.nan}, r"share must lie in \(0, 1\]; got nan"),
        ({"epsilon": True}, "epsilon must be a number; got True"),
        ({"size": 0}, "size must be a number of events of at least 1; got 0"),
        ({"size": 1.5}, "at least 1; got 1.5"),
        ({"size": "2"}, "size must be a number of events of at least 1; got '2'"),
        ({"share": 0.5, "delta": -0.1}, "delta must be at least 0; got -0.1. It is a loss"),
        ({"share": 0.5, "delta": math.nan}, "delta must be at least 0; got nan"),
        ({"share": 0.5, "conditioning": "both"}, "conditioning must be one of paper, survival; got 'both'"),
        ({"share": 0.5, "refine": "bisect"}, "refine must be one of none, prefix, prune; got 'bisect'"),
        ({"share": 0.5, "event": 1, "kind": 2}, "one event or about one kind; got event 1 and kind 2"),
    ],
)
def test_a_bad_question_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Question(**options)


def test_a_question_says_what_is_asked():
    share, epsilon = Question(share=0.7, delta=0.0), Question(epsilon=0.5, refine="prefix")
    assert (share.label, epsilon.label) == ("share 0.7, delta 0.0", "epsilon 0.5")
    assert [one.prunes for one in (share, epsilon, Question(size=2))] == [True, False, False]
    assert share.asked == {"epsilon": None, "share": 0.7, "size": None, "delta": 0.0, "conditioning": "paper"}
    assert share.effect == "without it, 70% of what the whole history explains is lost"
    assert epsilon.effect == "without it, each future event is less than 0.5 times as likely on average"
    assert Question(size=2).effect == "2 events"


# --- a part of the future


def padded_window():
    """Windows with holes in the history and padding behind the future."""
    window = random_window(3, 5, 4, 3, 7)
    window.mask[0, 2], window.mask[1, :2], window.mask[2, -2:] = False, False, False
    return window


@pytest.mark.parametrize("rebuilder", ["gate", "select", "compact"])
@pytest.mark.parametrize("question", [{"event": 0}, {"event": 1}, {"event": -1}, {"kind": 1}], ids=str)
def test_a_part_of_the_future_is_scored_as_a_loop_over_its_events(question, rebuilder):
    model, window = tiny_fullynn(3, scale=0.5).requires_grad_(False), padded_window()
    window.marks[:, 6] = 1  # every window has an event of the kind
    asked = Question(share=0.5, **question).about(window)
    keep = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0)) < 0.5
    drops = dppl(model, asked, keep.double(), rebuilder=rebuilder)
    torch.testing.assert_close(dppl_parts(model, asked, keep.double()).total, drops)
    many = log_perplexity_of_masks(model, asked, keep.flatten(0, 1), torch.arange(3).repeat(2)).view(2, 3)
    torch.testing.assert_close(log_perplexity(model, asked) - many, drops)
    for row in range(3):
        future = [i for i in range(4) if window.mask[row, 5 + i]]
        of_kind = [place for place, i in enumerate(future) if window.marks[row, 5 + i] == 1]
        chosen = of_kind if "kind" in question else [range(len(future))[question["event"]]]
        assert asked.num_scored[row] == len(chosen)
        full = slow_log_perplexity(model, window, row, [1] * 5, asked=chosen).item()
        for sample in range(2):
            expected = full - slow_log_perplexity(model, window, row, keep[sample, row], asked=chosen).item()
            assert drops[sample, row].item() == pytest.approx(expected, abs=1e-9)


def test_all_of_the_future_is_asked_about_by_default():
    model, window = tiny_fullynn(3, scale=0.5), padded_window()
    assert Question(share=0.5).about(window) is window
    every = window._replace(scored=torch.ones(3, 4, dtype=torch.bool))
    assert torch.equal(log_perplexity(model, every), log_perplexity(model, window))
    assert every.num_scored.tolist() == window.num_scored.tolist() == [4, 4, 2]


# --- windows


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=4), st.integers(0, 7))
def test_the_most_recent_events_are_those_of_a_loop(rows, size):
    history, sizes = np.array(rows), np.arange(len(rows)) % (size + 1)
    expected = np.zeros_like(history)
    for row in range(len(rows)):
        events = np.flatnonzero(history[row])
        expected[row, events[max(len(events) - sizes[row], 0) :]] = True
    assert (most_recent(history, sizes) == expected).all()
    assert torch.equal(most_recent(torch.from_numpy(history), torch.from_numpy(sizes)), torch.from_numpy(expected))


def test_places_of_events_follow_the_scores_and_ties_the_order():
    scores = torch.tensor([[0.5, 0.5, 2.0, 9.0]])
    history = torch.tensor([[True, True, True, False]])
    assert places_of(scores, history).tolist() == [[1, 2, 0, 3]]
    alike = places_of(torch.zeros(2, 1, 300), torch.ones(1, 300, dtype=torch.bool))  # many, and of many scores at once
    assert torch.equal(alike, torch.arange(300).expand(2, 1, -1))


def test_rows_of_windows_keep_everything_a_window_has():
    window = padded_window()._replace(scored=torch.rand(3, 4, generator=torch.Generator().manual_seed(0)) < 0.5)
    picked = window.rows(torch.tensor([2, 0, 2]))
    for name in ("times", "marks", "mask", "scored", "history", "num_scored", "split_time"):
        assert torch.equal(getattr(picked, name), getattr(window, name)[[2, 0, 2]])
    assert picked.num_future == 4 and picked.num_history == 5
    assert window.to(torch.float32).times.dtype == torch.float32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_future": 0}, "num_future must be a number from 1 to 9, all events; got 0"),
        ({"num_future": 2.0}, "got 2.0"),
        ({"times": torch.zeros(3, 9).long()}, "times must be floating point, .*; got torch.int64"),
        ({"marks": torch.zeros(3, 8).long()}, r"must all be \(B, T\); got .*marks \(3, 8\)"),
        ({"mask": [[True] * 9] * 3}, "must be tensors; got Tensor, Tensor, list"),
    ],
)
def test_a_bad_window_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        Window.check(padded_window()._replace(**change))


def test_a_keep_mask_that_is_no_tensor_is_refused():
    with pytest.raises(ValueError, match="must be tensors; got Tensor, Tensor, Tensor, list"):
        padded_window().check([[1.0] * 5] * 3)
