"""Windows as a data set of the Hub: Parquet with a card, for `datasets.load_dataset(folder, "15-40")`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from jinja2 import Environment, StrictUndefined
from tqdm.auto import tqdm

from ..files import folder_replaced_when_done, write_manifest
from .sequences import EventSequences
from .windows import SAMPLED_SEED, SAMPLED_WINDOWS, WindowStore, make_windows

CARD_MARKER = "<!-- written by ehd_hf.windows.export_windows -->"
CARD_FOLDER = "path/to/this/folder"  # what a card calls its data set until it has a Hub id
CARD_FIELDS = ("pretty_name", "license", "time_unit", "provenance", "marks", "citation")
ROWS_PER_CHUNK = 10_000


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
    context_marks: Sequence[str] = (),
    overwrite: bool = False,
) -> Path:
    """Windows as Parquet with a card, for `datasets.load_dataset(out, "K-L")`; returns the folder.

    One configuration per pair (K, L) with the given splits, and `test_sampled` if there is a test split; `sequences`
    holds the events themselves. The folder appears complete or not at all.

    Args:
        splits: sequences per split, with one shared mark vocabulary.
        out: folder to write; one that exists and was not written by this function is left alone, unless `overwrite`.
        card: texts of the card that cannot be computed, keys as in `dataset_cards/*.yaml`.
        context_marks: marks that are there as causes and should not be predicted; the card says so.
    """
    out, pairs = Path(out), list(pairs)
    if not name.strip() or not (card is None or isinstance(card, Mapping)):  # a YAML file may hold anything
        raise ValueError(f"a data set needs a name, and its card a dict of texts; got {name!r} and {card!r:.80}.")
    if unknown := sorted(set(card or ()) - set(CARD_FIELDS)):
        raise ValueError(f"a card has the fields {', '.join(CARD_FIELDS)}; got {', '.join(unknown)}. Remove them.")
    if out.exists() and not (overwrite or is_export(out) or (out.is_dir() and not any(out.iterdir()))):
        raise ValueError(f"{out} exists and holds something else. Choose another folder, or pass overwrite=True.")
    # They become the names of files.
    if bad := [split for split in splits if not re.fullmatch(r"[A-Za-z0-9_]{1,50}", str(split))]:
        raise ValueError(f"a split is named by letters, digits and _; got {bad[0]!r}. Rename it.")
    known = {name for sequences in splits.values() for name in sequences.id2label.values()}
    if unknown_marks := [mark for mark in context_marks if mark not in known]:
        raise ValueError(f"context marks must be marks of the events; got {unknown_marks[0]!r}. Correct the name.")
    if not pairs or len({tuple(sequences.id2label.items()) for sequences in splits.values()}) != 1:
        raise ValueError("a data set needs pairs, and splits that share one mark vocabulary. Use load_splits.")
    if context_marks:
        told = f"Context, to be heard and not predicted: {', '.join(map(plain_markdown, context_marks))}."
        card = {**(card or {}), "marks": f"{(card or {}).get('marks', '')} {told}".strip()}
    name, texts = " ".join(name.split()), {key: str(value).strip() for key, value in (card or {}).items()}
    splits = {key: replace(s, time_unit=s.time_unit or texts.get("time_unit")) for key, s in splits.items()}
    stores: dict[tuple[str, str], WindowStore] = {}
    for future, history in pairs:
        pair = f"{future}-{history}"
        for split, sequences in splits.items():
            try:
                stores[pair, split] = make_windows(sequences, future=future, history=history)
            except ValueError as error:
                raise ValueError(f"split {split!r}: {error}") from None
        if "test" in splits:
            stores[pair, "test_sampled"] = stores[pair, "test"].sample()

    with folder_replaced_when_done(out) as partial:
        for split, sequences in splits.items():
            _write_sequences(sequences, partial / "sequences" / f"{split}.parquet")
        with tqdm(total=sum(map(len, stores.values())), unit="windows", unit_scale=True, desc=name) as progress:
            for (pair, split), store in stores.items():
                _write_windows(store, partial / pair / f"{split}.parquet", progress)
        (partial / "README.md").write_text(_card(name, texts, splits, stores), encoding="utf-8")
        for folder in (folder for folder in partial.iterdir() if folder.is_dir()):
            write_manifest(folder)
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
    lists = [pa.ListArray.from_arrays(offsets, values) for values in (sequences.times, sequences.marks)]
    starts = pa.array(sequences.starts, from_pandas=True)  # unknown is null
    epochs = pa.nulls(len(sequences)) if sequences.epochs is None else pa.array(sequences.epochs)
    schema = _schema(sequences, {"": -1}, "start", "epoch")
    table = pa.table([_seq_ids(sequences), *lists, starts, epochs], schema.names)
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.cast(schema), path, row_group_size=ROWS_PER_CHUNK)


def _write_windows(store: WindowStore, path: Path, progress: tqdm[Any]) -> None:
    history, future = store.history, store.future
    schema = _schema(store.sequences, {"history_": history, "future_": future}, "window", "origin")
    seq_ids, sequence_index, window_offset = _seq_ids(store.sequences), store.sequence_index, store.window_offset
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for begin in range(0, len(store), ROWS_PER_CHUNK):
            rows = np.arange(begin, min(begin + ROWS_PER_CHUNK, len(store)))
            times, marks = (values.numpy() for values in store.gather(rows))  # (B, T)
            lists = (times[:, :history], marks[:, :history], times[:, history:], marks[:, history:])
            columns = [seq_ids.take(pa.array(sequence_index[rows]))]
            columns += [pa.FixedSizeListArray.from_arrays(part.ravel(), part.shape[1]) for part in lists]
            columns += [pa.array(window_offset[rows]), pa.array(store.origins[rows])]
            writer.write_table(pa.table(columns, schema.names).cast(schema))
            progress.update(len(rows))


def statistics(sequences: EventSequences) -> dict[str, float]:
    """What a card tells of one split; intervals before a first event count only where the start is known."""
    intervals = np.delete(sequences.intervals(), sequences.offsets[:-1][np.isnan(sequences.starts)])
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
    name: str, texts: dict[str, str], splits: dict[str, EventSequences], stores: dict[tuple[str, str], WindowStore]
) -> str:
    """README.md: YAML that tells `datasets` where each configuration lies; texts as given, statistics computed."""
    texts = {"pretty_name": name, "license": "unknown", "provenance": "Not stated."} | texts
    configs: dict[str, list[dict[str, str]]] = {}
    for config, split in [*stores, *(("sequences", split) for split in splits)]:
        configs.setdefault(config, []).append({"split": split, "path": f"{config}/{split}.parquet"})
    header: dict[str, Any] = {
        "pretty_name": texts["pretty_name"],
        "license": texts["license"],
        "tags": ["ehd_hf", "temporal-point-process", "event-sequences"],
        "size_categories": [_size_category(max(map(len, stores.values())))],
        "configs": [{"config_name": config, "data_files": files} for config, files in configs.items()],
    }
    header["configs"][0]["default"] = True
    windows: dict[str, dict[str, int]] = {}
    for (pair, split), store in stores.items():
        too_short = {} if split == "test_sampled" else {f"too short for {pair}": store.num_too_short}
        windows.setdefault(split, {}).update({pair: len(store)} | too_short)
    counts = {split: np.bincount(s.marks, minlength=s.num_marks).tolist() for split, s in splits.items()}
    environment = Environment(undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    environment.filters |= {"plain": plain_markdown, "cell": _cell}
    template = environment.from_string(files("ehd_hf.data").joinpath("dataset_card.md").read_text(encoding="utf-8"))
    text = template.render(
        header=yaml.safe_dump(header, sort_keys=False, allow_unicode=True).rstrip(),
        marker=CARD_MARKER,
        texts=texts,
        time_unit=next(iter(splits.values())).time_unit,
        labels=next(iter(splits.values())).id2label,
        counts=counts,
        example=next(iter(configs)),
        folder=CARD_FOLDER,
        sampled=f"{SAMPLED_WINDOWS:,}",
        seed=SAMPLED_SEED,
        statistics={split: statistics(sequences) for split, sequences in splits.items()},
        windows=windows,
    )
    return re.sub(r"\n{3,}", "\n\n", text)


def _size_category(number: int) -> str:
    """The Hub's word for a number of rows, such as "10K<n<100K"."""
    bounds = ["1K", "10K", "100K", "1M", "10M", "100M"]
    place = sum(number >= 10 ** (3 + power) for power in range(len(bounds) - 1))
    return "n<1K" if place == 0 else f"{bounds[place - 1]}<n<{bounds[place]}"


def plain_markdown(text: Any) -> str:
    """A name from data as Markdown that shows it and does nothing else: no markup, no HTML, one line."""
    line = " ".join(str(text).split())
    return re.sub(r"([\\`*\[\]<>#|~&]|\b_|_\b)", lambda match: f"&#{ord(match[1])};", line)


def _cell(value: Any) -> str:
    """A value of a Markdown table."""
    if isinstance(value, str):
        return plain_markdown(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
