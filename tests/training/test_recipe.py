"""What is decided about events before anything is trained, how a run is found again, and what its rows mean.

Training itself is tried in test_cli.py.
"""

import dataclasses
import json
import re

import numpy as np
import pytest
import torch

from ehd_hf.data.reading import read_events
from ehd_hf.data.windows import make_windows
from ehd_hf.training import recipe
from ehd_hf.training.recipe import (
    MODEL,
    Costs,
    Run,
    choose_backbones,
    choose_width,
    choose_window,
    describe_choice,
    describe_events,
    describe_plan,
    duration,
    estimate_seconds,
    inspect_events,
    judge,
    make_plan,
    num_windows,
    open_run,
    split_events,
)
from helpers import from_lists


def sequences(lengths, num_marks=3, seed=0, names=None):
    generator = np.random.default_rng(seed)
    times = [np.cumsum(generator.exponential(size=n)) for n in lengths]
    marks = [generator.integers(num_marks, size=n) for n in lengths]
    return from_lists(times, marks, num_marks=num_marks, seq_ids=names, time_unit="h")


# --- windows


@pytest.mark.parametrize(
    "lengths, asked, window",
    [
        ([48] * 9, {}, (30, 6)),
        ([500] * 9, {}, (30, 6)),  # never longer
        ([16] * 9, {}, (10, 2)),
        ([6, 6, 6], {}, (3, 1)),
        ([4, 4, 4], {}, (3, 1)),
        ([1200], {}, (30, 6)),
        ([120], {}, (8, 2)),  # one sequence: a twelfth of it
        ([40, 3], {}, (3, 1)),
        ([48] * 9, {"history": 20}, (20, 4)),
        ([48] * 9, {"future": 10}, (26, 10)),
        ([48] * 9, {"history": 7, "future": 3}, (7, 3)),
    ],
)
def test_the_window_follows_from_the_lengths_and_what_is_asked(lengths, asked, window):
    assert choose_window(np.array(lengths), **asked) == window


def test_windows_are_counted_as_they_are_made():
    events = sequences([5, 9, 4, 7])
    assert num_windows(events.lengths, 5) == len(make_windows(events, future=2, history=3))


# --- splits


def test_sequences_are_split_whole_and_all_of_them():
    events = sequences([12] * 50 + [3] * 10)
    splits, how = split_events(events, 8)
    assert how == "by sequence"
    assert {name: len(split) for name, split in splits.items()} == {"train": 48, "validation": 6, "test": 6}
    assert sorted(name for split in splits.values() for name in split.seq_ids) == list(range(60))
    assert all((split.lengths >= 8).sum() >= 5 for split in splits.values())


def test_the_split_depends_on_names_and_seed_not_on_the_order_of_rows():
    names = [f"user {i}" for i in range(30)]
    forward, _ = split_events(sequences([12] * 30, names=names), 8)
    backward, _ = split_events(sequences([12] * 30, names=names[::-1]), 8)
    other, _ = split_events(sequences([12] * 30, names=names), 8, seed=1)
    assert set(forward["test"].seq_ids) == set(backward["test"].seq_ids) != set(other["test"].seq_ids)


def test_three_long_sequences_are_enough_for_one_each():
    splits, _ = split_events(sequences([9, 9, 9, 2, 2]), 8)
    assert all((split.lengths >= 8).sum() == 1 for split in splits.values())


def test_one_sequence_is_cut_in_time():
    events = sequences([100])
    splits, how = split_events(events, 10)
    assert how == "in time" and [split.num_events for split in splits.values()] == [80, 10, 10]
    assert np.concatenate([split.times for split in splits.values()]).tolist() == events.times.tolist()
    # What came before a part is when its observation began, so that no interval is made up.
    assert splits["test"].starts[0] == events.times[89] and np.isnan(splits["train"].starts[0])
    assert splits["validation"].intervals()[0] == pytest.approx(events.times[80] - events.times[79])


@pytest.mark.parametrize("lengths", [[90], [9], [9, 9], [1] * 50])
def test_too_few_events_are_refused_with_what_is_needed(lengths):
    with pytest.raises(ValueError, match="three sequences of at least 10 events, or one of about 105"):
        split_events(sequences(lengths), 10)


# --- steps and time


def test_a_plan_grows_with_the_data_within_bounds():
    (small, _), (large, _) = make_plan(sequences([10] * 20)), make_plan(sequences([150] * 3000))
    assert small.training("steps") == [recipe.MTPP_STEPS[0], recipe.DISTILLER_STEPS["ranking"][0]]
    assert large.training("steps") == [recipe.MTPP_STEPS[1], recipe.DISTILLER_STEPS["ranking"][1]]
    assert [plan.stages["point_process"]["data"]["crop_length"] for plan in (small, large)] == [10, 64]
    assert small.training("batch_size")[1] <= num_windows(np.array([10] * 16), sum(small.window))


PLAN = make_plan(sequences([48] * 100))[0].with_steps(1000, 500)


def test_the_estimate_is_steps_times_cost_and_some_for_evaluations():
    # 1,000 steps of 0.1 s, 16 evaluations of 1,000 crops: 16 * 1000 / 64 * 0.05 s; 500 of 0.2 s, 6 of 300 windows;
    # 10 s at the end
    expected = 100 + 16 * 1000 / 64 * 0.05 + 100 + 6 * 300 / 64 * 0.1 + 10
    assert estimate_seconds(PLAN, Costs([0.1, 0.2], [1, 1], 10.0)) == pytest.approx(expected)
    assert estimate_seconds(dataclasses.replace(PLAN, minutes=3.0), Costs()) == 180


@pytest.mark.parametrize(
    "asked, distiller, shares",
    [
        ("lognormmix", "none", {"point_process": 1.0}),
        ("fullynn", "ranking", {"point_process": 0.85, "distiller": 0.15}),
        ("fullynn", "ehd", {"point_process": 0.7, "distiller": 0.3}),
        (
            "fullynn,lognormmix",
            "ranking",
            {"point_process-fullynn": 0.425, "point_process-lognormmix": 0.425, "distiller": 0.15},
        ),
    ],
)
def test_most_of_the_time_is_for_the_point_process(asked, distiller, shares):
    plan, _ = make_plan(sequences([48] * 100), backbone=asked, distiller=distiller, minutes=2)
    assert plan.shares() == pytest.approx(shares) and list(plan.shares()) == list(plan.stages)
    assert plan.minutes == 2 and sum(shares.values()) == pytest.approx(1) and plan.window == (6, 30)


def test_hawkes_gets_a_sixth_of_the_time_of_the_point_processes():
    plan, _ = make_plan(sequences([48] * 100), backbone="fullynn,lognormmix", distiller="none", minutes=2)
    first, second = plan.stages.values()
    stages = {"point_process-hawkes": {**first, "model": {"model_type": "hawkes"}}, "point_process-lognormmix": second}
    shares = dataclasses.replace(plan, stages=stages).shares()
    assert list(shares.values()) == pytest.approx([1 / 6, 5 / 6])


def test_backbones_are_those_that_are_known():
    assert choose_backbones("auto")[-1] == "lognormmix" and choose_backbones("fullynn") == ["fullynn"]
    assert choose_backbones("fullynn,lognormmix,fullynn") == ["fullynn", "lognormmix"]
    with pytest.raises(ValueError, match="auto or one of .*lognormmix, fullynn.*got 'bert'"):
        choose_backbones("fullynn,bert")
    assert [choose_width(number) for number in (10, 29_999, 30_000, 10**7)] == [32, 32, 64, 96]
    said = describe_choice({"hawkes": 2.31, "lognormmix": 2.2})
    assert said.endswith("lognormmix predicts validation events best: NLL 2.200; hawkes 2.310 (0.110 nats more).")


def test_a_plan_may_have_no_distiller():
    plan, _ = make_plan(sequences([48] * 100), distiller="none")
    assert list(plan.stages) == ["point_process"] and plan.window == PLAN.window
    with pytest.raises(ValueError, match="distiller must be one of ranking, ehd, none; got 'mlp'"):
        make_plan(sequences([48] * 100), distiller="mlp")


def test_more_threads_are_taken_only_where_they_help(monkeypatch):
    plan, splits = make_plan(sequences([12] * 40))
    monkeypatch.setattr(recipe.os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    before = torch.get_num_threads()
    for by_threads, chosen in (({1: 1.0, 2: 0.6}, [2, 2]), ({1: 1.0, 2: 0.95}, [1, 1]), ({1: 1.0, 2: 7.0}, [1, 1])):
        monkeypatch.setattr(recipe, "_seconds_per_step", lambda *a, t=by_threads, **k: t[torch.get_num_threads()])
        costs = recipe.trial(splits, plan)
        assert costs.threads == chosen and costs.steps == [by_threads[chosen[0]]] * 2 and costs.scoring > 0
    assert recipe.trial(splits, plan, threads=1).threads == [1, 1] and torch.get_num_threads() == before


def test_splits_that_are_given_are_kept_and_must_hold_a_window():
    events = sequences([12] * 6)
    given = {name: events.select([place]) for place, name in enumerate(recipe.SPLITS)}
    splits, how = split_events(events, 8, given=given)
    assert how == "given" and splits == given
    with pytest.raises(ValueError, match="each hold a sequence of at least 13 events; the longest of train has 12"):
        split_events(events, 13, given=given)
    del given["validation"]
    with pytest.raises(ValueError, match="the longest of validation has 0"):
        split_events(events, 8, given=given)


@pytest.mark.parametrize("seconds, text", [(4.2, "4 s"), (89, "89 s"), (400, "7 min"), (9000, "2.5 h")])
def test_durations_are_as_precise_as_an_estimate(seconds, text):
    assert duration(seconds) == text


# --- what may go wrong


def events_of(times, marks, **options):
    return from_lists(times, marks, **options)


HOUR = np.arange(1.0, 13.0) + 0.1 * np.sin(np.arange(12))


@pytest.mark.parametrize(
    "times, marks, said",
    [
        ([HOUR], [[0, 1] * 6], "one sequence only"),
        ([HOUR] * 5, [[0] * 12] * 5, "one kind.*mark column"),
        ([HOUR] * 5, [[0, 1] * 6] * 5, "60 events are few"),
        ([np.ones(12)] * 5, [[0, 1] * 6] * 5, r"equal \(0 h\)"),
        ([np.arange(12.0)] * 5, [[0, 1] * 6] * 5, r"equal \(1 h\)"),
        ([np.cumsum(np.tile([0.01, 0.01, 0.01, 9.0], 3))] * 5, [[0, 1] * 6] * 5, "bursts.*0.01 h.*2.4"),
        ([np.repeat(HOUR[:6], 2)] * 5, [[0, 1] * 6] * 5, "intervals are 0"),
        ([np.repeat(HOUR[:6], 2)] * 5, [np.repeat([0, 1] * 3, 2)] * 5, "30 events repeat the one before"),
        ([HOUR] * 5 + [HOUR[:4]] * 4, [[0, 1] * 6] * 5 + [[0, 1, 0, 1]] * 4, "4 of 9 sequences have fewer than 9"),
        ([HOUR] * 5, [[0, 1] * 5 + [0, 2]] + [[0, 1] * 6] * 4, r"1 mark happens fewer than 20 times \(2\)"),
    ],
)
def test_what_may_go_wrong_is_said(times, marks, said):
    warnings = inspect_events(events_of(times, marks, time_unit="h")).warnings
    assert any(re.search(said, warning) for warning in warnings), warnings


def test_healthy_events_are_not_warned_of():
    assert inspect_events(sequences([40] * 60)).warnings == []


def test_the_figures_are_those_of_the_events():
    figures = inspect_events(events_of([[1.0, 2.0, 4.0], [0.0, 8.0]], [[0, 1, 1], [1, 1]])).figures
    assert (figures["sequences"], figures["events"], figures["marks"]) == (2, 5, 2)
    assert figures["mark_counts"] == {"1": 4, "0": 1} and figures["tied"] == 0.0
    assert figures["interval"]["mean"] == pytest.approx((1 + 2 + 8) / 3) and figures["interval"]["median"] == 2.0


def test_spread_times_are_inspected_as_the_source_has_them(tmp_path):
    rows = [f"{user},2026-03-{day:02d},{'ab'[n % 2]}" for user in range(6) for n, day in enumerate((1, 1, 2, 4, 4, 9))]
    (tmp_path / "log.csv").write_text("user,date,type\n" + "\n".join(rows) + "\n")
    read = read_events(tmp_path / "log.csv")
    findings = inspect_events(read.events)
    assert findings.figures["tied"] == pytest.approx(2 / 5) and findings.figures["interval"]["median"] == 1.0
    assert (findings.figures["from"], findings.figures["to"]) == ("2026-03-01 00:00:00", "2026-03-09 00:00:00")
    described = dict(describe_events(findings, read.reading))
    assert described["times"] == "timestamps, here in days" and described["from, to"] == "2026-03-01, 2026-03-09"
    assert "'date'" in described["columns"]


def test_a_plan_is_described_in_words(tmp_path):
    rows = [f"{user},{t}.5,{'ab'[t % 2]}" for user in range(10) for t in range(12)]
    (tmp_path / "log.csv").write_text("user,ts,type\n" + "\n".join(rows) + "\n")
    read = read_events(tmp_path / "log.csv")
    plan, splits = make_plan(read.events)
    run = Run(plan, read.reading.to_dict(), costs=Costs([0.01, 0.1], [1, 1], 2.0))
    described = dict(describe_plan(run, splits, inspect_events(read.events)))
    assert described["window"] == "7 past events explain the next 2; 24 windows to train on"
    assert described["split"].startswith("by sequence: 8 / 1 / 1") and described["marks"] == "2, from a (60) to b (60)"
    assert described["time"].startswith("about ")


# --- a run


def test_a_free_folder_is_open_and_one_in_use_is_not(tmp_path):
    assert open_run(tmp_path, {"seed": 0}) is None and open_run(tmp_path / "new", {"seed": 0}) is None
    (tmp_path / "file.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "file.txt"):
        with pytest.raises(ValueError, match="not a model of ehd-hf train"):
            open_run(place, {"seed": 0})


def test_a_run_is_found_again_by_the_same_request(tmp_path):
    request = {"events": "abc", "seed": 0, "minutes": None, "reading": {"time": "ts", "marks": ["a"]}}
    run = Run(PLAN, {}, "log", request, Costs([1.0, 2.0], [1, 1], 3.0))
    (tmp_path / "plan.json").write_text(json.dumps(dataclasses.asdict(run)))
    assert open_run(tmp_path, json.loads(json.dumps(request))) == run
    for change, message in (
        ({"minutes": 3}, "minutes: None -> 3"),
        ({"reading": {"time": "when", "marks": ["a"]}}, "time: 'ts' -> 'when'"),
        ({"events": "xyz"}, "other events"),
    ):
        with pytest.raises(ValueError, match=message):
            open_run(tmp_path, {**request, **change})


def test_a_run_by_the_clock_may_be_given_more_minutes(tmp_path):
    run = Run(dataclasses.replace(PLAN, minutes=2.0), {}, "log", {"seed": 0, "minutes": 2.0})
    (tmp_path / "plan.json").write_text(json.dumps(dataclasses.asdict(run)))
    assert open_run(tmp_path, {"seed": 0, "minutes": 5.0}).plan == run.plan
    with pytest.raises(ValueError, match="minutes: 2.0 -> None"):
        open_run(tmp_path, {"seed": 0, "minutes": None})


# --- in words


def rows(own, best=2.0, size=3.0, recent=6.0, nothing=0.0, explain=True, marks=0.5):
    scored = [("Poisson + unigram", best + 1, 1.0), ("AR(1) + bigram", best, marks), (MODEL, own, 0.5)]
    made = [
        {"task": "mtpp", "model": name, "nll": nll, "time_nll": nll - mark, "mark_nll": mark}
        for name, nll, mark in scored
    ]
    common = {"task": "explain", "pair": "6-30", "share": 0.7, "explains_nothing": nothing}
    if explain:
        made += [
            {**common, "solver": "recency", "size": recent},
            {**common, "solver": "distiller+prune", "size": size},
        ]
    return made


def test_a_good_model_is_said_to_be_good_and_in_what():
    verdict = judge(rows(own=1.0))
    assert verdict.good and verdict.sentence == (
        "Each unseen event is 2.72 times as likely under it as under the best trivial model, AR(1) + bigram (NLL "
        "1.000 against 2.000). Times are predicted 2.72 times as well as by the best trivial model (AR(1)); marks "
        "better than by their frequency, but no better than by the best trivial model (bigram). 3.0 of 30 past events "
        "carry 70% of what they explain, where the most recent ones would have to be 6.0."
    )


@pytest.mark.parametrize("own", [2.0, 1.99, 5.0, float("nan")])
def test_a_model_no_better_than_a_trivial_one_is_not_trusted(own):
    verdict = judge(rows(own=own))
    assert not verdict.good and "no better than a trivial model does, AR(1) + bigram (NLL" in verdict.sentence
    assert "Its explanations would say little" in verdict.sentence and "minutes" in verdict.advice
    alone = judge(rows(own=own)[2:])
    assert not alone.good and "No trivial model can be fitted" in alone.sentence


@pytest.mark.parametrize(
    "given, good, said",
    [
        ({"recent": 3.0}, True, "about as many as if simply the most recent were taken"),
        ({"nothing": 0.3}, True, "In 30% of the cases the past explains nothing"),
        ({"nothing": 1.0}, False, "no past event helps"),
        ({"explain": False}, True, "Explanations were not tried"),
    ],
)
def test_what_is_to_be_said_of_explanations_is_said(given, good, said):
    verdict = judge(rows(own=1.0, **given))
    assert verdict.good == good and said in verdict.sentence
