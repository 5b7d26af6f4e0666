"""What is decided about events before anything is trained, how a run is found again, and what its rows mean.

Training itself is tried in test_cli.py.
"""

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch

from ehd_hf import EHDDistiller
from ehd_hf.data.inspection import inspect_events
from ehd_hf.data.reading import read_events
from ehd_hf.data.splits import num_windows
from ehd_hf.data.synthetic import example_log
from ehd_hf.evaluation.scores import OURS
from ehd_hf.training import recipe
from ehd_hf.training.recipe import (
    Costs,
    Run,
    carry_out,
    choose_backbones,
    choose_model,
    describe_choice,
    describe_plan,
    duration,
    estimate_seconds,
    judge,
    make_plan,
    open_run,
    prepare,
)
from helpers import random_sequences as sequences

# --- steps and time


def test_a_plan_grows_with_the_data_within_bounds():
    (small, _), (large, _) = (
        make_plan(sequences(lengths), backbone="lognormmix") for lengths in ([10] * 20, [150] * 3000)
    )
    assert small.training("steps") == [recipe.MTPP_STEPS[0], recipe.DISTILLER_STEPS["ranking"][0]]
    assert large.training("steps") == [recipe.MTPP_STEPS[1], recipe.DISTILLER_STEPS["ranking"][1]]
    assert [plan.stages["point_process"]["data"]["crop_length"] for plan in (small, large)] == [10, 64]
    assert small.training("batch_size")[1] <= num_windows(np.array([10] * 16), sum(small.window)).sum()


PLAN = make_plan(sequences([48] * 100), backbone="lognormmix")[0]
for config, steps in zip(PLAN.stages.values(), (1000, 500), strict=True):
    config["training"]["steps"] = steps


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
    plan, _ = make_plan(sequences([48] * 100), backbone="auto", distiller="none", minutes=2)
    shares = {"point_process-hawkes": 1 / 6, "point_process-lognormmix": 5 / 6}
    assert plan.shares() == pytest.approx(shares)


@pytest.mark.parametrize(
    ("backbone", "ensemble", "names", "shares"),
    [
        ("lognormmix", 3, ["lognormmix", "lognormmix-seed6", "lognormmix-seed7"], [1 / 3] * 3),
        ("hawkes,fullynn", 3, ["hawkes", "fullynn", "fullynn-seed6"], [1 / 11, 5 / 11, 5 / 11]),
        ("fullynn,hawkes", 3, ["fullynn", "hawkes", "fullynn-seed6"], [5 / 11, 1 / 11, 5 / 11]),
        ("hawkes,fullynn,lognormmix", 2, ["hawkes", "fullynn", "lognormmix"], [1 / 11, 5 / 11, 5 / 11]),
    ],
)
def test_an_ensemble_is_of_backbones_and_of_further_seeds_of_a_neural_one(backbone, ensemble, names, shares):
    asked = {"backbone": backbone, "distiller": "none", "seed": 5, "minutes": 2}
    plan, _ = make_plan(sequences([48] * 100), **asked, ensemble=ensemble)
    assert list(plan.backbones.values()) == names and plan.ensemble == ensemble
    assert list(plan.backbones) == [f"point_process-{name}" for name in names]
    assert list(plan.shares().values()) == pytest.approx(shares)
    assert plan.training("seed") == [int((name + "-seed5").split("-seed")[1]) for name in names]


def test_an_ensemble_that_cannot_be_is_refused():
    for number in (1, -3):
        with pytest.raises(ValueError, match=f"at least 2 and at most 2, .*; got {number}. Leave it out"):
            make_plan(sequences([48] * 100), ensemble=number)
    with pytest.raises(ValueError, match="a distiller that orders a search; got ehd.* Take ranking"):
        make_plan(sequences([48] * 100), ensemble=2, distiller="ehd")
    with pytest.raises(ValueError, match="all seeds of hawkes learn the same. Name another too"):
        make_plan(sequences([48] * 100), ensemble=2, backbone="hawkes")
    with pytest.raises(ValueError, match="at most 1, the point processes that are trained; got 2"):
        dataclasses.replace(PLAN, ensemble=2)


def test_backbones_are_those_that_are_known():
    assert choose_backbones("auto", 10) == ["hawkes", "lognormmix"] and choose_backbones("auto", 201) == ["lognormmix"]
    assert choose_backbones("fullynn,lognormmix,fullynn", 10) == ["fullynn", "lognormmix"]
    with pytest.raises(ValueError, match="auto or one of .*lognormmix, fullynn.*got 'bert'"):
        choose_backbones("fullynn,bert", 10)
    said = describe_choice({"hawkes": 2.31, "lognormmix": 2.2})
    assert said.endswith("lognormmix predicts validation events best: NLL 2.200; hawkes 2.310 (0.110 nats more).")


def test_a_backbone_is_as_wide_as_the_events_can_fill_and_sees_recent_marks():
    widths = [choose_model("lognormmix", number)["hidden_size"] for number in (10, 199_999, 200_000, 10**7)]
    assert widths == [32, 32, 64, 64] and choose_model("fullynn", 10)["recent_marks"]
    assert choose_model("hawkes", 10**7) == {"model_type": "hawkes"}
    assert choose_model("attention", 10) == {"model_type": "attention", "hidden_size": 32}


def test_by_default_a_quick_and_a_neural_backbone_are_compared():
    plan, _ = make_plan(sequences([150] * 3000))
    assert list(plan.stages) == ["point_process-hawkes", "point_process-lognormmix", "distiller"]
    hawkes, neural, _ = (config["training"] for config in plan.stages.values())
    assert hawkes["steps"] == 0.2 * neural["steps"] and (hawkes["learning_rate"], neural["learning_rate"]) == (
        0.1,
        0.01,
    )


def test_a_plan_may_have_no_distiller():
    plan, _ = make_plan(sequences([48] * 100), backbone="fullynn", distiller="none")
    assert list(plan.stages) == ["point_process"] and plan.window == PLAN.window
    with pytest.raises(ValueError, match="distiller must be one of ranking, ehd, none; got 'mlp'"):
        make_plan(sequences([48] * 100), distiller="mlp")


def test_more_threads_are_taken_only_where_they_help(monkeypatch):
    plan, splits = make_plan(sequences([12] * 40), backbone="lognormmix")
    monkeypatch.setattr(recipe.os, "sched_getaffinity", lambda process: {0, 1}, raising=False)
    before = torch.get_num_threads()
    for by_threads, chosen in (({1: 1.0, 2: 0.6}, [2, 2]), ({1: 1.0, 2: 0.95}, [1, 1]), ({1: 1.0, 2: 7.0}, [1, 1])):
        monkeypatch.setattr(recipe, "_seconds_per_step", lambda *a, t=by_threads, **k: t[torch.get_num_threads()])
        costs = recipe.trial(splits, plan)
        assert costs.threads == chosen and costs.steps == [by_threads[chosen[0]]] * 2 and costs.scoring > 0
    assert recipe.trial(splits, plan, threads=1).threads == [1, 1] and torch.get_num_threads() == before


@pytest.mark.parametrize("seconds, text", [(4.2, "4 s"), (89, "89 s"), (400, "7 min"), (9000, "2.5 h")])
def test_durations_are_as_precise_as_an_estimate(seconds, text):
    assert duration(seconds) == text


def test_a_plan_is_described_in_words(tmp_path):
    rows = [f"{user},{t}.5,{'ab'[t % 2]}" for user in range(10) for t in range(12)]
    (tmp_path / "log.csv").write_text("user,ts,type\n" + "\n".join(rows) + "\n")
    read = read_events(tmp_path / "log.csv")
    plan, splits = make_plan(read.events)
    run = Run(plan, read.reading.to_dict(), costs=Costs([0.01, 0.01, 0.1], [1, 1, 1], 2.0))
    rows = describe_plan(run, splits, inspect_events(read.events))
    described, models = dict(rows), [text for name, text in rows if name in ("model", "")]
    assert models[0].startswith("hawkes: a Hawkes process") and models[2].endswith("validation events better is kept.")
    assert models[1].endswith("that sees the sequence's own recent marks, of width 32 for 96 events")
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


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """The folder of a small model, and a function that trains it, or goes on."""
    monkeypatch.setattr(recipe, "MTPP_STEPS", (10, 10))
    read = read_events(example_log(24).groupby("service").head(40), time="ts", mark="type", sequence="service")

    def train():
        asked = {"history": 6, "future": 2, "seed": 0, "backbone": "hawkes", "distiller": "none"}
        run, splits = prepare(tmp_path / "model", read, "log", threads=1, **asked)
        if not run.finished:
            carry_out(tmp_path / "model", splits, run, threads=1, progress=False)
        return run.finished

    assert not train() and train()
    return tmp_path / "model", train


def test_what_is_damaged_of_a_finished_model_is_made_again(finished):
    out, train = finished
    for name in ("config.json", "model.safetensors", "reading.json", "results.jsonl", "SHA256SUMS"):
        sound = (out / name).read_bytes()
        for left in (None, b"", sound[:-7] + b"x" + sound[-6:]):
            (out / name).unlink() if left is None else (out / name).write_bytes(left)
            if name in ("config.json", "model.safetensors", "reading.json"):
                with pytest.raises((ValueError, OSError), match=f"{name}.*Repeat its ehd-hf train|{name}"):
                    EHDDistiller.from_pretrained(out)
            elif name == "SHA256SUMS":
                continue  # says less, or names itself: the files are as they were
            assert not train() and train()
            assert name == "results.jsonl" or (out / name).read_bytes() == sound
            EHDDistiller.from_pretrained(out)


def test_what_cannot_be_made_again_is_said(finished):
    out, train = finished
    (out / "config.json").unlink()
    shutil.rmtree(out / "training")
    with pytest.raises(ValueError, match="model has lost what was trained, its folder training. Train in another"):
        train()
    (out / "plan.json").write_text((out / "plan.json").read_text().replace('"seed": 0', '"seed": 1', 1))
    with pytest.raises(ValueError, match="plan.json is not the plan of a training run.*differs from the digest in it"):
        train()


# --- in words


def rows(own, best=2.0, size=3.0, recent=6.0, nothing=0.0, explain=True, marks=0.5):
    scored = [("Poisson + unigram", best + 1, 1.0), ("AR(1) + bigram", best, marks), (OURS, own, 0.5)]
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
