"""An explanation in words, tables and numbers, made by hand."""

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest

from ehd_hf.explanation import Event, Explanation

MARKS = ("deploy", "check", "alert", "ticket")
MOMENT = np.datetime64("2026-03-01T08:00:00", "ns")


def make(distill_mask=(1, 0, 0, 1, 0), num_future=3, moments=False, **changes):
    """Events an hour and a quarter apart: 0, 1.25, 2.5, ..."""
    size = len(distill_mask) + num_future

    def time(i):
        return MOMENT + np.timedelta64(75 * i, "m") if moments else 1.25 * i

    events = [Event(i, time(i), MARKS[i % 4]) for i in range(size)]
    split = len(distill_mask)
    past = tuple(event._replace(probability=(i + 1) / 10) for i, event in enumerate(events[:split]))
    values = {"dppl_left": -1.5, "dppl_distilled": 0.25, "epsilon": 0.5, "time_unit": "h", **changes}
    return Explanation(past, tuple(events[split:]), tuple(map(bool, distill_mask)), **values)


# --- what it holds


def test_an_explanation_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().dppl_left = 0.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().other = 0.0
    assert make() == make() and make() != make(dppl_left=-2.0)


def test_distilled_and_left_share_the_history_between_them():
    explanation = make()
    assert [event.position for event in explanation.distilled] == [0, 3]
    assert [event.position for event in explanation.left] == [1, 2, 4]
    assert explanation.distilled[1] == Event(3, 3.75, "ticket", 0.4)
    assert [event.score for event in explanation.future] == [None, None, None]
    assert sorted(explanation.distilled + explanation.left) == list(explanation.history)


def test_the_numbers_follow_from_the_two_drops():
    assert make().ds == 1.75
    assert make(dppl_left=math.log(0.5) - 1e-9).constraint_met
    assert not make(dppl_left=math.log(0.5)).constraint_met  # "below", not "at"
    assert not make(dppl_left=-1.5, epsilon=0.2).constraint_met  # log(0.2) = -1.609
    assert not make(dppl_left=0.3).constraint_met


@pytest.mark.parametrize(
    ("distill_mask", "expected"),
    [
        ((0, 0, 1, 1), True),
        ((0, 0, 0, 1), True),
        ((1, 1, 1, 1), True),
        ((0, 0, 0, 0), True),  # the last none
        ((1, 0, 0, 0), False),
        ((0, 1, 1, 0), False),
        ((1, 0, 1, 1), False),
        ((1,), True),
    ],
)
def test_whether_the_answer_is_simply_the_last_events(distill_mask, expected):
    assert make(distill_mask).is_most_recent is expected


# --- in words


def test_the_text_of_several_distilled_events():
    assert str(make()) == (
        "2 of 5 past events explain the 3 that followed: deploy at 0 h and ticket at 3.75 h.\n"
        "What followed was check at 6.25 h, alert at 7.5 h and ticket at 8.75 h.\n"
        "Without them, each of these becomes 4.48 times less likely on average "
        "(dppl_left -1.500; asked: below -0.693, met). "
        "From them alone, each is 1.28 times as likely as from the whole history (dppl_distilled 0.250). "
        "They are not simply the most recent."
    )


def test_the_text_of_one_distilled_event_is_grammatical():
    text = str(make((0, 0, 1), num_future=2))
    assert text.startswith("1 of 3 past events explains the 2 that followed: alert at 2.5 h.\n")
    assert "Without it, each" in text and "From it alone" in text
    assert text.endswith("It is simply the most recent of the history.")
    assert str(make((1, 0, 0))).endswith("It is not simply the most recent.")


def test_the_text_when_nothing_is_distilled():
    text = str(make((0, 0, 0), num_future=2, seq_id="A7"))
    assert text == (
        "None of the 3 past events of sequence A7 was found to explain the 2 that followed "
        "(ticket at 3.75 h and deploy at 5 h)."
    )


def test_the_text_says_whether_the_constraint_is_met_and_which_way_the_likelihood_moves():
    assert "below -0.693, met)" in str(make(dppl_left=-0.7))
    assert "2.01 times less likely" in str(make(dppl_left=-0.7))
    assert "below -0.693, not met)" in str(make(dppl_left=-0.6))
    assert "1.35 times more likely" in str(make(dppl_left=0.3)) and "not met" in str(make(dppl_left=0.3))
    assert "below -2.303, not met)" in str(make(epsilon=0.1))
    assert "0.61 times as likely" in str(make(dppl_distilled=-0.5))


def test_the_text_says_when_the_answer_is_the_last_events():
    assert str(make((0, 0, 1, 1))).endswith("They are simply the most recent of the history.")
    assert str(make((0, 1, 1, 0))).endswith("They are not simply the most recent.")


def test_the_text_names_the_sequence():
    assert "the 3 that followed of sequence 12" in str(make(seq_id=12)) or "sequence 12" in str(make(seq_id=12))
    assert "sequence" not in str(make()) and "sequence 0" in str(make(seq_id=0))


def test_the_text_shows_moments_as_people_write_them():
    text = str(make(moments=True))
    assert "deploy at 2026-03-01 08:00:00 and ticket at 2026-03-01 11:45:00." in text


@pytest.mark.parametrize(
    ("unit", "shown"), [(None, "ticket at 3.75."), ("h", "ticket at 3.75 h."), ("1e6 s", "ticket at 3.75 x 1e6 s.")]
)
def test_the_text_shows_numbers_with_their_unit(unit, shown):
    assert shown in str(make(time_unit=unit))


def test_long_lists_are_cut_in_the_text_and_whole_in_the_table():
    explanation = make((1,) * 30, num_future=8)
    first, second, _ = str(explanation).split("\n")
    assert first.count(" at ") == 7 and first.endswith("and 23 more.")
    assert second.count(" at ") == 8 and "more" not in second  # eight fit
    assert len(explanation.to_frame()) == 38 and len(explanation.to_dict()["distilled"]) == 30


@pytest.mark.parametrize("dppl_left", [-1000.0, 1000.0, -30.0, -math.inf, 0.0])
@pytest.mark.parametrize("dppl_distilled", [-1000.0, 1000.0, 0.0])
def test_extreme_drops_still_read_as_text(dppl_left, dppl_distilled):
    text = str(make(dppl_left=dppl_left, dppl_distilled=dppl_distilled))
    assert "likely" in text and f"dppl_left {dppl_left:.3f}" in text
    assert len(text) < 700  # no number of hundreds of digits


# --- as a table


def test_the_table_has_a_row_per_event_with_its_role():
    frame = make().to_frame()
    assert list(frame.columns) == ["position", "time", "mark", "role", "score"]
    assert frame["role"].tolist() == ["distilled", "left", "left", "distilled", "left"] + ["future"] * 3
    assert frame["position"].tolist() == list(range(8)) and frame["mark"].tolist() == list(MARKS * 2)
    assert frame["time"].tolist() == [1.25 * i for i in range(8)]
    assert frame["score"].dtype == np.float64
    assert frame["score"][:5].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5] and frame["score"][5:].isna().all()


def test_the_table_holds_moments_as_moments():
    frame = make(moments=True).to_frame()
    assert pd.api.types.is_datetime64_any_dtype(frame["time"])
    assert frame["time"][4] == pd.Timestamp("2026-03-01 13:00:00")


# --- as plain data


@pytest.mark.parametrize("moments", [False, True])
@pytest.mark.parametrize("seq_id", [None, "A7", 3])
def test_the_dictionary_survives_a_round_trip_through_json(moments, seq_id):
    explanation = make(moments=moments, seq_id=seq_id)
    plain = explanation.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain == json.loads(explanation.to_json(indent=2))
    assert list(plain) == [
        "seq_id", "distilled", "left", "future", "dppl_left", "dppl_distilled", "ds", "epsilon", "conditioning",
        "constraint_met", "is_most_recent", "time_unit",
    ]  # fmt: skip
    time = "2026-03-01T11:45:00.000000000" if moments else 3.75
    assert plain["distilled"][1] == {"position": 3, "time": time, "mark": "ticket", "score": 0.4}
    assert plain["future"][0]["score"] is None and plain["seq_id"] == seq_id
    assert (plain["ds"], plain["constraint_met"], plain["is_most_recent"]) == (1.75, True, False)


def test_the_dictionary_is_plain_whatever_numpy_gave():
    explanation = make(seq_id=np.int64(3))
    explanation = dataclasses.replace(
        explanation, history=tuple(event._replace(time=np.float64(event.time)) for event in explanation.history)
    )
    assert json.loads(json.dumps(explanation.to_dict()))["seq_id"] == 3
    assert json.loads(explanation.to_json())["seq_id"] == 3
