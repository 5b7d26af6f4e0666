"""Explanations where other tools expect them: called like a pipeline, as attributions, as tables and files."""

import numpy as np
import pandas as pd
import pytest
import torch

from ehd_hf.data.reading import read_events
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.explanation import explanations_to_frame
from helpers import AdditiveMTPP

WEIGHT = [[0.0, 3.0, 0.2], [0.5, 0.0, 0.1], [0.0, 0.2, 1.0]]
EVENTS = [(0.4, 0), (0.9, 2), (1.1, 0), (2.0, 1), (2.2, 0), (2.3, 1), (2.5, 1), (2.6, 1)]
OTHER = [(0.1, 0), (0.2, 1), (0.5, 2), (0.6, 1), (0.8, 1)]


@pytest.fixture
def explainer():
    return EHDDistiller.from_mtpp(AdditiveMTPP([0.3, 0.2, 0.4], WEIGHT).eval(), solver="leave_one_out", future=3)


@pytest.fixture(scope="module")
def bundled():
    return EHDDistiller.from_pretrained("incidents")


# --- called like a pipeline


def test_a_generator_is_answered_lazily_and_in_batches(explainer):
    drawn = []

    def endless():
        while True:
            drawn.append(1)
            yield EVENTS if len(drawn) % 2 else OTHER

    answers = explainer(endless(), batch_size=3)
    assert drawn == []  # nothing is read before something is asked for
    first, second = next(answers), next(answers)
    assert len(drawn) == 3
    expected = explainer.explain([EVENTS, OTHER])
    assert (first.distill_mask, second.distill_mask) == tuple(answer.distill_mask for answer in expected)


def test_a_generator_of_tables_or_rows_works_too(explainer):
    frames = (pd.DataFrame(events, columns=["time", "mark"]) for events in (EVENTS, OTHER))
    rows = ({"times": [t for t, _ in events], "marks": [m for _, m in events]} for events in (EVENTS, OTHER))
    masks = [answer.distill_mask for answer in explainer.explain([EVENTS, OTHER])]
    assert [answer.distill_mask for answer in explainer(frames)] == masks
    assert [answer.distill_mask for answer in explainer(rows, batch_size=1)] == masks
    assert explainer([EVENTS, OTHER], size=2) == explainer.explain([EVENTS, OTHER], size=2)
    with pytest.raises(ValueError, match="batch_size.*at least 1"):
        next(explainer(iter([EVENTS]), batch_size=0))


# --- attributions


def test_attributions_stand_where_their_events_do(explainer):
    scores = explainer.attribute(EVENTS, future=3)
    assert scores.shape == (8,) and np.isnan(scores[5:]).all() and np.isfinite(scores[:5]).all()
    answer = explainer.explain(EVENTS, future=3)
    assert scores[:5] == pytest.approx([event.score for event in answer.history])
    recent = explainer.attribute(EVENTS, future=3, history=2)
    assert np.isnan(recent[[0, 1, 2, 5, 6, 7]]).all() and np.isfinite(recent[3:5]).all()


def test_leave_one_out_is_what_is_lost_without_an_event(explainer):
    # By hand: with nothing but events 0 and 4 before the future, removing one leaves the other.
    two = [EVENTS[0], EVENTS[4], *EVENTS[5:]]
    scores = explainer.attribute(two, future=3, method="leave_one_out")

    def log_likelihood(kept):
        """The future's, survival from the last history event on."""
        rates, last, total = torch.tensor([0.3, 0.2, 0.4]), two[1][0], 0.0
        for position, (time, mark) in enumerate(two):
            if position < 2:
                rates = rates + torch.tensor(WEIGHT[mark]) if position in kept else rates
                continue
            total += float(rates[mark].log() - rates.sum() * (time - last))
            rates, last = rates + torch.tensor(WEIGHT[mark]), time
        return total / 3

    expected = [log_likelihood({0, 1}) - log_likelihood({1 - position}) for position in (0, 1)]
    # Times count from the first event, where the window's clock begins.
    assert scores[:2] == pytest.approx(expected, abs=1e-6)


def test_several_sequences_give_several_arrays(explainer):
    both = explainer.attribute([EVENTS, OTHER], future=3)
    assert [len(scores) for scores in both] == [8, 5]
    assert np.allclose(both[1], explainer.attribute(OTHER, future=3), equal_nan=True)
    assert isinstance(explainer.attribute([OTHER], future=3), list)
    with pytest.raises(ValueError, match="orders all events, such as backward_elimination.*got 'random_distillation'"):
        explainer.attribute(EVENTS, method="random_distillation")


# --- tables and files


def test_many_explanations_are_one_table(explainer):
    answers = explainer.explain([EVENTS, OTHER], share=0.6)
    frame = explanations_to_frame(answers)
    assert frame["seq_id"].tolist() == [0, 1] and frame["num_history"].tolist() == [5, 2]
    assert frame["positions"].tolist() == [[event.position for event in answer.distilled] for answer in answers]
    assert frame["dppl_left"].tolist() == [answer.dppl_left for answer in answers]
    events = explanations_to_frame(answers, per="event")
    assert len(events) == 13 and list(events.columns[:2]) == ["explanation", "seq_id"]
    roles = events.groupby("explanation")["role"].value_counts()
    assert roles[0, "future"] == roles[1, "future"] == 3
    assert explanations_to_frame([], per="event").empty and explanations_to_frame([]).empty
    with pytest.raises(ValueError, match="explanation or event"):
        explanations_to_frame(answers, per="mark")


def test_dates_are_told_without_a_time_of_day(bundled, tmp_path):
    marks = ["deploy", "alert", "page on-call", "rollback", "ticket", "alert", "deploy", "alert", "restart", "ticket"]
    days = [f"2026-03-{day:02d}" for day in (1, 1, 2, 2, 3, 4, 4, 4, 6, 9)]
    rows = "\n".join(f"{day},{mark}" for day, mark in zip(days, marks, strict=True))
    (tmp_path / "log.csv").write_text(f"time,mark\n{rows}\n")
    read = read_events(tmp_path / "log.csv", time_unit="h")
    assert read.events.resolution == 24.0
    known = bundled.mtpp.config
    from ehd_hf.data.reading import Reading

    reading = Reading(marks=tuple(known.id2label.values()), time_unit="h", resolution=24.0)
    answer = bundled.explain(read_events(tmp_path / "log.csv", reading=reading).events, future=2)
    assert [str(event.time)[:10] for event in answer.history + answer.future] == days
    assert "restart at 2026-03-06 and ticket at 2026-03-09" in str(answer) and "00:00" not in str(answer)
