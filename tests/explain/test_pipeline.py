"""EHDDistiller from the outside: every form of input, the same answers; names of checkpoints; bad input."""

import datetime
import math

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
import yaml

import ehd_hf
from ehd_hf.data.export import export_windows
from ehd_hf.data.sequences import EventSequences, load_events
from ehd_hf.explain import explainer as pipeline
from ehd_hf.explain.explainer import EHDDistiller, list_pretrained, load_example
from ehd_hf.explain.explanation import Explanation
from ehd_hf.hub import fetch
from ehd_hf.hub.fetch import CHECKPOINTS, resolve
from ehd_hf.models.ehd import EHDDistillerModel
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.models.perplexity import dppl
from ehd_hf.models.window import Window

LABELS = {0: "deploy", 1: "check", 2: "alert", 3: "login", 4: "ticket", 5: "restart"}
HISTORY, FUTURE = 7, 4
MOMENT = pd.Timestamp("2026-03-01 08:00:00")


def small_distiller(seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {"embedding_size": 5, "hidden_size": 8, "num_components": 9, "num_layers": 1}
    mtpp = FullyNNModel(FullyNNConfig(num_marks=6, id2label=LABELS, time_unit="h", **sizes))
    with torch.no_grad():
        for parameter in mtpp.parameters():
            parameter += 0.7 * torch.randn_like(parameter)  # a process that minds its history
    config = {"input_size": 10, "hidden_size": 16, "attention_size": 8, "num_heads": 2, "feed_forward_size": 12}
    config |= {"num_encoder_layers": 1, "num_decoder_layers": 1, "history": HISTORY, "future": FUTURE}
    model = EHDDistillerModel.from_mtpp(mtpp, **config, **changes)
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


def close(one, two, tolerance=1e-5):
    """The same answer, up to rounding of the numbers."""
    assert one.distill_mask == two.distill_mask
    for name in ("history", "future"):
        events, others = getattr(one, name), getattr(two, name)
        assert [(e.position, e.time, e.mark) for e in events] == [(e.position, e.time, e.mark) for e in others]
    chances = [[event.score for event in answer.history] for answer in (one, two)]
    assert chances[0] == pytest.approx(chances[1], abs=tolerance)
    assert one.dppl_left == pytest.approx(two.dppl_left, abs=tolerance)
    assert one.dppl_distilled == pytest.approx(two.dppl_distilled, abs=tolerance)
    return True


# --- the answer itself


def test_an_explanation_says_what_the_model_says(explainer):
    answer = explainer.explain(PAIRS, future=FUTURE)
    times = torch.tensor([TIMES]) - TIMES[0]
    marks, mask = torch.tensor([MARKS]), torch.ones(1, len(TIMES), dtype=torch.bool)
    distill_mask, probability = explainer.model.distill(Window(times, marks, mask, FUTURE))
    assert 0 < distill_mask.sum() < HISTORY  # else this shows little
    assert answer.distill_mask == tuple(distill_mask[0].tolist())
    assert [event.score for event in answer.history] == pytest.approx(probability[0].tolist(), abs=1e-6)
    left, distilled = (
        dppl(explainer.model.mtpp, Window(times, marks, mask, FUTURE), keep.float()).item()
        for keep in (~distill_mask, distill_mask)
    )
    assert (answer.dppl_left, answer.dppl_distilled) == pytest.approx((left, distilled), abs=1e-6)
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
        times, marks = torch.tensor([TIMES]) - TIMES[0], torch.tensor([MARKS])
        window = Window(times, marks, torch.ones_like(marks).bool(), FUTURE)
        expected = dppl(model.mtpp, window, torch.zeros(1, HISTORY), conditioning=conditioning).item()
        drops[conditioning] = answer.dppl_left
        assert answer.dppl_left == pytest.approx(expected, abs=1e-5)
    assert abs(drops["paper"] - drops["survival"]) > 0.01


# --- every form of input


def numeric_forms(tmp_path):
    frame = pd.DataFrame({"time": TIMES, "mark": NAMES})
    frame.to_csv(tmp_path / "events.csv", index=False)
    frame.to_parquet(tmp_path / "events.parquet", index=False)
    frame.to_json(tmp_path / "events.jsonl", orient="records", lines=True)
    return {
        "pairs": PAIRS,
        "pairs as lists": [list(pair) for pair in PAIRS],
        "tuple of pairs": tuple(PAIRS),
        "marks by number": list(zip(TIMES, MARKS, strict=True)),
        "array": np.array([TIMES, MARKS]).T,
        "array of objects": np.array(PAIRS, dtype=object),
        "dict of one sequence": {"times": TIMES, "marks": NAMES},
        "dict of arrays": {"times": np.array(TIMES), "marks": np.array(MARKS)},
        "dict of columns": {"time": TIMES, "mark": NAMES},
        "dict with mixed names": {"times": TIMES, "mark": NAMES},
        "rows": frame.to_dict("records"),
        "long frame": frame,
        "long frame, other index": frame.set_index(np.arange(100, 100 + len(frame))),
        "long frame with an id": frame.assign(seq_id="A"),
        "list frame": pd.DataFrame({"times": [TIMES], "marks": [NAMES]}),
        "dataset of events": datasets.Dataset.from_dict({"time": TIMES, "mark": NAMES}),
        "dataset of sequences": datasets.Dataset.from_dict({"times": [TIMES], "marks": [NAMES]}),
        "row of a dataset": datasets.Dataset.from_dict({"times": [TIMES], "marks": [NAMES]})[0],
        "EventSequences": EventSequences.from_lists([TIMES], [MARKS], id2label=LABELS),
        "csv": tmp_path / "events.csv",
        "csv as text": str(tmp_path / "events.csv"),
        "parquet": tmp_path / "events.parquet",
        "jsonl": tmp_path / "events.jsonl",
    }


def test_every_form_of_input_gives_the_same_answer(explainer, tmp_path):
    expected = explainer.explain(PAIRS, future=FUTURE)
    for name, source in numeric_forms(tmp_path).items():
        answer = explainer.explain(source, future=FUTURE)
        assert isinstance(answer, Explanation), name
        assert close(answer, expected, 0), name
        assert all(type(event.mark) is str for event in answer.history)


def test_moments_come_in_many_forms_and_go_out_the_same(explainer, tmp_path):
    frame = pd.DataFrame({"time": STAMPS, "mark": NAMES})
    frame.to_csv(tmp_path / "moments.csv", index=False)
    forms = {
        "pairs": list(zip(STAMPS, NAMES, strict=True)),
        "datetimes": [(stamp.to_pydatetime(), name) for stamp, name in zip(STAMPS, NAMES, strict=True)],
        "ISO strings": [(stamp.isoformat(), name) for stamp, name in zip(STAMPS, NAMES, strict=True)],
        "frame": frame,
        "frame in UTC": frame.assign(time=frame["time"].dt.tz_localize("UTC")),
        "frame of strings": frame.assign(time=frame["time"].astype(str)),
        "dict": {"times": STAMPS, "marks": NAMES},
        "dict of datetime64": {"times": np.array(STAMPS, dtype="datetime64[ns]"), "marks": NAMES},
        "dataset": datasets.Dataset.from_pandas(frame),
        "EventSequences": load_events(frame, id2label=LABELS, time_unit="h"),
        "csv": tmp_path / "moments.csv",
    }
    numbers = explainer.explain(PAIRS)
    for name, source in forms.items():
        answer = explainer.explain(source)
        assert [pd.Timestamp(event.time) for event in answer.history + answer.future] == STAMPS, name
        assert [event.mark for event in answer.history + answer.future] == NAMES
        assert answer.distill_mask == numbers.distill_mask
        assert answer.dppl_left == pytest.approx(numbers.dppl_left, abs=1e-5)
        assert str(STAMPS[-1]) in str(answer)


def test_moments_to_the_microsecond_go_out_as_they_came():
    stamps = [pd.Timestamp("2009-07-01 00:00:00.000001")]
    for i in range(HISTORY + FUTURE - 1):
        stamps.append(stamps[-1] + pd.Timedelta(days=70 * i, microseconds=123_457 * i))
    answer = EHDDistiller(small_distiller()).explain(pd.DataFrame({"time": stamps, "mark": NAMES}))
    assert [pd.Timestamp(event.time) for event in answer.history + answer.future] == stamps
    assert answer.to_frame()["time"].tolist() == stamps


def test_event_sequences_in_another_unit_are_not_taken_for_the_models(explainer):
    frame = pd.DataFrame({"time": STAMPS, "mark": NAMES})
    expected = explainer.explain(frame)
    in_seconds = load_events(frame, id2label=LABELS)  # what load_events does if not told otherwise
    assert in_seconds.time_unit == "s" and explainer.model.config.mtpp_config.time_unit == "h"
    assert close(explainer.explain(in_seconds), expected)


def test_a_dataset_whose_mark_names_stand_in_another_order_is_not_misread(explainer):
    names = list(reversed(LABELS.values()))
    features = datasets.Features(
        {"times": datasets.List(datasets.Value("float64")), "marks": datasets.List(datasets.ClassLabel(names=names))}
    )
    dataset = datasets.Dataset.from_dict({"times": [TIMES], "marks": [NAMES]}, features=features)
    with pytest.raises(ValueError, match="mark vocabulary is not the model's .the same marks in another order"):
        explainer.explain(dataset)


@pytest.mark.parametrize("form", ["frame", "EventSequences", "row of a dataset", "csv", "rows"])
def test_a_sequence_that_has_a_name_keeps_it(explainer, tmp_path, form):
    frame = pd.DataFrame({"seq_id": "A7", "time": TIMES, "mark": NAMES})
    frame.to_csv(tmp_path / "named.csv", index=False)
    row = datasets.Dataset.from_dict({"seq_id": ["A7"], "times": [TIMES], "marks": [NAMES]})[0]
    sources = {
        "frame": frame,
        "EventSequences": load_events(frame, id2label=LABELS),
        "row of a dataset": row,
        "csv": tmp_path / "named.csv",
        "rows": frame.to_dict("records"),
    }
    answer = explainer.explain(sources[form])
    assert isinstance(answer, Explanation) and answer.seq_id == "A7"


# --- history and future apart


def test_history_and_future_apart_equal_the_whole_sequence(explainer, tmp_path):
    expected = explainer.explain(PAIRS, future=FUTURE)
    before, after = PAIRS[:HISTORY], PAIRS[HISTORY:]
    assert close(explainer.explain(history=before, future=after), expected)
    as_frames = [pd.DataFrame(events, columns=["time", "mark"]) for events in (before, after)]
    assert close(explainer.explain(history=as_frames[0], future=as_frames[1]), expected)
    nested = explainer.explain(history=[before, PAIRS[:3]], future=[after, PAIRS[3:5]])
    assert close(nested[0], expected) and close(nested[1], explainer.explain(PAIRS[:5], future=2))
    assert [answer.seq_id for answer in nested] == [0, 1]


def test_history_and_future_apart_may_have_moments(explainer):
    frame = pd.DataFrame({"time": STAMPS, "mark": NAMES})
    expected = explainer.explain(frame)
    answer = explainer.explain(history=frame[:HISTORY], future=frame[HISTORY:])
    assert close(answer, expected)
    assert [pd.Timestamp(event.time) for event in answer.future] == STAMPS[HISTORY:]


def test_histories_and_futures_with_names_are_not_paired_by_chance(explainer):
    frame = pd.DataFrame({"time": TIMES, "mark": NAMES})
    other = frame.assign(mark=NAMES[::-1])  # the same times, so that either pairing would pass
    before = pd.concat([frame[:HISTORY].assign(seq_id="A"), other[:HISTORY].assign(seq_id="B")])
    after = pd.concat([other[HISTORY:].assign(seq_id="B"), frame[HISTORY:].assign(seq_id="A")])  # B first
    with pytest.raises(ValueError, match="one future per history, with its name, place and kind of times"):
        explainer.explain(history=before, future=after)


# --- many at once


def many(count, seed=0):
    """Sequences of different lengths, as lists of pairs."""
    generator = np.random.default_rng(seed)
    sequences = []
    for index in range(count):
        times, marks = hours(int(generator.integers(FUTURE + 1, 30)), seed=100 + index)
        sequences.append([(time, LABELS[mark]) for time, mark in zip(times, marks, strict=True)])
    return sequences


def test_many_sequences_in_one_call_equal_one_call_each(explainer):
    sequences = many(25)
    together = explainer.explain(sequences)
    assert [answer.seq_id for answer in together] == list(range(25))
    assert all(close(answer, explainer.explain(one)) for answer, one in zip(together, sequences, strict=True))
    assert len({len(answer.history) for answer in together}) > 3


def test_one_sequence_in_a_list_gives_a_list_of_one(explainer):
    for source in ([PAIRS], [{"times": TIMES, "marks": NAMES}], [np.array([TIMES, MARKS]).T]):
        answers = explainer.explain(source)
        assert isinstance(answers, list) and len(answers) == 1 and close(answers[0], explainer.explain(PAIRS))


def test_a_dict_of_columns_with_ids_holds_several_sequences(explainer):
    columns = {"seq_id": ["A"] * 11 + ["B"] * 9, "times": TIMES + TIMES[2:], "marks": NAMES + NAMES[2:]}
    answers = explainer.explain(columns)
    assert [answer.seq_id for answer in answers] == ["A", "B"]
    assert close(answers[0], explainer.explain(PAIRS)) and close(answers[1], explainer.explain(PAIRS[2:]))


def test_a_list_of_frames_is_a_list_of_sequences(explainer):
    frame = pd.DataFrame({"time": TIMES, "mark": NAMES})
    answers = explainer.explain([frame, frame[2:]])
    assert close(answers[0], explainer.explain(PAIRS)) and close(answers[1], explainer.explain(PAIRS[2:]))


def test_a_table_of_several_sequences_gives_a_list_with_their_names(explainer):
    frame = pd.DataFrame({"time": TIMES, "mark": NAMES})
    mixed = pd.concat([frame.assign(seq_id="B"), frame[2:].assign(seq_id="A")]).sort_values("time", kind="stable")
    answers = explainer.explain(mixed, future=3)
    assert [answer.seq_id for answer in answers] == ["B", "A"]
    assert close(answers[0], explainer.explain(PAIRS, future=3))
    assert close(answers[1], explainer.explain(PAIRS[2:], future=3))


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


@pytest.mark.parametrize("history", [1, 3, HISTORY - 1])
def test_a_number_of_history_events_takes_the_last_ones(explainer, history):
    answer = explainer.explain(PAIRS, future=FUTURE, history=history)
    first = HISTORY - history
    assert [event.time for event in answer.history] == TIMES[first:HISTORY]
    times = torch.tensor([TIMES[first:]]) - TIMES[first - 1]
    marks = torch.tensor([MARKS[first:]])
    mask = torch.ones_like(marks, dtype=torch.bool)
    distill_mask, _ = explainer.model.distill(Window(times, marks, mask, FUTURE))
    left = dppl(explainer.model.mtpp, Window(times, marks, mask, FUTURE), ~distill_mask)
    assert answer.distill_mask == tuple(distill_mask[0].tolist())
    assert answer.dppl_left == pytest.approx(left.item(), abs=1e-6)


@pytest.mark.parametrize("history", [HISTORY, HISTORY + 1, 1000])
def test_asking_for_more_history_than_there_is_takes_all(explainer, history):
    assert explainer.explain(PAIRS, history=history) == explainer.explain(PAIRS)


def test_the_clock_begins_at_a_sequences_start_if_it_is_known(explainer):
    events = EventSequences.from_lists([TIMES], [MARKS], id2label=LABELS, starts=[0.5])
    answer = explainer.explain(events)
    times, marks = torch.tensor([TIMES]) - 0.5, torch.tensor([MARKS])
    mask = torch.ones_like(marks, dtype=torch.bool)
    distill_mask, _ = explainer.model.distill(Window(times, marks, mask, FUTURE))
    left = dppl(explainer.model.mtpp, Window(times, marks, mask, FUTURE), ~distill_mask)
    assert answer.dppl_left == pytest.approx(left.item(), abs=1e-6)


def test_a_number_may_be_numpys(explainer):
    numpys = explainer.explain(PAIRS, future=np.int64(3), history=np.int64(4))
    assert numpys == explainer.explain(PAIRS, future=3, history=4)


def test_exported_sequences_keep_their_starts(explainer, tmp_path):
    lists = zip(*(hours(size, seed=size) for size in (11, 14, 17)), strict=True)
    events = EventSequences.from_lists(*lists, id2label=LABELS, starts=[1.0, 2.0, 0.0])
    export_windows({"test": events}, tmp_path / "data", [(FUTURE, HISTORY)], name="small")
    dataset = datasets.load_dataset(str(tmp_path / "data"), "sequences", split="test", cache_dir=str(tmp_path / "c"))
    for one, two in zip(explainer.explain(dataset), explainer.explain(events), strict=True):
        assert close(one, two)


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


def test_bundled_checkpoints_are_listed_and_open_by_name(bundled):
    assert list_pretrained() == ["alpha", "beta"]
    assert EHDDistiller.from_pretrained("beta").model.config.epsilon == 0.2


def test_a_local_folder_goes_before_a_bundled_checkpoint_of_the_same_name(bundled):
    small_distiller(epsilon=0.3).save_pretrained(bundled / "alpha")
    assert EHDDistiller.from_pretrained("alpha").model.config.epsilon == 0.3
    assert EHDDistiller.from_pretrained(bundled / "alpha").model.config.epsilon == 0.3
    assert EHDDistiller.from_pretrained("beta").model.config.epsilon == 0.2
    assert resolve("someone/model") == "someone/model"


def test_a_folder_without_a_model_does_not_hide_a_bundled_one(bundled):
    (bundled / "alpha").mkdir()
    (bundled / "alpha" / "train.csv").write_text("time,mark\n")
    assert EHDDistiller.from_pretrained("alpha").model.config.epsilon == 0.1


@pytest.mark.parametrize("name", ["gamma", "someone/gamma", "no/such/folder", "./gamma"])
def test_an_unknown_name_is_answered_with_the_bundled_ones(bundled, name):
    with pytest.raises(OSError, match=f"No model called '{name}'.*bundled alpha, beta"):
        EHDDistiller.from_pretrained(name)


def test_a_saved_explainer_gives_the_same_answers(explainer, tmp_path):
    explainer.save_pretrained(tmp_path / "saved")
    assert EHDDistiller.from_pretrained(tmp_path / "saved").explain(PAIRS) == explainer.explain(PAIRS)


def test_a_model_loaded_in_double_precision_explains_too(explainer, tmp_path):
    explainer.save_pretrained(tmp_path / "saved")
    double = EHDDistiller.from_pretrained(tmp_path / "saved", dtype=torch.float64)
    assert close(double.explain(PAIRS), explainer.explain(PAIRS))


def test_the_front_door_and_the_representation(explainer):
    assert ehd_hf.EHDDistiller is EHDDistiller and ehd_hf.list_pretrained is list_pretrained
    assert repr(explainer) == (
        "EHDDistiller(EHDDistillerModel, 6 marks, trained on 7 events -> 4, epsilon 0.5, paper conditioning)"
    )


# --- bad input


def unsorted():
    return [PAIRS[1], PAIRS[-1], PAIRS[0], *PAIRS[2:6]]


BAD = {
    "an unknown mark": (lambda: [*PAIRS[:-1], (99.0, "outage")], {}, "sequence: .*outage.*knows the marks deploy, ch"),
    "an unknown number": (lambda: [*zip(TIMES[:-1], MARKS[:-1], strict=True), (99.0, 6)], {}, r"\[0, 6\); got 6"),
    "another vocabulary": (
        lambda: EventSequences.from_lists([TIMES], [MARKS], id2label={**LABELS, 5: "outage"}),
        {},
        "vocabulary is not the model.s .*unknown to it: outage",
    ),
    "the marks in another order": (
        lambda: EventSequences.from_lists([TIMES], [MARKS], id2label={**LABELS, 0: "check", 1: "deploy"}),
        {},
        "the same marks in another order",
    ),
    "fewer marks": (
        lambda: EventSequences.from_lists([[1.0] * 6], [[0] * 6], id2label={0: "deploy"}),
        {},
        "vocabulary is not the model's",
    ),
    "no events": (lambda: [], {}, "sequence: .*no events"),
    "no events in a frame": (lambda: pd.DataFrame({"time": [], "mark": []}), {}, "holds no events"),
    "no events in an array": (lambda: np.empty((0, 2)), {}, "holds no events"),
    "no events in a dict": (lambda: {"times": [], "marks": []}, {}, "at least one event"),
    "nothing but future": (lambda: PAIRS[:FUTURE], {}, "has 4 events, all of them in the future of 4: the history"),
    "a future of none": (lambda: PAIRS, {"future": 0}, "future must be a number of events of at least 1; got 0"),
    "a future of True": (lambda: PAIRS, {"future": True}, "got True"),
    "half an event": (lambda: PAIRS, {"future": 2.5}, "got 2.5"),
    "a history of none": (lambda: PAIRS, {"history": 0}, 'of events of at least 1, or "all"; got 0'),
    "a missing time": (lambda: [*PAIRS[:-1], (float("nan"), "alert")], {}, "times must be finite; got nan"),
    "a missing mark": (lambda: [*PAIRS[:-1], (99.0, None)], {}, "marks must not be missing"),
    "events out of order": (unsorted, {}, "times must not decrease within a sequence"),
    "too many events": (
        lambda: [(float(i), 0) for i in range(4097)],
        {"history": "all"},
        "max_length = 4096 events; got 4097",
    ),
    "one piece of many bad": (lambda: [PAIRS, PAIRS[:2]], {}, "sequence 1 has 2 events"),
    "neither one nor two columns": (lambda: np.zeros((7, 3)), {}, "events come from"),
    "a list of numbers": (lambda: [1.0, 2.0, 3.0], {}, "sequence: .*pairs"),
    "a list of nothing": (lambda: [None], {}, "sequence: .*pairs"),
    "times and marks side by side": (lambda: (TIMES, MARKS), {}, "sequence: .*pairs"),
    "numbers in a dict": (lambda: {"times": 5, "marks": 3}, {}, "sequence: "),
    "no sequence at all": (
        lambda: EventSequences.from_lists([TIMES], [MARKS], id2label=LABELS).select([]),
        {},
        "sequence: it has no events",
    ),
    "no event log": (lambda: 5, {}, "events come from a path, DataFrame"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_answered_clearly(explainer, case):
    source, options, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        explainer.explain(source(), **options)


def test_a_missing_file_is_named(explainer):
    with pytest.raises(FileNotFoundError, match="no file nowhere.csv"):
        explainer.explain("nowhere.csv")


def test_as_many_events_as_max_length_are_explained():
    explainer = EHDDistiller(small_distiller(max_length=9))
    assert len(explainer.explain(PAIRS[:9]).history) == 5
    with pytest.raises(ValueError, match="max_length = 9 events; got 11.*history=<number of events>"):
        explainer.explain(PAIRS)
    assert len(explainer.explain(PAIRS, history=5).history) == 5


STAMPED = list(zip(STAMPS, NAMES, strict=True))
BAD_PAIRS = {
    "an empty future": (PAIRS[:5], [], "future: .*no events"),
    "an empty history": ([], PAIRS[5:], "history: .*no events"),
    "the future before the history": (PAIRS[5:], PAIRS[:5], "The future must not begin before the history ends"),
    "moments before the history": (STAMPED[5:], STAMPED[:5], "The future must not begin before the history ends"),
    "moments and numbers": (STAMPED[:5], PAIRS[5:], "one future per history, with its name, place and kind of times"),
    "more futures": ([PAIRS[:5]], [PAIRS[5:], PAIRS[5:]], "one future per history.*got 1 histories, 2 futures"),
    "fewer futures": ([PAIRS[:5]] * 2, [PAIRS[5:]], "one future per history.*got 2 histories, 1 futures"),
    "an unknown mark": (PAIRS[:5], [(99.0, "outage")], "future: .*outage"),
    "only a future": (None, PAIRS[5:], "needs a sequence, or the events of both"),
    "only a history": (PAIRS[:5], None, "needs a sequence, or the events of both"),
    "a number": (PAIRS[:5], 3, "needs a sequence, or the events of both"),
    "nothing": (None, None, "needs a sequence, or the events of both"),
}


@pytest.mark.parametrize("case", BAD_PAIRS)
def test_a_bad_pair_of_history_and_future_is_answered_clearly(explainer, case):
    history, future, message = BAD_PAIRS[case]
    with pytest.raises(ValueError, match=message):
        explainer.explain(history=history, future=future)


def test_a_future_that_begins_as_the_history_ends_is_accepted(explainer):
    for zero in (0.0, datetime.datetime(2026, 3, 1)):
        step = 1.0 if zero == 0.0 else datetime.timedelta(hours=1)
        before, after = [(zero, "alert"), (zero + step, "check")], [(zero + step, "alert"), (zero + 2 * step, "login")]
        answer = explainer.explain(history=before, future=after)
        assert close(answer, explainer.explain(before + after, future=2))


def test_a_question_changes_none_of_its_arguments(explainer):
    frame = pd.DataFrame({"time": TIMES, "mark": NAMES})
    array, row = np.array([TIMES, MARKS]).T, {"times": list(TIMES), "marks": list(NAMES)}
    copies = frame.copy(), array.copy(), {name: list(values) for name, values in row.items()}
    for source in (frame, array, row):
        explainer.explain(source)
    pd.testing.assert_frame_equal(frame, copies[0])
    assert (array == copies[1]).all() and row == copies[2]


# --- what comes with the package


def test_the_promised_checkpoints_come_with_the_package():
    assert {"incidents", "stackoverflow-15-40"} <= set(list_pretrained())


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


def test_the_first_example_explains_itself():
    example = load_example("incidents")
    assert list(example.columns) == ["time", "mark"] and example["time"].is_monotonic_increasing
    assert pd.api.types.is_datetime64_any_dtype(example["time"])
    answer = EHDDistiller.from_pretrained("incidents").explain(example, future=5)
    assert 0 < len(answer.distilled) < len(answer.history) and len(answer.future) == 5
    assert [pd.Timestamp(event.time) for event in answer.future] == example["time"].tolist()[-5:]
    assert "past event" in str(answer)


def test_an_unknown_example_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="Examples are .*; got 'outages'"):
        load_example("outages")
