"""One event asked about: causes, explanations, kinds that may explain; causes of every event in files of any size."""

import itertools
import json
import time
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from test_certificates import LABELS, Referee, chosen, fullynn, lognormmix, sequences
from typer.testing import CliRunner

import ehd_hf
from ehd_hf.cli import app
from ehd_hf.data.synthetic import simulated_splits
from ehd_hf.explain import certify
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.many import Work, trace_many
from ehd_hf.models.ensemble import EnsembleModel

LOG = sequences(1, seed=3, longest=14)[0] + [(40.0, "alert"), (41.0, "login"), (41.5, "alert"), (43.0, "restart")]


@pytest.fixture(scope="module")
def explainer():
    return EHDDistiller.from_mtpp(fullynn(2), share=0.6)


@pytest.fixture(scope="module")
def incidents():
    return EHDDistiller.from_pretrained("incidents")


@pytest.fixture(scope="module")
def neural():
    return EHDDistiller.from_mtpp(EHDDistiller.from_pretrained("incidents-paper").mtpp)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    path = tmp_path_factory.mktemp("example") / "events.csv"
    ehd_hf.load_example("incidents").to_csv(path, index=False)
    return path


# --- explanations of one event, one kind, by some kinds


@pytest.mark.parametrize("event", [-2, len(LOG) - 2, 41.5, "alert", "ALER"])
def test_an_event_is_explained_as_if_it_were_the_future(explainer, event):
    answer = explainer.explain(LOG, event=event, history="all")
    expected = explainer.explain(history=LOG[:-2], future=LOG[-2:-1])
    assert answer == expected and answer.future[0].time == 41.5
    assert [one.time for one in explainer.explain(LOG, event=event, history=3).history] == [
        time for time, _ in LOG[-5:-2]
    ]


def test_each_event_of_a_mark_is_explained(explainer):
    answers = explainer.explain(LOG, event="alert", each=True, history=5)
    places = [place for place, (_, mark) in enumerate(LOG) if mark == "alert" and place > 0]
    assert [answer.future[0].time for answer in answers] == [LOG[place][0] for place in places]
    (last,) = explainer.explain([LOG], event="alert", history=5)
    assert answers[-1].curve == pytest.approx(last.curve, abs=1e-5)  # in single precision, another batch
    assert replace(answers[-1], curve=None) == replace(last, curve=None)


def test_of_the_future_one_kind_alone_may_be_asked_about(explainer):
    answer = explainer.explain(LOG, future=4, kind="alert", history="all")
    every = [explainer.explain(LOG, future=4, history="all", epsilon=0.9)]
    assert answer.kind == "alert" and "each alert among the 4 that followed" in str(answer)
    # Re-scored: only the alerts count, each given all before it.
    referee = Referee(explainer.mtpp, answer)
    assert len(answer.future) == 4 and referee.num_future == 4
    window = torch.tensor([[float(event.time) for event in answer.history + answer.future]], dtype=torch.float64)
    marks = [event.mark for event in answer.history + answer.future]
    left = [place for place, inside in enumerate(answer.distill_mask) if not inside]
    total = []
    for kept in (range(len(answer.history)), left):
        kept = [*kept, *range(len(answer.history), len(marks))]
        number = {label: mark for mark, label in LABELS.items()}
        ids = torch.tensor([[number[marks[place]] for place in kept]])
        times = window[:, kept] - window[0, 0]
        # Survival: of the first future event, the silence since the last event of the history is known.
        split = window[:, len(answer.history) - 1] - window[0, 0]
        with torch.no_grad():
            output = referee.mtpp.event_log_prob(
                times, ids, torch.ones_like(ids, dtype=torch.bool), survived_until=split
            )
        total.append(output.log_prob[0, -4:][ids[0, -4:] == number["alert"]].sum() / 2)
    assert answer.dppl_left == pytest.approx(float(total[1] - total[0]), abs=1e-9)
    assert answer.dppl_left != pytest.approx(every[0].dppl_left)


@pytest.mark.parametrize("make", [fullynn, lognormmix])
def test_only_some_kinds_may_explain_and_the_answer_is_nearly_the_smallest(make):
    explainer, exact = EHDDistiller.from_mtpp(make(1), share=0.6), 0
    answers = explainer.explain(sequences(12, seed=5), future=2, only=["alert", "ticket", "log"], history="all")
    for answer in answers:
        assert answer.only == ("alert", "ticket", "login")
        candidates = [event.position for event in answer.history if event.mark in answer.only]
        assert set(chosen(answer)) <= set(candidates)
        referee = Referee(explainer.mtpp, answer)
        everything = set(range(referee.num_history))
        assert answer.dppl_left == pytest.approx(referee.left(chosen(answer)), abs=1e-9)
        assert answer.dppl_empty == pytest.approx(referee.left(candidates), abs=1e-9)
        kept = everything - set(candidates) | set(chosen(answer))
        assert answer.dppl_distilled == pytest.approx(referee.drops(kept)[2], abs=1e-9)
        if answer.status != "explained":
            continue
        meets = [
            size
            for size in range(len(candidates) + 1)
            if any(referee.left(some) <= 0.6 * answer.whole for some in itertools.combinations(candidates, size))
        ]
        exact += len(chosen(answer)) == meets[0]
    explained = sum(answer.status == "explained" for answer in answers)
    assert explained >= 3 and exact >= 0.8 * explained


def test_of_a_long_history_the_events_of_most_weight_are_tried(monkeypatch):
    monkeypatch.setattr(certify, "_LONG", 8)
    monkeypatch.setattr(certify, "_MOST_CANDIDATES", 4)
    explainer = EHDDistiller.from_mtpp(fullynn(1), share=0.6)
    for answer in explainer.explain(sequences(8, seed=7, longest=20), future=2, history="all"):
        referee, tried = Referee(explainer.mtpp, answer), len(answer.curve) - 1
        assert tried == (4 if len(answer.history) > 8 else len(answer.history))
        assert answer.dppl_left == pytest.approx(referee.left(chosen(answer)), abs=1e-9)
        if tried == 4 and answer.certified:
            assert "Only the 4 events of most weight were tried" in str(answer)


def test_small_answers_do_not_change_with_the_candidates_of_a_long_history(neural, monkeypatch):
    events = simulated_splits("incident", {"test": 20}, seed=3)["test"]
    asked = [{"size": 3}, {"epsilon": 0.8}]
    every = [neural.explain(events, history=90, future=3, **one) for one in asked]
    monkeypatch.setattr(certify, "_LONG", 80)
    monkeypatch.setattr(certify, "_MOST_CANDIDATES", 60)
    some = [neural.explain(events, history=90, future=3, **one) for one in asked]
    assert all(len(answer.curve) == 61 for answer in some[1])
    near = [few.dppl_left <= 0.99 * all_.dppl_left for few, all_ in zip(some[0], every[0], strict=True)]
    assert np.mean(near) >= 0.9
    same = [few.status == all_.status for few, all_ in zip(some[1], every[1], strict=True)]
    assert np.mean(same) >= 0.9


def test_three_thousand_events_are_answered_in_seconds(neural, capsys):
    events = simulated_splits("incident", {"test": 20}, seed=3)["test"]
    gaps = np.concatenate([np.diff(times, prepend=0) for times, _ in events])[:3005]
    log = list(zip(np.cumsum(gaps), events.marks[:3005].tolist(), strict=True))
    began = time.process_time()
    answer = neural.explain(log, future=5, history="all", share=0.7)
    assert time.process_time() - began < 30
    assert len(answer.history) == 3000 and answer.status == "explained"
    assert answer.dppl_left == pytest.approx(Referee(neural.mtpp, answer).left(chosen(answer)), abs=1e-9)
    assert "explaining: 100%" in capsys.readouterr().err  # a bar


def test_three_events_are_nearly_always_the_best_three_for_one_event(neural):
    events, near = simulated_splits("incident", {"test": 20}, seed=4)["test"], []
    several = [list(zip(times[-13:], marks[-13:].tolist(), strict=True)) for times, marks in events]
    for answer in neural.explain(several, event=-1, size=3):
        referee = Referee(neural.mtpp, answer)
        best = min(map(referee.left, itertools.combinations(range(12), 3)))
        near.append(answer.dppl_left <= best + 0.01 * abs(best))
        assert (answer.status == "explained") == (answer.dppl_left < 0)
    assert np.mean(near) >= 0.95


def test_a_window_that_may_be_too_short_is_told(incidents):
    log = ehd_hf.load_example("incidents")
    short = incidents.why(log, event="alert", history=3)
    assert "22 earlier events were not looked at" not in str(short) and short.history[0].position == 22
    cause = int(incidents.why(log, event="alert").to_frame().set_index("event").probability.idxmax())
    barely = incidents.why(log, event="alert", history=25 - cause)
    while not sum(one.score for one in barely.history[: len(barely.history) // 5]) > 0.05:
        barely = incidents.why(log, event="alert", history=len(barely.history) - 1)
    assert f"{barely.history[0].position} earlier events were not looked at" in str(barely)
    # Nothing is explained, or the oldest events are part of the answer.
    answers = [incidents.explain(log, event=place, history=5) for place in range(8, 30)]
    for answer in answers:
        oldest = answer.distill_mask[0]
        assert ("earlier events" in str(answer)) == (answer.status == "explains_nothing" or oldest)
    assert any(answer.distill_mask[0] for answer in answers)


@pytest.mark.parametrize(
    "asked, message",
    [
        ({"event": 0}, "the first event of sequence 0 has no history"),
        ({"event": -1, "future": 2}, "event names what is explained; got a future or a kind besides"),
        ({"event": -1, "kind": "alert"}, "a future or a kind besides"),
        ({"each": True}, "each asks about every event of a mark"),
        ({"future": 1, "kind": "deploy"}, "sequence 0 has no 'deploy' in its future"),
        ({"future": 2, "kind": "zzz"}, "no kind of event 'zzz'; the model knows deploy, check"),
        ({"future": 2, "only": ["alert", 17]}, "a kind must be a mark, one of deploy, check, .*; got 17"),
        ({"event": "zzz"}, "no kind of event 'zzz'"),
        ({"event": 99}, "got 99 in sequence 0"),
    ],
)
def test_what_cannot_be_asked_is_refused(explainer, asked, message):
    with pytest.raises(ValueError, match=message):
        explainer.explain(LOG, **asked)


# --- why


def test_the_answer_is_told_in_words_tables_and_pictures(incidents):
    answer = incidents.why(ehd_hf.load_example("incidents"), event="page")
    frame = answer.to_frame()
    assert list(frame) == ["event", "time", "mark", "lag", "probability", "now", "kind"] and len(frame) == 25
    assert frame.probability.clip(lower=0).sum() + answer.p_none == pytest.approx(1)
    best = frame.loc[frame.probability.idxmax()]
    assert best.mark == "alert" == answer.causes[0].mark and best.event == answer.causes[0].position
    assert str(answer).startswith(
        "page on-call at 2026-03-02 19:53:03 was most likely set off by the alert at 19:44 (9"
    )
    assert (answer.event.time - best.time) == best.lag
    told = json.loads(json.dumps(answer.to_dict()))
    assert told["p_none"] == answer.p_none and told["causes"][0]["time"].startswith("2026-03-02T")
    page = answer.to_html()
    assert "most likely set off by the alert" in page and "<title>Why page on-call?</title>" in page
    assert len(answer.plot().axes[0].texts) >= 2
    assert "most likely set off" in answer._repr_html_() and "data:image/png" in answer._repr_html_()
    # Nothing holds an event back in a Hawkes process, much does in a neural one.
    held = EHDDistiller.from_pretrained("incidents-paper").why(ehd_hf.load_example("incidents"), event="page").against
    assert answer.against == () and held and all(one.score < 0 for one in held)


def test_a_first_event_and_one_that_came_by_itself_are_told_so(incidents):
    log = ehd_hf.load_example("incidents")
    first = incidents.why(log, event=0)
    assert first.p_none == 1 and first.history == () and "first event of its sequence" in str(first)
    assert "first event" in first.to_html() and "<img" not in first._repr_html_()
    assert "nothing in the only event before it" in str(incidents.why(log, event=1))
    assert "most likely came by itself" in str(incidents.why(log, event=-1))


def test_marks_cannot_write_html(explainer):
    mtpp = fullynn(2)
    mtpp.config.id2label = {mark: f"<b>{mark}" for mark in range(6)}
    page = EHDDistiller.from_mtpp(mtpp).why([(1.0, 0), (2.0, 1), (2.5, 2)]).to_html()
    assert "<b>1" not in page and "&lt;b&gt;1" in page


def test_an_ensemble_says_how_far_its_models_agree():
    members = [fullynn(1), fullynn(2), fullynn(3)]
    answer = EHDDistiller.from_mtpp(EnsembleModel.of(members)).why(LOG, event="alert")
    alone = [EHDDistiller.from_mtpp(member).why(LOG, event="alert") for member in members]
    assert answer.by_model == tuple(one.probability for one in alone)
    assert "of 3 models put this first" in str(answer)
    frame = answer.to_frame()
    assert (frame.lowest <= frame.highest).all()
    assert frame.probability.clip(lower=0).sum() + answer.p_none == pytest.approx(1)


def test_several_sequences_and_each_event_give_lists(explainer):
    several = sequences(3, seed=1)
    answers = explainer.why(several)
    assert [answer.seq_id for answer in answers] == [0, 1, 2]
    assert answers[1].p_none == explainer.why(several[1]).p_none and explainer.why(several[1]).seq_id is None
    number = sum(mark == "alert" for _, mark in LOG)
    assert len(explainer.why(LOG, event="alert", each=True)) == number


# --- causes in files


def rows_of(traces):
    parts = []
    for name, trace in enumerate(traces):
        frame = trace.to_frame().assign(seq_id=str(name))
        none = pd.DataFrame({"event": range(len(trace)), "probability": trace.p_none, "seq_id": str(name)})
        parts += [frame, none]
    return pd.concat(parts).sort_values(["seq_id", "event", "cause"], na_position="last").reset_index(drop=True)


def test_files_hold_the_causes_of_every_event_and_a_killed_run_goes_on(explainer, tmp_path):
    several = sequences(7, seed=9)
    table = [(name, time, mark) for name, one in enumerate(several) for time, mark in one]
    pd.DataFrame(table, columns=["seq_id", "time", "mark"]).to_csv(tmp_path / "events.csv", index=False)
    expected = rows_of([explainer.trace(one, history=4) for one in several])
    asked = {"history": 4, "at_least": 0.0, "work": Work(rows_per_file=10)}
    done = trace_many(explainer, tmp_path / "events.csv", tmp_path / "causes.parquet", **asked)
    assert done.events == len(table) and done.causes == expected.cause.notna().sum() and done.finished
    for _ in range(2):
        done = trace_many(explainer, tmp_path / "events.csv", tmp_path / "causes", **asked)
        for place in (tmp_path / "causes.parquet", tmp_path / "causes"):
            found = pq.read_table(place).to_pandas()
            assert list(found) == ["seq_id", "event", "cause", "probability", "lag"]
            pd.testing.assert_frame_equal(found, expected[list(found)], check_dtype=False, atol=1e-6)
        assert done.files == len(list((tmp_path / "causes").glob("part-*"))) >= len(table) / 10
        (tmp_path / "causes" / "part-000001.parquet").unlink()  # as if it had not been written yet
    with pytest.raises(ValueError, match="answers to another request"):
        trace_many(explainer, tmp_path / "events.csv", tmp_path / "causes", history=3)
    with pytest.raises(ValueError, match="answers go to a file"):
        trace_many(explainer, tmp_path / "events.csv", tmp_path / "causes.txt")


# --- the command line


def run(*words, code=0):
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == code, result.output
    return result.output


def test_why_is_answered_at_the_command_line(example, tmp_path):
    out = run("why", "incidents", example, "--event", "page", "--out", tmp_path / "why.html")
    assert "nothing before it" in out and "most likely set off by the alert" in " ".join(out.split())
    assert "most likely set off by the alert" in (tmp_path / "why.html").read_text("utf-8")
    run("why", "incidents", example, "--out", tmp_path / "why.csv")
    assert len(pd.read_csv(tmp_path / "why.csv")) == 25
    run("why", "incidents", example, "--event", "4", "--out", tmp_path / "why.png")
    assert (tmp_path / "why.png").read_bytes()[:4] == b"\x89PNG"
    told = json.loads(run("why", "incidents", example, "--event", "2026-03-02 19:53:03", "--json").splitlines()[-1])
    assert told["event"]["mark"] == "page on-call"
    assert "'zzz' is neither a time nor a kind" in run("why", "incidents", example, "--event", "zzz", code=2)
    assert "--out must end in" in run("why", "incidents", example, "--out", tmp_path / "why.doc", code=2)


def test_a_log_is_traced_at_the_command_line(example, tmp_path):
    assert "probable causes of 30 events" in run("trace", "incidents", example, "--out", tmp_path / "causes.parquet")
    assert pq.read_table(tmp_path / "causes.parquet")["cause"].null_count == 30
    out = run("trace", "incidents", example, "--out", tmp_path / "trace.json")
    assert "30 events" in out and json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    beginnings = {"dot": b"digraph", "html": b"<!doctype html>", "png": b"\x89PNG"}
    for ending, beginning in beginnings.items():
        run("trace", "incidents", example, "--out", tmp_path / f"trace.{ending}")
        assert (tmp_path / f"trace.{ending}").read_bytes().startswith(beginning)


def test_what_if_is_answered_at_the_command_line(example):
    out = run("what-if", "incidents", example, "--horizon", "6h", "--without", "deploy", "--samples", "40")
    assert "This is what the model believes" in " ".join(out.split())
    asked = ("--horizon", 2, "--adding", "2026-03-02 19:57:00,deploy", "--samples", 5, "--json")
    told = json.loads(run("what-if", "incidents", example, *asked).splitlines()[-1])
    assert told["num_samples"] == 5 and told["adding"][0]["mark"] == "deploy"
    assert "a time, a comma and a mark" in run(
        "what-if", "incidents", example, "--horizon", 1, "--adding", "x", code=2
    )


def test_one_event_is_explained_at_the_command_line(example):
    out = run("explain", "incidents", example, "--event", "page", "--only", "alert, deploy")
    assert "past alert or deploy events" in " ".join(out.split())
    assert "--event asks about one event" in run("explain", "incidents", example, "--event", 3, "--all", code=2)


def test_what_is_told_is_finite_for_events_at_one_time(explainer):
    answer = explainer.why([(1.0, "alert"), (1.0, "login"), (1.0, "alert"), (1.0, "restart")])
    assert np.isfinite([*answer.probability, answer.p_none]).all()
    assert "at the same time" in str(answer) or answer.p_none > 0.5
