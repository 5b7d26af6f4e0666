"""An explanation in words, tables and numbers, made by hand."""

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest

from ehd_hf.explain.explanation import FIELDS, Event, Explanation

MARKS = ("deploy", "check", "alert", "ticket")
MOMENT = np.datetime64("2026-03-01T08:00:00", "ns")


def make(distill_mask=(1, 0, 0, 1, 0), num_future=3, moments=False, **changes):
    """Events an hour and a quarter apart: 0, 1.25, 2.5, ..."""
    split = len(distill_mask)
    times = [MOMENT + np.timedelta64(75 * i, "m") if moments else 1.25 * i for i in range(split + num_future)]
    events = [Event(i, time, MARKS[i % 4]) for i, time in enumerate(times)]
    past = tuple(event._replace(score=(i + 1) / 10) for i, event in enumerate(events[:split]))
    values = {"dppl_left": -1.5, "dppl_distilled": 0.25, "dppl_empty": -2.0, "time_unit": "h", **changes}
    if not {"epsilon", "share", "size"} & set(values):
        values["epsilon"] = 0.5
    # A quarter of the drop in the marks, the rest in the times.
    values = {"dppl_left_time": 0.75 * values["dppl_left"], "dppl_left_mark": 0.25 * values["dppl_left"], **values}
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
    assert make().ds == 1.75 and make().explained_share == 0.75
    assert make().limit == math.log(0.5) and make(share=0.5).limit == -1.0 and make(size=2).limit is None
    assert make(dppl_empty=0.0).explained_share is None and make(dppl_empty=0.2).explained_share is None


@pytest.mark.parametrize(
    ("changes", "met", "certified"),
    [
        ({"dppl_left": math.log(0.5) - 1e-4}, True, True),
        ({"dppl_left": math.log(0.5) - 1e-9}, True, False),  # rounding could undo it
        ({"dppl_left": math.log(0.5)}, False, False),  # "below", not "at"
        ({"dppl_left": -1.5, "epsilon": 0.2}, False, False),  # log(0.2) = -1.609
        ({"dppl_empty": 0.1}, True, True),  # an epsilon does not ask what the whole history explains
        ({"share": 0.74}, True, True),
        ({"share": 0.75}, True, False),  # -1.5 is 75 % of -2, with nothing to spare
        ({"share": 0.76}, False, False),
        ({"share": 0.7, "dppl_left": -1.4 - 1e-6}, True, False),
        ({"share": 0.7, "dppl_empty": 0.0}, False, False),  # a share of nothing
        ({"share": 0.7, "dppl_empty": 0.1, "status": "explains_nothing"}, False, False),
        ({"delta": 0.5, "dppl_distilled": -0.5 + 1e-4}, True, True),
        ({"delta": 0.5, "dppl_distilled": -0.5}, True, False),
        ({"delta": 0.5, "dppl_distilled": -0.5 - 1e-4}, False, False),
        ({"delta": 0.5, "dppl_left": -0.1}, False, False),
        ({"size": 2}, True, True),
        ({"size": 3}, False, False),
        ({"size": 2, "delta": 0.1, "dppl_distilled": -0.2}, False, False),
        ({"status": "infeasible"}, True, False),
        ({"dppl_left": math.nan}, False, False),
        ({"dppl_distilled": math.nan, "delta": 0.5}, False, False),
    ],
)
def test_only_what_is_met_with_a_margin_is_certified(changes, met, certified):
    assert (make(**changes).constraint_met, make(**changes).certified) == (met, certified)


# --- how much by how few


def test_the_trade_off_is_a_table_of_sizes():
    table = make(curve=(0.0, -0.5, -1.5, -1.25, -1.75, -2.0)).tradeoff()
    assert list(table.columns) == ["size", "dppl_left", "explained_share"]
    assert table["size"].tolist() == [0, 1, 2, 3, 4, 5]
    assert table["dppl_left"].tolist() == [0.0, -0.5, -1.5, -1.25, -1.75, -2.0]
    assert table["explained_share"].tolist() == [0.0, 0.25, 0.75, 0.625, 0.875, 1.0]
    assert str(table["explained_share"][0]) == str(make(dppl_left=0.0).explained_share) == "0.0"  # not -0.0
    nothing = make((1,), curve=(0.0, 0.5), dppl_empty=0.5).tradeoff()
    assert nothing["dppl_left"].tolist() == [0.0, 0.5] and nothing["explained_share"].isna().all()
    with pytest.raises(ValueError, match='no order of events. Ask for one with refine="prefix" or "prune"'):
        make().tradeoff()


def test_whether_the_answer_is_simply_the_last_events():
    for distill_mask in ((0, 0, 1, 1), (0, 0, 0, 1), (1, 1, 1, 1), (0, 0, 0, 0), (1,)):  # the last none as well
        assert make(distill_mask).is_most_recent is True
    for distill_mask in ((1, 0, 0, 0), (0, 1, 1, 0), (1, 0, 1, 1)):
        assert make(distill_mask).is_most_recent is False


# --- in words


def test_the_text_of_several_distilled_events():
    assert str(make()) == (
        "2 of 5 past events explain the 3 that followed: deploy at 0 h and ticket at 3.75 h.\n"
        "What followed was check at 6.25 h, alert at 7.5 h and ticket at 8.75 h.\n"
        "Without them, each of these becomes 4.48 times less likely on average "
        "(dppl_left -1.500: times -1.125, marks -0.375; asked: below -0.693, met). "
        "From them alone, each is 1.28 times as likely as from the whole history (dppl_distilled 0.250). "
        "They are not simply the most recent.\n"
        "Certified: the future was scored again without these events."
    )


def test_the_text_of_one_event_is_grammatical():
    text = str(make((0, 0, 1), num_future=2))
    assert text.startswith("1 of 3 past events explains the 2 that followed: alert at 2.5 h.\n")
    assert "Without it, each" in text and "From it alone" in text
    assert "It is simply the most recent of the history.\n" in text
    assert "It is not simply the most recent.\n" in str(make((1, 0, 0)))
    text = str(make((0, 0, 1), num_future=1, seq_id="A7"))
    assert text.startswith("1 of 3 past events explains the one that followed in sequence A7: ")
    assert "Without it, what followed becomes 4.48 times less likely (dppl_left" in text and "each" not in text


def test_the_text_when_nothing_is_distilled():
    text = str(make((0, 0, 0), num_future=2, seq_id="A7", dppl_left=0.0))
    assert text == (
        "None of the 3 past events in sequence A7 was found to explain the 2 that followed "
        "(ticket at 3.75 h and deploy at 5 h)."
    )


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"dppl_left": -0.7}, "2.01 times less likely on average (dppl_left -0.700"),
        ({"dppl_left": -0.7}, "below -0.693, met)"),
        ({"dppl_left": -0.6}, "below -0.693, not met)"),
        ({"dppl_left": 0.3}, "1.35 times more likely"),
        ({"epsilon": 0.1}, "below -2.303, not met)"),
        ({"dppl_distilled": -0.5}, "0.61 times as likely"),
        ({"share": 0.7}, "asked: at most -1.400, 70% of what the whole history explains, met)"),
        ({"size": 2}, "asked: 2 events, met)"),
        ({"size": 1, "distill_mask": (0, 0, 1)}, "asked: 1 event, met)"),
        ({"delta": 0.25, "dppl_distilled": -0.5}, "below -0.693, and dppl_distilled at least -0.250, not met)"),
        ({"seq_id": 0}, "that followed in sequence 0:"),
        ({"moments": True}, "deploy at 2026-03-01 08:00:00 and ticket at 2026-03-01 11:45:00."),
        ({"time_unit": None}, "ticket at 3.75."),
        ({"time_unit": "1e6 s"}, "ticket at 3.75 x 1e6 s."),
    ],
)
def test_the_text_says_what_was_asked_when_where_and_how_it_went(changes, shown):
    assert shown in str(make(**changes))


def test_the_text_says_what_was_checked_and_claims_no_more():
    certified = "\nCertified: the future was scored again without these events"
    assert str(make(one_minimal=True)).endswith(f"{certified}, and not one of them can be spared.")
    assert str(make()).endswith(f"{certified}.")
    for other in (make(dppl_left=-0.1), make(dppl_left=math.log(0.5) - 1e-6), make(size=2)):
        assert "ertified" not in str(other)


def test_the_text_says_when_the_target_is_out_of_reach():
    tried, own = (str(make(epsilon=0.1, status="infeasible", curve=curve)) for curve in ((0.0,) * 6, None))
    assert tried.endswith("\nNo set of events that was tried meets the target; this one comes closest.")
    assert own.endswith('misses the target; refine="prune" looks for one that meets it.')


def test_the_text_says_when_the_history_explains_nothing():
    nothing = {"status": "explains_nothing", "share": 0.7, "dppl_empty": math.log(1.5)}
    closing = "\nThe history explains nothing here: without all of it, each of these becomes 1.50 times more likely, "
    closing += "and no events were found without which it is 1.1 times less so."
    empty = str(make((0, 0, 0), dppl_left=0.0, **nothing))
    assert empty.startswith("None of the 3 past events was found to explain") and empty.endswith(closing)
    some = str(make(**nothing))
    assert some.startswith("2 of 5 past events come closest to explaining the 3 that followed: deploy at 0 h")
    assert "asked: 70% of what the whole history explains, not met)" in some and some.endswith(closing)
    assert str(make((0, 1), **nothing)).startswith("1 of 2 past events comes closest to explaining")


def test_long_lists_are_cut_in_the_text_and_whole_in_the_table():
    explanation = make((1,) * 30, num_future=8)
    first, second, *_ = str(explanation).split("\n")
    assert first.count(" at ") == 7 and first.endswith("and 23 more.")
    assert second.count(" at ") == 8 and "more" not in second  # eight fit
    assert len(explanation.to_frame()) == 38 and len(explanation.to_dict()["distilled"]) == 30


@pytest.mark.parametrize("dppl_left", [-1000.0, 1000.0, -30.0, -math.inf, 0.0])
@pytest.mark.parametrize("dppl_distilled", [-1000.0, 1000.0, 0.0])
def test_extreme_drops_still_read_as_text(dppl_left, dppl_distilled):
    text = str(make(dppl_left=dppl_left, dppl_distilled=dppl_distilled))
    assert "likely" in text and f"dppl_left {dppl_left:.3f}" in text
    assert len(text) < 800  # no number of hundreds of digits


def test_the_table_has_a_row_per_event_with_its_role():
    frame = make().to_frame()
    assert list(frame.columns) == ["position", "time", "mark", "role", "score"]
    assert frame["role"].tolist() == ["distilled", "left", "left", "distilled", "left"] + ["future"] * 3
    assert frame["position"].tolist() == list(range(8)) and frame["mark"].tolist() == list(MARKS * 2)
    assert frame["time"].tolist() == [1.25 * i for i in range(8)]
    assert frame["score"].dtype == np.float64
    assert frame["score"][:5].tolist() == [0.1, 0.2, 0.3, 0.4, 0.5] and frame["score"][5:].isna().all()
    times = make(moments=True).to_frame()["time"]
    assert pd.api.types.is_datetime64_any_dtype(times) and times[4] == pd.Timestamp("2026-03-01 13:00:00")


# --- as plain data


@pytest.mark.parametrize("moments", [False, True])
@pytest.mark.parametrize("seq_id", [None, "A7", 3])
def test_the_dictionary_survives_a_round_trip_through_json(moments, seq_id):
    explanation = make(moments=moments, seq_id=seq_id)
    plain = explanation.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain == json.loads(explanation.to_json(indent=2))
    assert {name for name, kind in FIELDS.items() if not isinstance(kind, list)} <= set(plain)
    time = "2026-03-01T11:45:00.000000000" if moments else 3.75
    assert plain["distilled"][1] == {"position": 3, "time": time, "mark": "ticket", "score": 0.4}
    assert plain["future"][0]["score"] is None and plain["seq_id"] == seq_id
    assert (plain["ds"], plain["constraint_met"], plain["is_most_recent"]) == (1.75, True, False)
    assert plain["status"] == "explained" and plain["certified"] is True
    assert plain["one_minimal"] is None and plain["curve"] is None
    asked = make(share=0.7, delta=0.5, one_minimal=True, curve=(0.0, -1.5)).to_dict()
    assert (asked["epsilon"], asked["share"], asked["asked_size"], asked["delta"]) == (None, 0.7, None, 0.5)
    assert asked["curve"] == [0.0, -1.5] and asked["one_minimal"] is True


def test_the_dictionary_is_plain_whatever_numpy_gave():
    explanation = make(seq_id=np.int64(3))
    history = tuple(event._replace(time=np.float64(event.time)) for event in explanation.history)
    explanation = dataclasses.replace(explanation, history=history)
    assert json.loads(json.dumps(explanation.to_dict()))["seq_id"] == 3 == json.loads(explanation.to_json())["seq_id"]
