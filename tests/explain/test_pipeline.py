"""EHDDistiller from the outside: every form of input, the same answers; names of checkpoints; bad input."""

import copy
import math

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import ehd_hf
from ehd_hf.data.sequences import load_events
from ehd_hf.explain import explainer as pipeline
from ehd_hf.explain.explainer import EHDDistiller, list_pretrained, load_example
from ehd_hf.explain.explanation import Explanation
from ehd_hf.hub import fetch
from ehd_hf.hub.fetch import CHECKPOINTS, resolve
from ehd_hf.models.ehd import EHDDistillerModel
from ehd_hf.models.perplexity import dppl
from ehd_hf.models.window import Window
from helpers import TINY, from_lists, tiny_fullynn

LABELS = dict(enumerate(("deploy", "check", "alert", "login", "ticket", "restart")))
HISTORY, FUTURE = 7, 4
MOMENT = pd.Timestamp("2026-03-01 08:00:00")


def small_distiller(seed=0, **changes):
    torch.manual_seed(seed)
    mtpp = tiny_fullynn(6, seed, 0.7, id2label=LABELS, time_unit="h").float()  # a process that minds its history
    model = EHDDistillerModel.from_mtpp(mtpp, **TINY, history=HISTORY, future=FUTURE, **changes)
    with torch.no_grad():
        model.distill_head.weight *= 8  # decided answers, some of each kind
        model.distill_head.bias.zero_()
    return model


@pytest.fixture(scope="module")
def explainer():
    return EHDDistiller(small_distiller())


def hours(size, seed=0):
    """Times in hours on the quarter of an hour, ties among them, and marks."""
    generator = np.random.default_rng(seed)
    times = 3.0 + np.cumsum(generator.integers(0, 6, size)) / 4
    return times.tolist(), generator.integers(0, 6, size).tolist()


TIMES, MARKS = hours(HISTORY + FUTURE)
NAMES = [LABELS[mark] for mark in MARKS]
PAIRS = list(zip(TIMES, NAMES, strict=True))
STAMPS = [MOMENT + pd.Timedelta(hours=time) for time in TIMES]
FRAME, STAMPED = (pd.DataFrame({"time": times, "mark": NAMES}) for times in (TIMES, STAMPS))


def close(one, two, tolerance=1e-5):
    """The same answer, up to rounding of the numbers."""
    assert one.distill_mask == two.distill_mask
    for events, others in ((one.history, two.history), (one.future, two.future)):
        assert [(e.position, e.time, e.mark) for e in events] == [(e.position, e.time, e.mark) for e in others]
    numbers = [[e.score for e in a.history] + [a.dppl_left, a.dppl_distilled] for a in (one, two)]
    assert numbers[0] == pytest.approx(numbers[1], abs=tolerance)
    return True


def by_model(model, first=0, origin=TIMES[0]):
    """distill_mask, probability, dppl_left and dppl_distilled that the model itself says of TIMES[first:]."""
    times, marks = torch.tensor([TIMES[first:]]) - origin, torch.tensor([MARKS[first:]])
    window = Window(times, marks, torch.ones_like(marks).bool(), FUTURE)
    mask, probability = model.distill(window)
    drops = (dppl(model.mtpp, window, k.float(), conditioning=model.config.conditioning).item() for k in (~mask, mask))
    return tuple(mask[0].tolist()), probability[0].tolist(), *drops


# --- the answer itself


def test_an_explanation_says_what_the_model_says(explainer):
    answer = explainer.explain(PAIRS, future=FUTURE)
    distill_mask, probability, *drops = by_model(explainer.model)
    assert 0 < sum(distill_mask) < HISTORY  # else this shows little
    assert answer.distill_mask == distill_mask
    assert [event.score for event in answer.history] == pytest.approx(probability, abs=1e-6)
    assert [answer.dppl_left, answer.dppl_distilled] == pytest.approx(drops, abs=1e-6)
    assert answer.epsilon == 0.5 and answer.conditioning == "paper" and answer.time_unit == "h"
    assert answer.seq_id is None and len(answer.future) == FUTURE
    assert [event.time for event in answer.history + answer.future] == TIMES
    assert [event.mark for event in answer.history + answer.future] == NAMES


def test_the_models_own_conditioning_and_epsilon_are_used():
    drops = {}
    for conditioning in ("paper", "survival"):
        model = small_distiller(conditioning=conditioning, epsilon=0.25)
        with torch.no_grad():
            model.distill_head.bias.copy_(torch.tensor([-99.0, 99.0]))  # everything, so that the silence counts
        answer = EHDDistiller(model).explain(PAIRS)
        assert answer.conditioning == conditioning and answer.epsilon == 0.25 and not answer.left
        drops[conditioning] = answer.dppl_left
        assert answer.dppl_left == pytest.approx(by_model(model)[2], abs=1e-5)
    assert abs(drops["paper"] - drops["survival"]) > 0.01


# --- every form of input


FORMS = {
    "pairs as lists": [list(pair) for pair in PAIRS],
    "tuple of pairs": tuple(PAIRS),
    "marks by number": list(zip(TIMES, MARKS, strict=True)),
    "array": np.array([TIMES, MARKS]).T,
    "array of objects": np.array(PAIRS, dtype=object),
    "dict of one sequence": {"times": TIMES, "marks": NAMES},
    "dict of arrays": {"times": np.array(TIMES), "marks": np.array(MARKS)},
    "dict of columns": {"time": TIMES, "mark": NAMES},
    "dict with mixed names": {"times": TIMES, "mark": NAMES},
    "rows": FRAME.to_dict("records"),
    "frame, other index": FRAME.set_index(np.arange(100, 100 + len(FRAME))),
    "frame with an id": FRAME.assign(seq_id="A"),
    "frame of lists": pd.DataFrame({"times": [TIMES], "marks": [NAMES]}),
    "dataset of events": datasets.Dataset.from_dict({"time": TIMES, "mark": NAMES}),
    "dataset of sequences": datasets.Dataset.from_dict({"times": [TIMES], "marks": [NAMES]}),
    "row of a dataset": datasets.Dataset.from_dict({"times": [TIMES], "marks": [NAMES]})[0],
    "EventSequences": from_lists([TIMES], [MARKS], id2label=LABELS),
}


def test_every_form_of_input_gives_the_same_answer(explainer, tmp_path):
    expected = explainer.explain(PAIRS, future=FUTURE)
    FRAME.to_csv(tmp_path / "events.csv", index=False)
    files = {"csv": tmp_path / "events.csv", "csv as text": str(tmp_path / "events.csv")}
    for name, source in (FORMS | files).items():
        answer = explainer.explain(source, future=FUTURE)
        assert isinstance(answer, Explanation), name
        assert close(answer, expected, 0), name
        assert all(type(event.mark) is str for event in answer.history)


def test_timestamps_come_in_many_forms_and_go_out_the_same(explainer):
    forms = {
        "datetimes": [(stamp.to_pydatetime(), name) for stamp, name in zip(STAMPS, NAMES, strict=True)],
        "frame": STAMPED,
        "frame in UTC": STAMPED.assign(time=STAMPED["time"].dt.tz_localize("UTC")),
        "frame of strings": STAMPED.assign(time=STAMPED["time"].astype(str)),
        "dict of datetime64": {"times": np.array(STAMPS, dtype="datetime64[ns]"), "marks": NAMES},
        "dataset": datasets.Dataset.from_pandas(STAMPED),
        "EventSequences": load_events(STAMPED, id2label=LABELS, time_unit="h"),
        "EventSequences in seconds, not the model's hours": load_events(STAMPED, id2label=LABELS),
    }
    numbers = explainer.explain(PAIRS)
    for name, source in forms.items():
        answer = explainer.explain(source)
        assert [pd.Timestamp(event.time) for event in answer.history + answer.future] == STAMPS, name
        assert [event.mark for event in answer.history + answer.future] == NAMES
        assert answer.distill_mask == numbers.distill_mask
        assert answer.dppl_left == pytest.approx(numbers.dppl_left, abs=1e-5)
        assert str(STAMPS[-1]) in str(answer)


def test_timestamps_to_the_microsecond_go_out_as_they_came(explainer):
    stamps = [pd.Timestamp("2009-07-01 00:00:00.000001")]
    for i in range(HISTORY + FUTURE - 1):
        stamps.append(stamps[-1] + pd.Timedelta(days=70 * i, microseconds=123_457 * i))
    answer = explainer.explain(FRAME.assign(time=stamps))
    assert [pd.Timestamp(event.time) for event in answer.history + answer.future] == stamps
    assert answer.to_frame()["time"].tolist() == stamps


def test_a_sequence_that_has_a_name_keeps_it(explainer):
    frame = FRAME.assign(seq_id="A7")
    row = datasets.Dataset.from_dict({"seq_id": ["A7"], "times": [TIMES], "marks": [NAMES]})[0]
    for source in (frame, load_events(frame, id2label=LABELS), row, frame.to_dict("records")):
        answer = explainer.explain(source)
        assert isinstance(answer, Explanation) and answer.seq_id == "A7"


def test_history_and_future_apart_equal_the_whole_sequence(explainer):
    for whole in (PAIRS, FRAME, STAMPED):
        assert close(explainer.explain(history=whole[:HISTORY], future=whole[HISTORY:]), explainer.explain(whole))
    nested = explainer.explain(history=[PAIRS[:HISTORY], PAIRS[:3]], future=[PAIRS[HISTORY:], PAIRS[3:5]])
    assert close(nested[0], explainer.explain(PAIRS)) and close(nested[1], explainer.explain(PAIRS[:5], future=2))
    assert [answer.seq_id for answer in nested] == [0, 1]
    # A future may begin in the instant the history ends.
    tied = [(1.0, "alert"), (2.0, "check"), (2.0, "alert"), (3.0, "login")]
    for events in (tied, [(MOMENT + pd.Timedelta(hours=time), mark) for time, mark in tied]):
        assert close(explainer.explain(history=events[:2], future=events[2:]), explainer.explain(events, future=2))


# --- many at once


MIXED = pd.concat([FRAME.assign(seq_id="B"), FRAME[2:].assign(seq_id="A")])
SEVERAL = {
    "one in a list": ([PAIRS], [0]),
    "one dict in a list": ([{"times": TIMES, "marks": NAMES}], [0]),
    "lists": ([PAIRS, PAIRS[2:]], [0, 1]),
    "frames": ([FRAME, FRAME[2:]], [0, 1]),
    "a dict": ({"seq_id": ["A"] * 11 + ["B"] * 9, "times": TIMES + TIMES[2:], "marks": NAMES + NAMES[2:]}, ["A", "B"]),
    "a frame": (MIXED.sort_values("time", kind="stable"), ["B", "A"]),
}


@pytest.mark.parametrize("form", SEVERAL)
def test_several_sequences_give_a_list_with_their_names(explainer, form):
    source, names = SEVERAL[form]
    answers = explainer.explain(source, future=3)
    assert isinstance(answers, list) and [answer.seq_id for answer in answers] == names
    assert all(close(one, explainer.explain(PAIRS[2 * i :], future=3)) for i, one in enumerate(answers))


def test_a_bar_is_shown_only_for_more_than_a_few_hundred_windows(explainer, monkeypatch):
    shown = []

    class Bar(pipeline.tqdm):
        def __init__(self, *args, disable=False, **kwargs):
            shown.append(not disable)
            super().__init__(*args, disable=True, **kwargs)

    monkeypatch.setattr(pipeline, "tqdm", Bar)
    explainer.explain([PAIRS[:5]] * 300)
    explainer.explain([PAIRS[:5]] * 301)
    explainer.explain(PAIRS, progress=True)
    explainer.explain([PAIRS[:5]] * 301, progress=False)
    assert shown == [False, True, True, False]


# --- only the last events of a history


@pytest.mark.parametrize("history", [1, np.int64(3), HISTORY - 1])
def test_a_number_of_history_events_takes_the_last_ones(explainer, history):
    answer, first = explainer.explain(PAIRS, future=np.int64(FUTURE), history=history), HISTORY - history
    assert [event.time for event in answer.history] == TIMES[first:HISTORY]
    distill_mask, _, left, _ = by_model(explainer.model, first, TIMES[first - 1])
    assert answer.distill_mask == distill_mask and answer.dppl_left == pytest.approx(left, abs=1e-6)
    more_than_there_is = explainer.explain(PAIRS, history=HISTORY + history)
    assert more_than_there_is == explainer.explain(PAIRS)


def test_the_clock_begins_at_a_sequences_start_if_it_is_known(explainer):
    answer = explainer.explain(from_lists([TIMES], [MARKS], id2label=LABELS, starts=[0.5]))
    assert answer.dppl_left == pytest.approx(by_model(explainer.model, origin=0.5)[2], abs=1e-6)


# --- names of checkpoints


@pytest.fixture
def bundled(tmp_path, monkeypatch):
    """Two bundled checkpoints, told apart by their epsilon, and an empty working directory."""
    for name, epsilon in (("alpha", 0.1), ("beta", 0.2)):
        small_distiller(epsilon=epsilon).save_pretrained(tmp_path / "checkpoints" / name)
    (tmp_path / "checkpoints" / "unfinished").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(fetch, "CHECKPOINTS", tmp_path / "checkpoints")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def test_a_folder_with_a_model_goes_before_a_bundled_checkpoint(bundled):
    def epsilon(name):
        return EHDDistiller.from_pretrained(name).model.config.epsilon

    assert list_pretrained() == ["alpha", "beta"] and resolve("someone/model") == "someone/model"
    (bundled / "alpha").mkdir()
    (bundled / "alpha" / "train.csv").write_text("time,mark\n")
    assert epsilon("alpha") == 0.1  # a folder without a model hides nothing
    small_distiller(epsilon=0.3).save_pretrained(bundled / "alpha")
    assert (epsilon("alpha"), epsilon(bundled / "alpha"), epsilon("beta")) == (0.3, 0.3, 0.2)


@pytest.mark.parametrize("name", ["gamma", "someone/gamma", "no/such/folder"])
def test_an_unknown_name_is_answered_with_the_bundled_ones(bundled, name):
    with pytest.raises(OSError, match=f"No model called '{name}'.*bundled alpha, beta"):
        EHDDistiller.from_pretrained(name)


def test_a_saved_explainer_gives_the_same_answers(explainer, tmp_path):
    explainer.save_pretrained(tmp_path / "saved")
    assert EHDDistiller.from_pretrained(tmp_path / "saved").explain(PAIRS) == explainer.explain(PAIRS)
    double = EHDDistiller.from_pretrained(tmp_path / "saved", dtype=torch.float64)
    assert double.model.dtype == torch.float64 and close(double.explain(PAIRS), explainer.explain(PAIRS))


def test_the_front_door_and_the_representation(explainer):
    assert ehd_hf.EHDDistiller is EHDDistiller and ehd_hf.list_pretrained is list_pretrained
    assert repr(explainer) == (
        "EHDDistiller(EHDDistillerModel, 6 marks, trained on 7 events -> 4, epsilon 0.5, paper conditioning)"
    )


# --- bad input


def renamed(labels):
    return from_lists([TIMES], [MARKS], id2label=LABELS | labels)


def reversed_names():
    """A dataset whose mark names stand in another order than the model's."""
    marks = datasets.List(datasets.ClassLabel(names=list(LABELS.values())[::-1]))
    features = datasets.Features({"times": datasets.List(datasets.Value("float64")), "marks": marks})
    return datasets.Dataset.from_dict({"times": [TIMES], "marks": [NAMES]}, features=features)


BAD = {
    "an unknown mark": (lambda: [*PAIRS[:-1], (99.0, "outage")], {}, "sequence: .*outage.*knows the marks deploy, ch"),
    "an unknown number": (lambda: [*zip(TIMES[:-1], MARKS[:-1], strict=True), (99.0, 6)], {}, r"\[0, 6\); got 6"),
    "another vocabulary": (lambda: renamed({5: "outage"}), {}, "vocabulary is not the model.s .*unknown to it: out"),
    "another order": (lambda: renamed({0: "check", 1: "deploy"}), {}, "the same marks in another order"),
    "another order in a dataset": (reversed_names, {}, "not the model's .the same marks in another order"),
    "no sequence at all": (lambda: renamed({}).select([]), {}, "sequence: it has no events"),
    "nothing but future": (lambda: PAIRS[:FUTURE], {}, "has 4 events, all of them in the future of 4: the history"),
    "one piece of many bad": (lambda: [PAIRS, PAIRS[:2]], {}, "sequence 1 has 2 events"),
    "a future of True": (lambda: PAIRS, {"future": True}, "future must be a number of events of at least 1; got True"),
    "half an event": (lambda: PAIRS, {"future": 2.5}, "got 2.5"),
    "a history of none": (lambda: PAIRS, {"history": 0}, 'of events of at least 1, or "all"; got 0'),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_answered_clearly(explainer, case):
    source, options, message = BAD[case]
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        explainer.explain(source(), **options)


def test_as_many_events_as_max_length_are_explained():
    explainer = EHDDistiller(small_distiller(max_length=9))
    assert len(explainer.explain(PAIRS[:9]).history) == 5
    with pytest.raises(ValueError, match="max_length = 9 events; got 11.*history=<number of events>"):
        explainer.explain(PAIRS)
    assert len(explainer.explain(PAIRS, history=5).history) == 5


OTHER = FRAME.assign(mark=NAMES[::-1])  # the same times, so that either pairing would pass
NAMED = pd.concat([FRAME[:HISTORY].assign(seq_id="A"), OTHER[:HISTORY].assign(seq_id="B")])
OTHERWISE_NAMED = pd.concat([OTHER[HISTORY:].assign(seq_id="B"), FRAME[HISTORY:].assign(seq_id="A")])
BAD_PAIRS = {
    "an empty future": (PAIRS[:5], [], "future: .*no events"),
    "an empty history": ([], PAIRS[5:], "history: .*no events"),
    "the future before the history": (PAIRS[5:], PAIRS[:5], "The future must not begin before the history ends"),
    "timestamps and numbers": (STAMPED[:5], PAIRS[5:], "one future per history, with its name, place and kind"),
    "names in another order": (NAMED, OTHERWISE_NAMED, "one future per history, with its name, place and kind"),
    "more futures": ([PAIRS[:5]], [PAIRS[5:], PAIRS[5:]], "one future per history.*got 1 histories, 2 futures"),
    "only a future": (None, PAIRS[5:], "needs a sequence, or the events of both"),
    "a number": (PAIRS[:5], 3, "needs a sequence, or the events of both"),
}


@pytest.mark.parametrize("case", BAD_PAIRS)
def test_a_bad_pair_of_history_and_future_is_answered_clearly(explainer, case):
    history, future, message = BAD_PAIRS[case]
    with pytest.raises(ValueError, match=message):
        explainer.explain(history=history, future=future)


def test_a_question_changes_none_of_its_arguments(explainer):
    sources = FRAME.copy(), np.array([TIMES, MARKS]).T, {"times": list(TIMES), "marks": list(NAMES)}
    before = copy.deepcopy(sources)
    for source in sources:
        explainer.explain(source)
    pd.testing.assert_frame_equal(sources[0], before[0])
    assert (sources[1] == before[1]).all() and sources[2] == before[2]


# --- what comes with the package


@pytest.mark.parametrize("name", list_pretrained())
def test_a_bundled_checkpoint_is_small_has_a_card_and_explains_offline(name):
    folder = CHECKPOINTS / name
    assert sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) < 1e6
    _, front_matter, body = (folder / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    card = yaml.safe_load(front_matter)
    assert {"license", "tags"} <= set(card) and name in body and len(body) > 300
    explainer = EHDDistiller.from_pretrained(name)
    config, model = explainer.model.config, explainer.model
    assert not any(parameter.requires_grad for parameter in model.mtpp.parameters())
    assert model.mtpp.mean_interval != 1.0 and model.dtype == torch.float32
    generator = np.random.default_rng(0)
    size = config.history + config.future
    times = np.cumsum(generator.exponential(model.mtpp.mean_interval.item(), size))
    labels = [config.id2label[mark] for mark in generator.integers(0, len(config.id2label), size)]
    answer = explainer.explain(list(zip(times.tolist(), labels, strict=True)))
    assert len(answer.history) == config.history and len(answer.future) == config.future
    assert math.isfinite(answer.dppl_left) and math.isfinite(answer.dppl_distilled) and str(answer)


def test_examples_are_tables_of_times_and_marks():
    with pytest.raises(ValueError, match="Examples are .*; got 'outages'"):
        load_example("outages")
    assert list(load_example("incidents").columns) == ["time", "mark"]
