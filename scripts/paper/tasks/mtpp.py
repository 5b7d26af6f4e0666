"""How good a point process is: NLL and calibration, beside trivial baselines and the true process."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import AutoModel

from ehd_hf import __version__
from ehd_hf.data.sequences import EventSequences
from ehd_hf.data.synthetic import PROCESSES
from ehd_hf.data.windows import WindowStore, make_windows, parse_pair
from ehd_hf.evaluation.baselines import EventScores
from ehd_hf.evaluation.scores import (
    MAX_TOKENS,
    check_marks,
    evaluate_mtpp,
    mean_nll,
    trivial_baselines,
)
from ehd_hf.files import checkpoint_stamp
from ehd_hf.models.point_process import MTPPModel, in_double

from . import Cache, Row, load_data
from .true_process import TRUE_PROCESS, TrueProcess


def find_rows(arguments: Namespace, cache: Cache) -> Iterator[Row]:
    """A row per baseline, for the true process if there is one, and per model."""
    if arguments.pair is not None:
        parse_pair(arguments.pair)  # a wrong name ends here, before anything is loaded
    checkpoints = {str(folder): checkpoint_stamp(folder) for folder in arguments.model}
    splits, stamp = load_data(arguments, "train", arguments.split)
    test = splits[arguments.split]
    models: dict[str, Any] = dict(trivial_baselines(test, splits["train"], splits.get("validation")))
    if arguments.data.startswith("simulated:"):
        models[TRUE_PROCESS] = TrueProcess(PROCESSES[arguments.data.partition(":")[2]]())
    models |= {name: AutoModel.from_pretrained(name) for name in checkpoints}
    for name, model in models.items():
        check_marks(name, model, test)
    for name, model in models.items():
        identity = stamp | checkpoints.get(name, {"checkpoint": None, "seed": None})
        row = cache(identity | {"task": "mtpp", "pair": arguments.pair, "model": name, "version": __version__})
        if row is not None:
            yield row
        else:
            yield score_row(name, model, test, arguments.pair, progress=True, **identity)


def score_row(
    name: str, model: Any, sequences: EventSequences, pair: str | None, *, progress: bool = False, **stamp: Any
) -> Row:
    """The row of `evaluate_mtpp`, and with a `pair` "K-L" the keys `future_nll`, `future_time_nll`, `future_mark_nll`
    and `num_windows`: the K future events of all windows (log p(x_o | H_f) of eq. 5). Baselines and the true process
    see the whole past of a window, which a model does not."""
    windows = None
    if pair is not None:
        future, history = parse_pair(pair)
        windows = make_windows(sequences, future=future, history=history)
    (row,) = evaluate_mtpp({name: model}, sequences, progress=progress, **stamp, pair=pair)
    if windows is None:
        return row
    if isinstance(model, MTPPModel):
        scores = _score_futures(in_double(model), windows, MAX_TOKENS, progress, name)
    else:
        scores = _average_futures(model.log_prob(sequences), windows)
    return row | {f"future_{key}": value for key, value in scores.items()} | {"num_windows": len(windows)}


@torch.no_grad()
def _score_futures(model: MTPPModel, windows: WindowStore, max_tokens: int, progress: bool, name: str) -> Row:
    """Mean NLL of the future of every window, its history as the window has it."""
    sums, size = np.zeros(3), max(1, max_tokens // (windows.history + windows.future))
    with tqdm(total=len(windows), unit="windows", unit_scale=True, desc=name, disable=not progress) as bar:
        for first in range(0, len(windows), size):
            times, marks = windows.gather(np.arange(first, min(first + size, len(windows))))
            batch = (times, marks, torch.ones(times.shape, dtype=torch.bool))
            output = model.event_log_prob(*(values.to(model.device) for values in batch), num_last=windows.future)
            sums += [float(output[field].sum()) for field in EventScores._fields[:3]]
            bar.update(len(times))
    return mean_nll(*np.split(sums / (len(windows) * windows.future), 3))


def _average_futures(scores: EventScores, windows: WindowStore) -> Row:
    """The same mean where an event's score does not depend on the window: by running sums, however many windows."""
    begin = windows.first + windows.history  # (W,), never a first event
    means = []
    for values in scores[:3]:
        running = np.concatenate([[0.0], np.cumsum(np.nan_to_num(values))])
        total = (running[begin + windows.future] - running[begin]).sum() / (len(windows) * windows.future)
        means.append(np.array([np.nan if np.isnan(values[begin[0]]) else total]))
    return mean_nll(*means)


def add_gaps(rows: Iterable[Row]) -> list[Row]:
    """The rows, with `gap` = nll above the true process's nll where the same events were scored by it too."""
    rows = list(rows)

    def events(row: Row) -> tuple[Any, ...]:
        return tuple(row.get(key) for key in ("data", "split", "jitter_seed", "num_events"))

    truth = {events(row): row["nll"] for row in rows if row.get("model") == TRUE_PROCESS}
    return [row | ({"gap": row["nll"] - truth[events(row)]} if events(row) in truth else {}) for row in rows]
