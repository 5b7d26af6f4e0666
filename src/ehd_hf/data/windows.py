"""Sliding windows over event sequences: one history of L events and the K events after it.

The stores keep the sequences once and make batches by index, in one gather. `export_windows` writes the same windows
as Parquet with a card, for `datasets.load_dataset(folder, "15-40")`; `load_windows` reads events or such a folder.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from ..files import folder_replaced_when_done
from ..present.tables import plain_markdown
from .sequences import EventBatch, EventSequences, load_events
from .sources import load_source

SAMPLED_WINDOWS, SAMPLED_SEED = 5_000, 0  # test_sampled
CARD_MARKER = "<!-- written by ehd_hf.data.windows.export_windows -->"
CARD_FOLDER = "path/to/this/folder"  # what a card calls its data set until it has a Hub id
CARD_FIELDS = ("pretty_name", "license", "time_unit", "provenance", "marks", "citation")
ROWS_PER_CHUNK = 10_000


class EventStore(Dataset[dict[str, torch.Tensor]]):
    """Stretches of consecutive events, by index; batches come from `__getitems__` whole.

    Use it as `DataLoader(store, batch_size=256, shuffle=True, collate_fn=store.collate)`.

    Args:
        sequences: where the events are; kept as they are.
        first: (W,) int64, position of each stretch's first event among all events of `sequences`.
    """

    _per_stretch: tuple[str, ...] = ("first", "origins")

    def __init__(self, sequences: EventSequences, first: np.ndarray) -> None:
        self.sequences = sequences
        self.first = first
        self.origins = sequences.previous_times()[first]  # (W,) float64: the clock origin of each stretch

    def __len__(self) -> int:
        return len(self.first)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {key: batch[0] for key, batch in self.__getitems__([range(len(self))[index]]).items()}

    def __getitems__(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> dict[str, torch.Tensor]:
        raise TypeError(f"{type(self).__name__} must define __getitems__")

    @staticmethod
    def collate(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """`__getitems__` has already made the batch."""
        return batch

    @property
    def sequence_index(self) -> np.ndarray:
        """(W,) which sequence each stretch belongs to."""
        return np.searchsorted(self.sequences.offsets, self.first, side="right") - 1

    @property
    def window_offset(self) -> np.ndarray:
        """(W,) position of each stretch's first event in its own sequence."""
        return self.first - self.sequences.offsets[self.sequence_index]

    def select(self, indices: Sequence[int] | np.ndarray) -> Self:
        """The stretches at `indices`, in that order."""
        rows, chosen = np.asarray(indices, dtype=np.int64), copy.copy(self)
        for name in self._per_stretch:
            setattr(chosen, name, getattr(self, name)[rows])
        return chosen

    def sample(self, size: int = SAMPLED_WINDOWS, seed: int = SAMPLED_SEED) -> Self:
        """A fixed-seed subset without replacement, in order; everything if there are fewer."""
        if size >= len(self):
            return self
        return self.select(np.sort(np.random.default_rng(seed).choice(len(self), size, replace=False)))

    def sample_sequences(self, size: int, seed: int = SAMPLED_SEED) -> Self:
        """All stretches of as many fixed-seed sequences as it takes to have `size` of them, in order."""
        index = self.sequence_index
        shuffled = np.random.default_rng(seed).permutation(np.unique(index))
        reached = np.cumsum(np.bincount(index)[shuffled])
        chosen = shuffled[: int(np.searchsorted(reached, size)) + 1]
        return self.select(np.flatnonzero(np.isin(index, chosen)))


class WindowStore(EventStore):
    """Windows of `history` + `future` events.

    Keys: `times` (B, T) float32 counted from the window's origin, `marks` (B, T) int64, `mask` (B, T) bool, all True.

    Args:
        history: L, number of events of the history.
        future: K, number of events after it; T = L + K.
        num_too_short: number of sequences too short for a window.
    """

    def __init__(
        self, sequences: EventSequences, first: np.ndarray, *, history: int, future: int, num_too_short: int = 0
    ) -> None:
        super().__init__(sequences, first)
        self.history, self.future, self.num_too_short = history, future, num_too_short
        length = history + future
        # Overlapping views: row p holds the T events from p on, and costs nothing.
        self._times = torch.from_numpy(sequences.times).unfold(0, length, 1)  # (N - T + 1, T)
        narrow = np.int16 if sequences.num_marks < 2**15 else np.int64  # fewer bytes to gather
        self._marks = torch.from_numpy(sequences.marks.astype(narrow)).unfold(0, length, 1)

    def gather(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Times (B, T) float64 from each window's origin, and marks (B, T) int64."""
        rows = np.asarray(indices)
        first, origins = torch.from_numpy(self.first[rows]), torch.from_numpy(self.origins[rows])
        # index_select, because plain indexing of such a view starts threads and takes several times as long.
        times, marks = self._times.index_select(0, first), self._marks.index_select(0, first)
        return times.sub_(origins[:, None]), marks.long()

    def __getitems__(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> dict[str, torch.Tensor]:
        times, marks = self.gather(indices)
        return {"times": times.float(), "marks": marks, "mask": torch.ones(times.shape, dtype=torch.bool)}


class CropStore(EventStore):
    """Stretches of different lengths, right-padded; what a point process trains on.

    Keys as in `WindowStore`, with mask False on padding, and `loss_mask` (B, T) bool: False on padding and where the
    interval is not data, that is on a sequence's first event if its start is unknown.

    Args:
        count: (W,) int64, number of events of each stretch.
    """

    _per_stretch = ("first", "origins", "count", "no_interval")

    def __init__(self, sequences: EventSequences, first: np.ndarray, count: np.ndarray) -> None:
        super().__init__(sequences, first)
        self.count = count
        index = self.sequence_index
        self.no_interval = (first == sequences.offsets[index]) & np.isnan(sequences.starts[index])  # (W,)

    def __getitems__(self, indices: Sequence[int] | np.ndarray | torch.Tensor) -> dict[str, torch.Tensor]:
        rows = np.asarray(indices)
        spans = self.first[rows], self.count[rows], self.origins[rows]
        batch = EventBatch.from_spans(self.sequences.times, self.sequences.marks, *spans)
        loss_mask = batch.mask.clone()
        loss_mask[:, 0] = torch.from_numpy(~self.no_interval[rows])
        return {"times": batch.times, "marks": batch.marks, "mask": batch.mask, "loss_mask": loss_mask}


def make_windows(sequences: EventSequences, *, future: int, history: int) -> WindowStore:
    """All windows of L = `history` and K = `future` events.

    A window's clock origin is the event before it, so a sequence of l events gives l - (L + K) windows, and one if l =
    L + K, whose origin is the sequence's start or, if unknown, its own first event. Shorter sequences are skipped and
    counted in `num_too_short`.

    Example:

    ```python
    >>> events = load_events([[(0.0, "a"), (1.0, "b"), (3.0, "a"), (6.0, "a")]])
    >>> make_windows(events, future=1, history=2)[0]["times"]
    tensor([1., 3., 6.])
    ```
    """
    _check_sequences(sequences)
    for name, size in (("future", future), ("history", history)):
        if not _is_count(size):
            raise ValueError(f"{name} must be at least 1 event; got {size!r}. Choose K and L such as 15-40.")
    window, lengths = future + history, sequences.lengths
    if lengths.max() < window:
        raise ValueError(
            f"a window of {history} + {future} events needs a sequence of at least {window}; the longest has "
            f"{lengths.max()}. Choose a smaller history or future."
        )
    count = np.where(lengths == window, 1, np.maximum(lengths - window, 0))
    first = _runs(sequences.offsets[:-1] + (lengths > window), count)
    return WindowStore(sequences, first, history=history, future=future, num_too_short=int((lengths < window).sum()))


def make_crops(sequences: EventSequences, *, length: int, min_events: int | None = None) -> CropStore:
    """Crops of at most `length` events from every position that leaves at least `min_events` (or the whole sequence).

    Args:
        length: most events of a crop.
        min_events: fewest events of a crop of a longer sequence; default half of `length`.
    """
    _check_sequences(sequences)
    fewest: Any = max(length // 2, 1) if min_events is None and _is_count(length) else min_events
    if not _is_count(length) or not _is_count(fewest) or fewest > length:
        raise ValueError(
            f"crops need 1 <= min_events <= length; got min_events {fewest!r} and length {length!r}. Choose others."
        )
    lengths = sequences.lengths
    positions = lengths - np.minimum(fewest, lengths) + 1
    first = _runs(sequences.offsets[:-1], positions)
    return CropStore(sequences, first, np.minimum(np.repeat(sequences.offsets[1:], positions) - first, length))


def make_whole(sequences: EventSequences, max_length: int | None = None) -> CropStore:
    """One item per sequence, in full or its first `max_length` events."""
    _check_sequences(sequences)
    if max_length is not None and not _is_count(max_length):
        raise ValueError(f"max_length must be at least 1; got {max_length!r}. Leave it out for whole sequences.")
    lengths = sequences.lengths
    return CropStore(
        sequences, sequences.offsets[:-1], lengths if max_length is None else lengths.clip(max=max_length)
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


def _check_sequences(sequences: Any) -> None:
    if not isinstance(sequences, EventSequences):
        kind = type(sequences).__name__
        raise ValueError(f"windows are cut from EventSequences; got {kind}. Make them with load_events.")
    if len(sequences) == 0:
        raise ValueError("windows need at least one sequence; got none. Check what was selected.")


def _runs(begin: np.ndarray, count: np.ndarray) -> np.ndarray:
    """begin[i], begin[i] + 1, ... (count[i] of them) for every i, joined."""
    return np.arange(count.sum()) + np.repeat(begin - np.cumsum(count) + count, count)


def parse_pair(name: str) -> tuple[int, int]:
    """(K, L) of a window name such as "15-40"."""
    match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", str(name))
    if match is None:
        raise ValueError(f'a window is named "K-L", future then history, such as "15-40"; got {name!r}.')
    return int(match[1]), int(match[2])


def load_windows(source: Any, name: str = "15-40", *, split: str = "train", **columns: Any) -> WindowStore:
    """Windows in memory, for training and evaluation.

    Args:
        source: what `load_source` reads: a folder written by `export_windows`, a file or folder of events, or the Hub
            id of such a data set; `EventSequences`, a mapping from split to them; or anything `load_events` takes. A
            source that is one piece is the split train.
        name: "K-L", number of future and history events. An exported folder serves any pair: it holds the sequences.
        split: train, validation, test, or test_sampled (5,000 windows of test by a fixed seed).
        columns: keywords of `load_events`; `revision` of a data set on the Hub.
    """
    future, history = parse_pair(name)
    splits: Mapping[str, EventSequences]
    if isinstance(source, str | Path):
        splits = load_source(source, **columns)
    elif isinstance(source, Mapping) and all(isinstance(value, EventSequences) for value in source.values()):
        splits = source
    elif isinstance(source, EventSequences):
        splits = {"train": source}
    else:
        splits = {"train": load_events(source, **columns)}
    whole = "test" if split == "test_sampled" else split
    if whole not in splits:
        raise ValueError(f"no split {split!r}; the source has {', '.join(splits)}. Pass split=<one of them>.")
    store = make_windows(splits[whole], future=future, history=history)
    return store.sample() if split == "test_sampled" else store


def is_export(folder: Path) -> bool:
    """Whether `export_windows` wrote this folder."""
    card = folder / "README.md"
    return card.is_file() and CARD_MARKER in card.read_text(encoding="utf-8")


def export_windows(
    splits: Mapping[str, EventSequences],
    out: str | Path,
    pairs: Iterable[tuple[int, int]] = ((15, 40),),
    *,
    name: str,
    card: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> Path:
    """Windows as Parquet with a card, for `datasets.load_dataset(out, "K-L")`; returns the folder.

    One configuration per pair with the given splits, and `test_sampled` if there is a test split; `sequences` holds
    the events themselves. The folder appears complete or not at all.

    Args:
        splits: sequences per split, with one shared mark vocabulary.
        out: folder to write; one that exists and was not written by this function is left alone.
        pairs: (K, L) of each configuration.
        name: name of the data set.
        card: texts of the card that cannot be computed, keys as in `dataset_cards/*.yaml`.
        overwrite: replace `out` whatever it holds.
    """
    if not isinstance(name, str) or not name.strip() or not (card is None or isinstance(card, Mapping)):
        raise ValueError(f"a data set needs a name, and its card a dict of texts; got {name!r} and {card!r:.80}.")
    name, card = " ".join(name.split()), {key: str(value) for key, value in (card or {}).items()}
    out = Path(out)
    if unknown := sorted(set(card) - set(CARD_FIELDS)):
        raise ValueError(f"a card has the fields {', '.join(CARD_FIELDS)}; got {', '.join(unknown)}. Remove them.")
    if out.exists() and not (overwrite or is_export(out) or (out.is_dir() and not any(out.iterdir()))):
        raise ValueError(f"{out} exists and holds something else. Choose another folder, or pass overwrite=True.")
    if not isinstance(splits, Mapping) or not all(isinstance(split, EventSequences) for split in splits.values()):
        raise ValueError("splits must map names to EventSequences; got others. Load them with load_splits.")
    # They become the names of files.
    if bad := [split for split in splits if not re.fullmatch(r"[A-Za-z0-9_]{1,50}", str(split))]:
        raise ValueError(f"a split is named by letters, digits and _; got {bad[0]!r}. Rename it.")
    pairs = list(pairs)
    if not pairs or not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ValueError(f"pairs must be numbers (future, history), such as (15, 40); got {pairs}. Name one or more.")
    if len({tuple(sequences.id2label.items()) for sequences in splits.values()}) != 1:
        raise ValueError("the splits must be there and share one mark vocabulary. Load them with load_splits.")
    splits = {key: replace(s, time_unit=s.time_unit or card.get("time_unit")) for key, s in splits.items()}
    stores = {}
    for future, history in dict.fromkeys(pairs):
        for split, sequences in splits.items():
            try:
                stores[f"{future}-{history}", split] = make_windows(sequences, future=future, history=history)
            except ValueError as error:
                raise ValueError(f"split {split!r}: {error}") from None
        if "test" in splits:
            stores[f"{future}-{history}", "test_sampled"] = stores[f"{future}-{history}", "test"].sample()

    with folder_replaced_when_done(out) as partial:
        for split, sequences in splits.items():
            _write_sequences(sequences, partial / "sequences" / f"{split}.parquet")
        with tqdm(total=sum(map(len, stores.values())), unit="windows", unit_scale=True, desc=name) as progress:
            for (pair, split), store in stores.items():
                _write_windows(store, partial / pair / f"{split}.parquet", progress)
        (partial / "README.md").write_text(_card(name, card, splits, stores), encoding="utf-8")
    return out


def _schema(sequences: EventSequences, lengths: Mapping[str, int], *others: str) -> pa.Schema:
    """Arrow schema with what `datasets` and `load_events` read beside it: mark names, list lengths, time unit."""
    from datasets import ClassLabel, Features, List, Value

    features = {"seq_id": Value(str(_seq_ids(sequences).type))}
    for prefix, length in lengths.items():
        features[f"{prefix}times"] = List(Value("float64"), length=length)
        features[f"{prefix}marks"] = List(ClassLabel(names=list(sequences.id2label.values())), length=length)
    kinds = {"window": "int64", "epoch": "timestamp[ns]"}
    features |= {column: Value(kinds.get(column, "float64")) for column in others}
    schema = Features(features).arrow_schema
    return schema.with_metadata(schema.metadata | {b"ehd_hf": json.dumps({"time_unit": sequences.time_unit}).encode()})


def _seq_ids(sequences: EventSequences) -> pa.Array:
    whole = all(isinstance(name, int | np.integer) for name in sequences.seq_ids)
    return pa.array(sequences.seq_ids, pa.int64()) if whole else pa.array([str(name) for name in sequences.seq_ids])


def _write_sequences(sequences: EventSequences, path: Path) -> None:
    offsets = pa.array(sequences.offsets, pa.int32())
    epochs = np.full(len(sequences), "NaT", "datetime64[ns]") if sequences.epochs is None else sequences.epochs
    columns = {
        "seq_id": _seq_ids(sequences),
        "times": pa.ListArray.from_arrays(offsets, sequences.times),
        "marks": pa.ListArray.from_arrays(offsets, sequences.marks),
        "start": pa.array(sequences.starts, from_pandas=True),  # unknown is null
        "epoch": pa.array(epochs),
    }
    schema = _schema(sequences, {"": -1}, "start", "epoch")
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns).cast(schema), path, row_group_size=ROWS_PER_CHUNK)


def _write_windows(store: WindowStore, path: Path, progress: tqdm[Any]) -> None:
    history, future = store.history, store.future
    schema = _schema(store.sequences, {"history_": history, "future_": future}, "window", "origin")
    seq_ids, sequence_index, window_offset = _seq_ids(store.sequences), store.sequence_index, store.window_offset
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for begin in range(0, len(store), ROWS_PER_CHUNK):
            rows = np.arange(begin, min(begin + ROWS_PER_CHUNK, len(store)))
            times, marks = (values.numpy() for values in store.gather(rows))  # (B, T)
            lists = {
                "history_times": times[:, :history],
                "history_marks": marks[:, :history],
                "future_times": times[:, history:],
                "future_marks": marks[:, history:],
            }
            columns = {key: pa.FixedSizeListArray.from_arrays(v.ravel(), v.shape[1]) for key, v in lists.items()}
            columns["seq_id"] = seq_ids.take(pa.array(sequence_index[rows]))
            columns |= {"window": pa.array(window_offset[rows]), "origin": pa.array(store.origins[rows])}
            writer.write_table(pa.table({key: columns[key] for key in schema.names}).cast(schema))
            progress.update(len(rows))


def statistics(sequences: EventSequences) -> dict[str, float]:
    """What a card tells of one split; intervals before a first event count only where the start is known."""
    intervals = sequences.intervals()
    unknown = np.zeros(sequences.num_events, dtype=bool)
    unknown[sequences.offsets[:-1]] = np.isnan(sequences.starts)
    intervals = intervals[~unknown]
    return {
        "sequences": len(sequences),
        "events": sequences.num_events,
        "shortest": int(sequences.lengths.min()),
        "longest": int(sequences.lengths.max()),
        "interval mean": float(intervals.mean()) if len(intervals) else float("nan"),
        "interval std": float(intervals.std()) if len(intervals) else float("nan"),
        "t0": float(sequences.previous_times().min()),
        "T": float(sequences.times.max()),
    }


def _card(
    name: str,
    card: Mapping[str, str],
    splits: Mapping[str, EventSequences],
    stores: Mapping[tuple[str, str], WindowStore],
) -> str:
    """README.md: YAML that tells `datasets` where each configuration lies; texts as given, statistics computed."""
    configs: dict[str, list[dict[str, str]]] = {}
    for config, split in [*stores, *(("sequences", split) for split in splits)]:
        configs.setdefault(config, []).append({"split": split, "path": f"{config}/{split}.parquet"})
    header: dict[str, Any] = {
        "pretty_name": card.get("pretty_name", name),
        "license": card.get("license", "unknown"),
        "tags": ["ehd_hf", "temporal-point-process", "event-sequences"],
        "size_categories": [_size_category(max(map(len, stores.values())))],
        "configs": [{"config_name": config, "data_files": files} for config, files in configs.items()],
    }
    header["configs"][0]["default"] = True
    any_split = next(iter(splits.values()))
    counts = {split: np.bincount(s.marks, minlength=s.num_marks) for split, s in splits.items()}
    windows: dict[str, dict[str, Any]] = {}
    for (pair, split), store in stores.items():
        windows.setdefault(split, {})[pair] = len(store)
        if split != "test_sampled":
            windows[split][f"too short for {pair}"] = store.num_too_short
    template = Template(files("ehd_hf.present").joinpath("templates/dataset_card.md").read_text(encoding="utf-8"))
    text = template.substitute(
        header=yaml.safe_dump(header, sort_keys=False, allow_unicode=True).rstrip(),
        marker=CARD_MARKER,
        name=plain_markdown(name),
        pretty_name=plain_markdown(header["pretty_name"]),
        license=plain_markdown(header["license"]),
        time_unit=plain_markdown(any_split.time_unit or "not stated by the source"),
        provenance=card.get("provenance", "Not stated.").strip(),
        citation=card.get("citation", "").strip(),
        mark_text=f"{card.get('marks', '').strip()} {_mark_summary(counts, any_split.id2label)}".strip(),
        num_marks=any_split.num_marks,
        example=next(iter(configs)),
        folder=CARD_FOLDER,
        sampled=f"{SAMPLED_WINDOWS:,}",
        seed=SAMPLED_SEED,
        statistics=_markdown("split", {split: statistics(sequences) for split, sequences in splits.items()}),
        windows=_markdown("split", windows),
        mark_counts=_markdown(
            "mark",
            {
                str(mark): {"name": label, **{split: int(count[mark]) for split, count in counts.items()}}
                for mark, label in any_split.id2label.items()
            },
        ),
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def _mark_summary(counts: Mapping[str, np.ndarray], id2label: Mapping[int, str]) -> str:
    split, count = next(iter(counts.items()))
    most, least, share = int(count.argmax()), int(count.argmin()), count / count.sum()
    if share[most] == share[least]:
        return ""
    return (
        f"In the {split} split {share[most]:.1%} of the events are of the most frequent mark "
        f"({plain_markdown(id2label[most])}) and {share[least]:.2%} of the rarest ({plain_markdown(id2label[least])})."
    )


def _size_category(number: int) -> str:
    """The Hub's word for a number of rows, such as "10K<n<100K"."""
    bounds = ["1K", "10K", "100K", "1M", "10M", "100M"]
    place = sum(number >= 10 ** (3 + power) for power in range(len(bounds) - 1))
    return "n<1K" if place == 0 else f"{bounds[place - 1]}<n<{bounds[place]}"


def _markdown(corner: str, rows: Mapping[str, Mapping[str, Any]]) -> str:
    """A Markdown table, one row per key; a value that is not there stays blank."""
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))

    def text(value: Any) -> str:
        return (
            plain_markdown(value)
            if isinstance(value, str)
            else f"{value:,}"
            if isinstance(value, int)
            else f"{value:.6g}"
        )

    lines = [[corner, *columns], ["---"] * (len(columns) + 1)]
    lines += [[key, *(text(row[column]) if column in row else "" for column in columns)] for key, row in rows.items()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
