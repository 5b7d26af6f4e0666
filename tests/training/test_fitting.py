"""What a model's rows say in words, and how a run's folder is opened; training itself is tried in test_cli.py."""

import json

import pytest

from ehd_hf.training import recipe as fitting
from ehd_hf.training.recipe import MODEL, SOLVER, judge, open_run, saved_run


def rows(own, best=2.0, size=3.0, recent=6.0, nothing=0.0, explain=True):
    scored = [("Poisson + unigram", best + 1), ("Gamma + bigram", best), (MODEL, own)]
    found = [{"task": "mtpp", "model": name, "nll": nll} for name, nll in scored]
    common = {"task": "explain", "pair": "6-30", "share": 0.7, "explains_nothing": nothing}
    if explain:
        found += [{**common, "solver": "recency", "size": recent}, {**common, "solver": SOLVER, "size": size}]
    return found


def test_a_good_model_is_said_to_be_good_in_one_sentence():
    verdict = judge(rows(own=1.0))
    assert (
        verdict.good and "2.72 times as likely" in verdict.sentence and "NLL 1.000 against 2.000" in verdict.sentence
    )
    assert "3.0 of 30 past events carry 70% of what they explain" in verdict.sentence
    assert "the most recent ones would have to be 6.0." in verdict.sentence and "nothing" not in verdict.sentence


@pytest.mark.parametrize("own", [2.0, 1.99, 5.0, float("nan")])
def test_a_model_no_better_than_averages_is_not_trusted(own):
    verdict = judge(rows(own=own))
    assert not verdict.good and "no better than averages" in verdict.sentence and "minutes" in verdict.advice


@pytest.mark.parametrize(
    "given, good, said",
    [
        ({"recent": 3.0}, True, "about as many as if simply the most recent were taken"),
        ({"nothing": 0.3}, True, "In 30% of the cases the past explains nothing"),
        ({"nothing": 1.0}, False, "no past event helps"),
        ({"explain": False}, True, "explanations were not tried"),
    ],
)
def test_what_is_to_be_said_of_explanations_is_said(given, good, said):
    verdict = judge(rows(own=1.0, **given))
    assert verdict.good == good and said in verdict.sentence


def test_a_free_folder_is_open_and_one_in_use_is_not(tmp_path):
    assert open_run(tmp_path, {"seed": 0}) is None and open_run(tmp_path / "new", {"seed": 0}) is None
    assert saved_run(tmp_path) is None
    (tmp_path / "file.txt").write_text("mine")
    for place in (tmp_path, tmp_path / "file.txt"):
        with pytest.raises(ValueError, match="not a model of ehd-hf train"):
            open_run(place, {"seed": 0})


def test_a_run_is_found_again_by_the_same_request(tmp_path):
    request = {"events": "abc", "seed": 0, "minutes": None, "reading": {"time": "ts", "marks": ["a"]}}
    run = {"request": request, "reading": {}, "plan": {}, "seconds_per_step": [1, 2], "finished": False}
    fitting.begin(tmp_path / "model", run)
    assert open_run(tmp_path / "model", json.loads(json.dumps(request))) == run
    for change, said in (
        ({"minutes": 3}, "minutes: None -> 3"),
        ({"reading": {"time": "when", "marks": ["a"]}}, "time: 'ts' -> 'when'"),
        ({"events": "xyz"}, "other events"),
    ):
        with pytest.raises(ValueError, match=said):
            open_run(tmp_path / "model", {**request, **change})
