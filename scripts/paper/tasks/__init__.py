"""What `evaluate.py` measures: a module per kind of question, each with `find_rows(arguments, cache)`."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModel

from ehd_hf import __version__
from ehd_hf.data.sequences import EventSequences, events_digest
from ehd_hf.data.sources import load_source, with_jitter
from ehd_hf.data.synthetic import simulated_splits
from ehd_hf.data.windows import SAMPLED_SEED, WindowStore, load_windows
from ehd_hf.evaluation.answers import BATCH_SIZE, DISTILLER, get_method
from ehd_hf.files import checkpoint_stamp
from ehd_hf.models.distiller import DistillerModel
from ehd_hf.models.question import Conditioning
from ehd_hf.solvers.base import Solver, available_solvers, get_solver

Row = dict[str, Any]
Cache = Callable[[Row], Row | None]

# What identifies a row; what a row does not have counts as None.
KEY = (
    *("task", "data", "data_digest", "split", "jitter_seed", "pair", "model", "checkpoint", "version"),
    *("conditioning", "num_windows", "solver", "generator_seed", "batch_size", "target", "reference", "check"),
    *("limit", "first", "num_models"),
)


@dataclass(frozen=True)
class Run:
    """How rows are computed.

    Args:
        cache: asked before a row is computed, with what identifies it: the row itself if there is one.
        conditioning: of the perplexities.
        generator_seed: of the solvers' randomness.
        batch_size: windows searched at once; what a random solver draws depends on it.
        progress: whether to show bars.
        stamp: what else each row says (data, split, model, ...).
    """

    cache: Cache = lambda key: None
    conditioning: Conditioning = "survival"
    generator_seed: int = 0
    batch_size: int = BATCH_SIZE
    progress: bool = False
    stamp: Row = field(default_factory=dict)

    @property
    def search(self) -> Row:
        """What a search depends on."""
        return {"generator_seed": self.generator_seed, "batch_size": self.batch_size}

    def key(self, task: str, windows: WindowStore, **more: Any) -> Row:
        """What identifies a row."""
        key = {"task": task, "pair": f"{windows.future}-{windows.history}", **self.stamp}
        return key | {"conditioning": self.conditioning, "num_windows": len(windows), "version": __version__, **more}

    def row(self, key: Row, compute: Callable[[], Row]) -> Row:
        """The row of `key`, computed if it is not cached."""
        cached = self.cache(key)
        return key | compute() if cached is None else cached

    def bar(self, name: str) -> str | None:
        return name if self.progress else None


def load_data(arguments: Namespace, *needed: str) -> tuple[dict[str, Any], Row]:
    """Event sequences by split, and what identifies them in a row."""
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


def load_model_windows(arguments: Namespace, folder: Path, cache: Cache) -> tuple[Any, WindowStore, Run]:
    """A distiller, windows of its own (K, L) unless --pair says otherwise, and how rows of both are computed."""
    splits, stamp = load_data(arguments, "test" if arguments.split == "test_sampled" else arguments.split)
    distiller = load_distiller(folder)
    pair = arguments.pair or f"{distiller.config.future}-{distiller.config.history}"
    names = distiller.config.mtpp_config.id2label
    events = {split: renumber_marks(sequences, names) for split, sequences in splits.items()}
    windows = load_windows(events, pair, split=arguments.split)
    if arguments.first:
        windows = windows.select(range(min(arguments.first, len(windows))))
    elif arguments.limit:  # a case study looks at neighbouring windows
        alone = arguments.tasks == ["case_study"]
        windows = sample_sequences(windows, arguments.limit) if alone else windows.sample(arguments.limit)
    stamp |= checkpoint_stamp(folder) | {"model": folder.resolve().name, "limit": arguments.limit}
    stamp |= {"first": arguments.first} if arguments.first else {}
    conditioning = arguments.conditioning or distiller.config.conditioning
    return distiller, windows, Run(cache, conditioning, arguments.seed, arguments.batch_size, True, stamp)


def sample_sequences(windows: WindowStore, size: int, seed: int = SAMPLED_SEED) -> WindowStore:
    """All windows of as many fixed-seed sequences as it takes to have `size` of them, in order."""
    index = windows.sequence_index
    shuffled = np.random.default_rng(seed).permutation(np.unique(index))
    reached = np.cumsum(np.bincount(index)[shuffled])
    chosen = shuffled[: int(np.searchsorted(reached, size)) + 1]
    return windows.select(np.flatnonzero(np.isin(index, chosen)))


def load_distiller(folder: Path) -> Any:
    """The distiller in a folder."""
    checkpoint_stamp(folder)  # refuses a folder without a model, by name
    model = AutoModel.from_pretrained(folder)
    if not isinstance(model, DistillerModel):
        raise ValueError(f"{folder} must hold a distiller; got a {type(model).__name__}. Train one on it first.")
    return model.eval()


def renumber_marks(sequences: EventSequences, id2label: Mapping[int, str]) -> EventSequences:
    """The same events, their marks numbered as in `id2label`, if it has the same names; else as they are."""
    number = {label: mark for mark, label in id2label.items()}
    if len(number) != len(id2label) or sorted(sequences.id2label.values()) != sorted(number):
        return sequences
    order = np.array([number[sequences.id2label[mark]] for mark in range(sequences.num_marks)])
    return replace(sequences, marks=order[sequences.marks], id2label=dict(id2label))


def get_ranking(spec: str, distiller: DistillerModel | None = None) -> Solver:
    """The solver of `get_method`, where an order of all events is needed, not a set of them."""
    solver = get_method(spec, distiller)
    if not solver.orders:
        orders = [name for name in available_solvers() if get_solver(name).orders]
        raise ValueError(
            f"an order of all events is needed, as {DISTILLER}, {', '.join(orders)} give one; got {spec!r}, which "
            "finds sets of events. Leave it out."
        )
    return solver
