"""Marks by name at every door: a number is a name where the model has such names, and never the mark beside it."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset, Features, List, Value
from hypothesis import given, settings, strategies as st
from typer.testing import CliRunner

from ehd_hf import EHDDistiller, cli
from ehd_hf.data.export import export_windows
from ehd_hf.data.reading import read_events
from ehd_hf.explain.many import explain_many
from ehd_hf.models.ehd import EHDDistillerModel
from ehd_hf.models.hf_pipeline import EventHistoryPipeline
from helpers import TINY, tiny_fullynn

SHIFTED = [str(mark) for mark in range(1, 10)]
MARKS = [3, 8, 1, 8, 5, 2]


def explainer_of(names):
    return EHDDistiller.from_mtpp(tiny_fullynn(len(names), id2label=dict(enumerate(names))), future=2)


def named(events):
    return [events.id2label[int(mark)] for mark in events.marks]


def rows(explanation):
    return [event.mark for event in (*explanation.history, *explanation.future)]


# Every way to hand in events of integer marks -> the names of the marks that the model took them for.


def by_reading(explainer, marks, folder):
    (folder / "log.csv").write_text("time,mark\n" + "".join(f"{i},{mark}\n" for i, mark in enumerate(marks)))
    return named(explainer.read(folder / "log.csv").events)


def by_reading_a_frame(explainer, marks, folder):
    return named(explainer.read(pd.DataFrame({"time": np.arange(len(marks)) + 0.5, "mark": marks})).events)


def by_frame(explainer, marks, folder):
    return rows(explainer.explain(pd.DataFrame({"time": np.arange(len(marks)) + 0.5, "mark": marks})))


def by_pairs(explainer, marks, folder):
    return rows(explainer.explain([(i + 0.5, mark) for i, mark in enumerate(marks)]))


def by_array(explainer, marks, folder):
    return rows(explainer.explain(np.array([(i + 0.5, mark) for i, mark in enumerate(marks)])))


def by_dataset(explainer, marks, folder):
    row = {"times": np.arange(len(marks)) + 0.5, "marks": list(marks)}
    return rows(explainer.explain(Dataset.from_list([row])))


def by_command_line(explainer, marks, folder):
    explainer.save_pretrained(folder / "model")
    by_reading(explainer, marks, folder)
    words = ["explain", str(folder / "model"), str(folder / "log.csv"), "--future", "2", "--json"]
    ended = CliRunner().invoke(cli.app, words)
    if ended.exit_code == 2:
        raise ValueError(ended.stderr)
    told = json.loads(ended.stdout)
    past = sorted([*told["distilled"], *told["left"]], key=lambda event: event["position"])
    return [event["mark"] for event in (*past, *told["future"])]


def by_folder_of_answers(explainer, marks, folder):
    pq.write_table(pa.table({"times": [np.arange(len(marks)) + 0.5], "marks": [marks]}), folder / "lists.parquet")
    explain_many(explainer, folder / "lists.parquet", folder / "out", future=len(marks) - 1)
    (row,) = pd.read_parquet(folder / "out").to_dict("records")
    return [str(marks[0]), *row["future_marks"]]


def by_app(explainer, marks, folder):
    app = pytest.importorskip("ehd_hf.app")
    by_reading(explainer, marks, folder)
    service = app.Service({"model": explainer})
    asked = app.Asked("model", app.UPLOAD, upload=str(folder / "log.csv"), split=len(marks) - 2, future=2)
    return rows(service.explain(asked))


def by_pipeline(explainer, marks, folder):
    ranker = EHDDistillerModel.from_mtpp(explainer.mtpp, history=4, future=2, **TINY)
    told = EventHistoryPipeline(model=ranker)([(i + 0.5, mark) for i, mark in enumerate(marks)])
    past = sorted([*told["distilled"], *told["left"]], key=lambda event: event["position"])
    return [event["mark"] for event in (*past, *told["future"])]


DOORS = {name: door for name, door in globals().items() if name.startswith("by_")}


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_a_number_is_the_mark_of_that_name_at_every_door(door, tmp_path):
    assert door(explainer_of(SHIFTED), MARKS, tmp_path) == [str(mark) for mark in MARKS]


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_an_unseen_number_is_refused_at_every_door(door, tmp_path):
    with pytest.raises(ValueError, match="knows?.* marks"):
        door(explainer_of(SHIFTED), [3, 8, 0, 8, 5, 2], tmp_path)


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_a_number_is_a_position_where_no_name_is_a_number(door, tmp_path):
    words = [f"kind {mark}" for mark in range(9)]
    if door is by_folder_of_answers:
        assert door(explainer_of(words), MARKS, tmp_path)[1:] == [words[mark] for mark in MARKS][1:]
    else:
        assert door(explainer_of(words), MARKS, tmp_path) == [words[mark] for mark in MARKS]


LIGHT = [by_reading, by_reading_a_frame, by_pairs, by_pipeline]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(-2, 12).map(str), min_size=2, max_size=8, unique=True),
    st.lists(st.integers(0, 12), min_size=4, max_size=6),
)
def test_vocabularies_of_digits_are_read_by_name(tmp_path_factory, names, marks):
    explainer = explainer_of(names)
    for door in LIGHT:
        try:
            taken = door(explainer, marks, tmp_path_factory.mktemp("door"))
        except ValueError:
            assert not set(map(str, marks)) <= set(names)
        else:
            assert taken == list(map(str, marks))


def test_marks_that_a_data_set_names_are_positions_in_its_names(tmp_path):
    explainer = explainer_of(SHIFTED)
    features = Features({"times": List(Value("float64")), "marks": List(ClassLabel(names=SHIFTED))})
    row = {"times": [0.5, 1.5, 2.5, 3.5], "marks": [2, 7, 0, 7]}
    assert rows(explainer.explain(Dataset.from_list([row], features))) == ["3", "8", "1", "8"]
    events = explainer.load([(i + 0.5, str(mark)) for i, mark in enumerate(MARKS)])
    export_windows({"train": events}, tmp_path / "out", [(2, 4)], name="digits")
    explain_many(explainer, tmp_path / "out" / "2-4" / "train.parquet", tmp_path / "answers")
    (answer,) = pd.read_parquet(tmp_path / "answers").to_dict("records")
    assert list(answer["future_marks"]) == ["5", "2"]


def test_a_trained_model_reads_numbers_as_its_table_wrote_them(tmp_path):
    frame = pd.DataFrame({"time": np.arange(4.0), "mark": ["a", "b", "a", "b"]})
    reading = read_events(frame).reading
    with pytest.raises(ValueError, match="does not know 2 of these marks: '0', '1'"):
        read_events(frame.assign(mark=[0, 1, 0, 1]), reading=reading)


def test_kinds_that_are_asked_about_are_named_too():
    explainer = explainer_of(["10", "20", "1"])
    assert explainer.question(kind=10).kind == explainer.question(kind="10").kind == 0
    for unseen in (0, "0", 2, "2"):
        with pytest.raises(ValueError, match="kind"):
            explainer.question(kind=unseen)


def test_a_mark_of_thousands_of_digits_is_a_mark(tmp_path):
    frame = pd.DataFrame({"time": np.arange(4.0), "mark": ["9" * 5000, "2", "10", "2"]})
    assert list(read_events(frame).events.id2label.values()) == ["2", "10", "9" * 5000]
