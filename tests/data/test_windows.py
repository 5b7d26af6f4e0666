"""Windows: the counting rule, the clock, the stores and the exported data set."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import yaml
from torch.utils.data import DataLoader

from ehd_hf.data import export as windows_module
from ehd_hf.data.export import export_windows, statistics
from ehd_hf.data.sequences import EventSequences, load_events
from ehd_hf.data.windows import WindowStore, load_windows, make_crops, make_windows, parse_pair
from helpers import from_lists


def random_sequences(lengths, *, num_marks=6, seed=0, starts=False) -> EventSequences:
    """Tied times now and then; starts known for every other sequence if asked for."""
    rng = np.random.default_rng(seed)
    times = [1000 + np.cumsum(rng.integers(0, 4, length) / 4) for length in lengths]
    marks = [rng.integers(0, num_marks, length) for length in lengths]
    begin = [t[0] - 1.5 if starts and i % 2 else np.nan for i, t in enumerate(times)]
    return from_lists(times, marks, num_marks=num_marks, starts=begin, time_unit="h")


def slow_windows(sequences: EventSequences, future: int, history: int) -> list[tuple[int, int, float, list, list]]:
    """The rule in plain Python: (sequence, offset, origin, times, marks) of every window."""
    found = []
    for index, (times, marks) in enumerate(sequences):
        width = future + history
        offsets = [0] if len(times) == width else range(1, len(times) - width + 1)
        for offset in offsets:
            start = sequences.starts[index]
            origin = times[offset - 1] if offset else times[0] if np.isnan(start) else start
            span = slice(offset, offset + width)
            found.append((index, offset, origin, [t - origin for t in times[span]], marks[span].tolist()))
    return found


def test_windows_by_hand():
    events = load_events([[(2.0, "a"), (3.0, "b"), (3.0, "a"), (7.0, "b"), (8.0, "a")], [(1.0, "a"), (4.0, "b")]])
    store = make_windows(events, future=1, history=2)
    assert len(store) == 2 and store.num_too_short == 1 and (store.history, store.future) == (2, 1)
    first, second = store[0], store[1]
    assert first["times"].tolist() == [1.0, 1.0, 5.0]  # counted from the event at 2.0
    assert first["marks"].tolist() == [1, 0, 1]
    assert second["times"].tolist() == [0.0, 4.0, 5.0]  # counted from the tied event at 3.0
    assert store.origins.tolist() == [2.0, 3.0] and store.window_offset.tolist() == [1, 2]


@pytest.mark.parametrize("seed", range(7))
def test_the_store_equals_plain_python_windowing(seed):
    rng = np.random.default_rng(100 + seed)
    future, history = int(rng.integers(1, 5)), int(rng.integers(1, 8))
    lengths = [*rng.integers(1, 31, 9), future + history, future + history + 1]
    sequences = random_sequences(lengths, seed=seed, starts=bool(seed % 2))
    expected = slow_windows(sequences, future, history)
    store = make_windows(sequences, future=future, history=history)
    assert len(store) == len(expected)
    order = rng.permutation(len(store))
    batch = store.__getitems__(order.tolist())
    for row, index in enumerate(order):
        sequence, offset, origin, times, marks = expected[index]
        assert (store.sequence_index[index], store.window_offset[index]) == (sequence, offset)
        assert store.origins[index] == origin
        assert batch["times"][row].tolist() == pytest.approx(times, abs=1e-6)
        assert batch["marks"][row].tolist() == marks
    assert batch["mask"].all() and batch["mask"].shape == batch["times"].shape


def test_relative_times_keep_small_intervals_far_from_zero():
    far = 1.4e9
    events = from_lists([[far, far + 0.001, far + 0.003]], [[0, 0, 0]])
    np.testing.assert_allclose(make_windows(events, future=1, history=1)[0]["times"], [0.001, 0.003], rtol=1e-3)


def test_a_data_loader_takes_batches_whole_and_visits_every_window_once():
    store = make_windows(random_sequences([40, 13, 29]), future=3, history=4)
    loader = DataLoader(store, batch_size=8, shuffle=True, collate_fn=WindowStore.collate)
    batches = list(loader)
    types = {"times": torch.float32, "marks": torch.int64, "mask": torch.bool}
    assert {key: value.dtype for key, value in batches[0].items()} == types
    seen = torch.cat([torch.cat([b["times"], b["marks"]], dim=1) for b in batches]).tolist()
    everything = store.__getitems__(range(len(store)))
    assert sorted(seen) == sorted(torch.cat([everything["times"], everything["marks"]], dim=1).tolist())
    assert len(list(store)) == len(store)


def test_sampling_is_fixed_sorted_and_without_replacement():
    store = make_windows(random_sequences([60, 25]), future=3, history=4)
    one, two, other = store.sample(11, seed=0), store.sample(11, seed=0), store.sample(11, seed=1)
    assert len(one) == 11 and (np.diff(one.first) > 0).all()
    np.testing.assert_array_equal(one.first, two.first)
    assert one.first.tolist() != other.first.tolist()
    assert len(store.sample()) == len(store)
    picked = store.select([5, 2])
    assert picked[0]["times"].equal(store[5]["times"]) and picked.history == 4


def test_crops_start_wherever_enough_events_remain():
    sequences = random_sequences([9, 2, 5], starts=True)
    store = make_crops(sequences, length=5)
    where = list(zip(store.sequence_index.tolist(), store.window_offset.tolist(), store.count.tolist(), strict=True))
    assert where == [(0, s, min(5, 9 - s)) for s in range(8)] + [(1, 0, 2)] + [(2, s, 5 - s) for s in range(4)]


def test_crops_pad_right_and_leave_unknown_first_intervals_out_of_the_loss():
    events = from_lists([[1.0, 3.0, 3.0, 4.0], [5.0, 6.0]], [[1, 2, 0, 1], [2, 2]], starts=[np.nan, 4.5])
    batch = make_crops(events, length=4).__getitems__([0, 3])
    assert batch["times"].tolist() == [[0, 2, 2, 3], [0.5, 1.5, 1.5, 1.5]]
    assert batch["marks"].tolist() == [[1, 2, 0, 1], [2, 2, 0, 0]]
    assert batch["mask"].tolist() == [[True] * 4, [True, True, False, False]]
    assert batch["loss_mask"].tolist() == [[False, True, True, True], [True, True, False, False]]
    crop = make_crops(events, length=2)
    assert crop[1]["times"].tolist() == [2.0, 2.0] and crop[1]["loss_mask"].tolist() == [True, True]
    assert crop[0]["loss_mask"].tolist() == [False, True]
    assert crop.select([1, 0])[1]["loss_mask"].tolist() == [False, True]


def test_a_single_event_makes_a_crop():
    item = make_crops(from_lists([[3.0]], [[0]]), length=4)[0]
    assert item["times"].tolist() == [0.0] and item["loss_mask"].tolist() == [False]


@pytest.mark.parametrize(
    ("make", "fragment"),
    [
        (lambda s: make_windows(s, future=0, history=4), "future must be at least 1 event; got 0"),
        (lambda s: make_windows(s, future=3, history=-2), "history must be at least 1 event; got -2"),
        (lambda s: make_windows(s, future=30, history=9), "at least 39; the longest has 12"),
        (lambda s: make_windows(s.select([]), future=1, history=1), "at least one; got none"),
        (lambda s: make_crops(s, length=0), "length must be at least 1 event; got 0"),
        (lambda s: parse_pair("15x40"), "such as \"15-40\"; got '15x40'"),
        (lambda s: load_windows(s, "3-4", split="test"), "no split 'test'; the source has train"),
    ],
)
def test_impossible_windows_are_refused(make, fragment):
    with pytest.raises(ValueError, match=fragment):
        make(random_sequences([12, 8]))


@pytest.fixture
def splits() -> dict[str, EventSequences]:
    lengths = {"train": [21, 7, 8, 3], "validation": [16], "test": [30, 11]}
    return {split: random_sequences(sizes, seed=i, starts=True) for i, (split, sizes) in enumerate(lengths.items())}


def test_raw_events_and_mappings_of_splits_give_windows(splits, tmp_path):
    frame = {"time": [0.0, 1.0, 2.0, 5.0], "mark": ["a", "b", "a", "a"]}
    assert len(load_windows(frame, "1-2")) == 1
    assert len(load_windows(splits, "3-4", split="validation")) == 9
    (tmp_path / "log.csv").write_text("who,when,mark\n" + "".join(f"x,{i},0\n" for i in range(10)))
    assert len(load_windows(tmp_path / "log.csv", "3-4", sequence="who", time="when")) == 3


def test_the_export_loads_with_datasets_whole_and_streamed(splits, tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(windows_module, "ROWS_PER_CHUNK", 5)  # several chunks per file
    folder = export_windows(splits, tmp_path / "out", [(3, 4), (2, 5)], name="toy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    loaded = datasets.load_dataset(str(folder), "3-4", cache_dir=str(tmp_path / "cache"))
    numbers = {"train": 14 + 1 + 1, "validation": 9, "test": 23 + 4, "test_sampled": 23 + 4}
    assert {split: data.num_rows for split, data in loaded.items()} == numbers
    features = loaded["train"].features
    assert (features["history_times"].length, features["future_marks"].length) == (4, 3)
    assert features["history_marks"].feature.names == ["0", "1", "2", "3", "4", "5"]
    expected = slow_windows(splits["train"], 3, 4)
    streamed = datasets.load_dataset(str(folder), "3-4", split="train", streaming=True)
    for rows in (list(loaded["train"]), list(streamed)):
        assert len(rows) == len(expected)
        for row, (sequence, offset, origin, times, marks) in zip(rows, expected, strict=True):
            assert (row["seq_id"], row["window"], row["origin"]) == (sequence, offset, origin)
            assert row["history_times"] + row["future_times"] == times
            assert row["history_marks"] + row["future_marks"] == marks
    sequences = datasets.load_dataset(str(folder), "sequences", split="test", cache_dir=str(tmp_path / "cache"))
    assert sequences["times"][1] == splits["test"][1][0].tolist() and sequences["start"][0] is None


def test_the_export_reads_back_as_the_same_store_for_any_pair(splits, tmp_path):
    folder = export_windows(splits, tmp_path / "out", [(3, 4)], name="toy")
    for name in ("3-4", "2-6"):
        future, history = parse_pair(name)
        direct = make_windows(splits["test"], future=future, history=history)
        loaded = load_windows(folder, name, split="test")
        np.testing.assert_array_equal(loaded.first, direct.first)
        np.testing.assert_array_equal(loaded.origins, direct.origins)
        assert loaded.sequences.id2label == direct.sequences.id2label and loaded.sequences.time_unit == "h"
        assert len(load_windows(folder, name, split="test_sampled")) == len(direct)


def test_timestamps_and_string_ids_survive_the_export(tmp_path):
    frame = {"seq_id": ["x"] * 4, "time": [f"2020-03-0{d}T12:00:00" for d in range(1, 5)], "mark": list("abab")}
    events = load_events(frame, time_unit="D")
    folder = export_windows({"train": events}, tmp_path / "out", [(1, 2)], name="toy")
    back = load_windows(folder, "1-2").sequences
    assert back.seq_ids == ("x",) and back.id2label == {0: "a", 1: "b"} and back.time_unit == "D"
    np.testing.assert_array_equal(back.select([0]).shown_times(), events.select([0]).shown_times())
    assert not (folder / "1-2" / "test_sampled.parquet").exists()


def test_the_card_tells_computed_statistics_and_given_texts(splits, tmp_path):
    card = {"pretty_name": "Toy events", "license": "mit", "provenance": "Made up; costs $5.", "citation": "None."}
    text = (export_windows(splits, tmp_path / "out", [(3, 4)], name="toy", card=card) / "README.md").read_text()
    header = yaml.safe_load(text.split("---\n")[1])
    assert [config["config_name"] for config in header["configs"]] == ["3-4", "sequences"]
    assert header["license"] == "mit" and header["pretty_name"] == "Toy events"
    assert "Made up; costs $5." in text and "# Toy events" in text and "Time unit: h" in text
    assert "| train | 16 | 1 |" in text  # windows, sequences too short
    row = statistics(splits["train"])
    assert f"| train | 4 | 39 | 3 | 21 | {row['interval mean']:.6g} | {row['interval std']:.6g} |" in text


def test_statistics_count_only_real_intervals():
    events = from_lists([[1.0, 2.0, 4.0], [10.0, 13.0]], [[0, 1, 0], [1, 1]], starts=[np.nan, 6.0])
    row = statistics(events)  # intervals 1, 2, 4, 3
    assert (row["interval mean"], row["t0"], row["T"]) == (2.5, 1.0, 13.0)
    assert row["interval std"] == pytest.approx(np.std([1, 2, 4, 3]))
    assert (row["sequences"], row["events"], row["shortest"], row["longest"]) == (2, 5, 2, 3)


def test_an_export_replaces_only_its_own_kind(splits, tmp_path):
    out = tmp_path / "out"
    export_windows(splits, out, [(3, 4)], name="toy")
    export_windows(splits, out, [(2, 5)], name="toy")
    assert sorted(path.name for path in out.iterdir()) == ["2-5", "README.md", "sequences"]
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.txt").write_text("years of work")
    with pytest.raises(ValueError, match="holds something else"):
        export_windows(splits, other, name="toy", pairs=[(3, 4)])
    assert (other / "chapter.txt").read_text() == "years of work"
    export_windows(splits, other, name="toy", pairs=[(3, 4)], overwrite=True)
    assert not (other / "chapter.txt").exists() and (other / "README.md").exists()


def test_a_failing_export_leaves_nothing_behind(splits, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="split 'validation': a window of 9 .* the longest has 16"):
        export_windows(splits, tmp_path / "long", [(9, 9)], name="toy")
    with pytest.raises(ValueError, match="a card has the fields .* got colour"):
        export_windows(splits, tmp_path / "card", [(3, 4)], name="toy", card={"colour": "red"})
    with pytest.raises(ValueError, match="one mark vocabulary"):
        export_windows(splits | {"test": random_sequences([12], num_marks=5)}, tmp_path / "marks", name="toy")

    def broken(*_):
        raise OSError("disk full")

    monkeypatch.setattr(windows_module, "_card", broken)
    with pytest.raises(OSError, match="disk full"):
        export_windows(splits, tmp_path / "full", [(3, 4)], name="toy")
    assert list(tmp_path.iterdir()) == []
