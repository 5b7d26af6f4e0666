"""What `evaluate.py` measures: a module per kind of question, each with `find_rows(arguments, cache)`."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

# What identifies a row; what a row does not have counts as None.
KEY = (
    *("task", "data", "data_digest", "split", "jitter_seed", "pair", "model", "checkpoint", "version"),
    *("conditioning", "num_windows", "solver", "generator_seed", "batch_size", "target", "reference", "check"),
    *("limit", "first", "num_models"),
)


def load_data(arguments: Namespace, *needed: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Event sequences by split, and what identifies them in a row."""
    from ehd_hf.data.sources import load_source, with_jitter
    from ehd_hf.data.synthetic import simulated_splits
    from ehd_hf.data.windows import load_windows
    from ehd_hf.evaluation.scores import events_digest

    kind, _, process = arguments.data.partition(":")
    exported = Path(arguments.data) / "sequences"  # a folder of windows holds the events they were made of
    if kind == "simulated":
        splits: dict[str, Any] = simulated_splits(process)
    elif exported.is_dir():
        names = sorted(file.stem for file in exported.glob("*.parquet"))
        splits = {name: load_windows(arguments.data, "1-1", split=name).sequences for name in names}
    else:
        splits = load_source(arguments.data)
    for split in needed:
        if split not in splits:
            raise ValueError(f"the data must have the split {split!r}; got {', '.join(splits)}. Check --split.")
    if arguments.jitter_seed is not None:
        splits = {split: with_jitter(sequences, seed=arguments.jitter_seed) for split, sequences in splits.items()}
    # Baselines are fitted on the first.
    digest = events_digest(*(splits[split] for split in ("train", needed[-1]) if split in splits))
    name = arguments.data if kind == "simulated" else Path(arguments.data).resolve().stem
    stamp = {"data": name, "data_digest": digest, "split": arguments.split, "jitter_seed": arguments.jitter_seed}
    return splits, stamp


def load_model_windows(arguments: Namespace, folder: Path) -> tuple[Any, Any, dict[str, Any]]:
    """A distiller, windows of its own (K, L) unless --pair says otherwise, and what identifies both in a row."""
    from ehd_hf import EHDDistiller
    from ehd_hf.data.windows import load_windows
    from ehd_hf.evaluation.scores import checkpoint_stamp, renumber_marks

    splits, stamp = load_data(arguments, "test" if arguments.split == "test_sampled" else arguments.split)
    distiller: Any = EHDDistiller.from_pretrained(folder).model
    pair = arguments.pair or f"{distiller.config.future}-{distiller.config.history}"
    known = distiller.config.mtpp_config.id2label
    events = {split: renumber_marks(sequences, known) for split, sequences in splits.items()}
    windows = load_windows(events, pair, split=arguments.split)
    if arguments.first:
        windows = windows.select(range(min(arguments.first, len(windows))))
    elif arguments.limit:  # a case study looks at neighbouring windows
        alone = arguments.tasks == ["case_study"]
        windows = windows.sample_sequences(arguments.limit) if alone else windows.sample(arguments.limit)
    stamp |= checkpoint_stamp(folder) | {"model": folder.resolve().name, "limit": arguments.limit}
    return distiller, windows, stamp | ({"first": arguments.first} if arguments.first else {})
