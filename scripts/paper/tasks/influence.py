"""Which kinds of events drive which: found in a log, against graphs that experts drew or that events were made from.

Every point process is trained here, briefly, and its settings are chosen by validation likelihood alone. The score of
a pair of kinds is fixed beforehand: the effects that one event of the cause sets off, here and in related sequences,
less those that it holds back.
"""

from __future__ import annotations

import functools
import json
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from transformers import AutoModel

from ehd_hf import __version__
from ehd_hf.data.reading import read_events
from ehd_hf.data.related import NEAR, join_related
from ehd_hf.data.sequences import EventSequences, events_digest
from ehd_hf.data.splits import split_events
from ehd_hf.data.synthetic import PROCESSES
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.influence import Influence
from ehd_hf.training.recipe import build_trainer

from . import Cache, Row, Run

HISTORY, HISTORY_WITH_NEIGHBOURS = 40, 100
LIFT, EVERY, CHOSEN = "pair lift", "every edge", "hawkes, by validation"
MODELS: dict[str, Any] = {f"hawkes, sparsity {value:g}": {"sparsity": value} for value in (0.0, 0.001, 0.003)}
MODELS |= {name: {"hidden_size": 32} for name in ("fullynn", "lognormmix", "attention")}
STEPS = 400
_EFFECTS = ("per_cause", "against", "low", "high")
_OF_SIMULATED = ("correlation", "coverage", "coverage_of_edges")
SIMULATED = {"sequences": 60, "horizon": 120.0}


@dataclass(frozen=True)
class Case:
    """A log, and what drives what in it: truth (C, C), a graph (bool) or expected children."""

    name: str
    events: EventSequences
    kinds: tuple[str, ...]
    truth: np.ndarray
    context: tuple[str, ...] = ()

    @property
    def history(self) -> int:
        return HISTORY_WITH_NEIGHBOURS if self.context else HISTORY


def cases(data: str, seed: int) -> Iterator[Case]:
    """Of `data`: simulated:<process>; or a folder of alarms.csv, graph.csv and perhaps related.csv."""
    kind, _, name = data.partition(":")
    if kind == "simulated":
        generator = np.random.default_rng(seed)
        events, truth = inhibited(generator) if name == "inhibited" else _simulated(name, generator)
        yield Case(data, events, tuple(events.id2label.values()), truth)
        return
    folder = Path(data)
    read = read_events(folder / "alarms.csv", time="time", mark="alarm", sequence="device", time_unit="s")
    kinds = tuple(read.events.id2label.values())
    graph = pd.read_csv(folder / "graph.csv")
    truth = np.zeros((len(kinds), len(kinds)), dtype=bool)
    truth[[kinds.index(kind) for kind in graph["cause"]], [kinds.index(kind) for kind in graph["effect"]]] = True
    if (folder / "related.csv").is_file():
        joined, context = join_related(read, folder / "related.csv")
        yield Case(f"{folder.name} with neighbours", joined.events, kinds, truth, tuple(context))
    yield Case(folder.name, read.events, kinds, truth)


def _simulated(name: str, generator: np.random.Generator) -> tuple[EventSequences, np.ndarray]:
    process = PROCESSES[name]()
    events = process.simulate(SIMULATED["horizon"], int(SIMULATED["sequences"]), generator).sequences
    return events, process.branching


def inhibited(generator: np.random.Generator) -> tuple[EventSequences, np.ndarray]:
    """Events of which one kind holds another back, drawn by thinning: the intensity of kind m is rates[m] plus the sum
    of effects[k, m] exp(-lag) over earlier events, and 0 where that is negative."""
    kinds = ("load", "error", "throttle", "noise")
    rates = np.array([0.3, 0.6, 0.2, 0.4])
    effects = np.zeros((4, 4))
    effects[0, 1], effects[2, 1], effects[1, 2] = 0.8, -0.5, 0.2
    columns: list[Any] = []
    for number in range(int(SIMULATED["sequences"])):
        now, pull = 0.0, np.zeros(4)  # what earlier events add now
        while True:
            most = np.maximum(rates + pull.clip(0), 0).sum()
            wait = generator.exponential(1 / most)
            now, pull = now + wait, pull * np.exp(-wait)
            if now > SIMULATED["horizon"]:
                break
            intensities = np.maximum(rates + pull, 0)
            if generator.random() * most < intensities.sum():
                mark = generator.choice(4, p=intensities / intensities.sum())
                columns.append((number, now, kinds[mark]))
                pull = pull + effects[mark]
    frame = pd.DataFrame(columns, columns=["seq_id", "time", "mark"])
    events = read_events(frame).events
    order = [kinds.index(name) for name in events.id2label.values()]
    return events, effects[np.ix_(order, order)]


def find_rows(arguments: Namespace, cache: Cache) -> Iterator[Row]:
    """For each case a row of pair lift, of every edge at once, of each point process (or of those in `solvers`), and
    of the Hawkes process that validation events are likeliest under."""
    asked = {name: settings for name, settings in MODELS.items() if name in (arguments.solvers or MODELS)}
    for case in cases(arguments.data, arguments.seed):
        stamp = {"data": case.name, "data_digest": events_digest(case.events), "split": "all", "version": __version__}
        run = Run(cache, stamp=stamp | {"task": "influence", "generator_seed": arguments.seed})
        rows = []
        for name, settings in asked.items():
            compute = functools.partial(trained, case, name, settings, arguments.seed)
            rows.append(run.row(run.stamp | {"solver": name}, compute))
            yield rows[-1]
        hawkes = [row for row in rows if row["solver"].startswith("hawkes")]
        if not hawkes:
            continue
        best = min(hawkes, key=lambda row: row["nll"])
        values = {key: best[key] for key in ("nll", "auc", "f1", *_OF_SIMULATED) if key in best}
        share = float(_pairs(case).mean())
        others = {CHOSEN: values | {"chosen": best["solver"]}, EVERY: {"auc": 0.5, "f1": 2 * share / (1 + share)}}
        others[LIFT] = {"auc": best["lift_auc"], "f1": best["lift_f1"]}
        for name, values in others.items():
            yield run.row(run.stamp | {"solver": name}, functools.partial(dict, values))


def trained(case: Case, name: str, settings: Any, seed: int) -> Row:
    """Train a point process on the case's training split; score the influence it finds in the whole log."""
    began, kind = time.perf_counter(), name.partition(",")[0]
    splits, _ = split_events(case.events, case.history + 1, 0)
    model = {"model_type": kind, **settings, "context_marks": list(case.context) or None}
    training: Row = {"steps": STEPS, "warmup_steps": STEPS // 20, "eval_every": STEPS // 8, "batch_size": 32}
    training |= {"seed": seed, "learning_rate": 0.1 if kind == "hawkes" else 0.01, "weight_decay": 0.0}
    data = {"pair": f"1-{case.history}", "crop_length": 100, "validation_items": 300}
    torch.manual_seed(seed)
    with TemporaryDirectory() as folder:
        out = Path(folder) / "model"
        training |= {"out": str(out), "num_threads": 1, "progress": False}
        build_trainer({"task": "mtpp", "data": data, "model": model, "training": training}, splits).train()
        best = json.loads((out / "training.json").read_text(encoding="utf-8"))["best"]
        mtpp = AutoModel.from_pretrained(out).eval()
    found = EHDDistiller.from_mtpp(mtpp).influence(case.events, history=case.history)
    row = {"nll": best["eval_loss"], **scored(case, found), "num_events": int(found.count.sum())}
    return row | {"steps": STEPS, "seconds": round(time.perf_counter() - began, 1)}


def scored(case: Case, found: Influence) -> Row:
    """`auc` and `f1`, at the true number of edges, over ordered pairs of different kinds, of influence and of lift. Of
    simulated events also: `correlation` with the expected children, and `coverage`, how often intervals hold them."""
    size = len(case.kinds)
    near = [found.kinds.index(NEAR + kind) if NEAR + kind in found.kinds else None for kind in case.kinds]
    own = [found.kinds.index(kind) for kind in case.kinds]
    count = (found.sums.carried[0] - found.sums.held)[:, found.predicted]

    def together(values: np.ndarray, other: np.ndarray) -> np.ndarray:
        return values[own] + np.stack([np.zeros(size) if n is None else other[n] for n in near])

    # What neighbours' events set off counts as their kind's.
    score = together(count, count) / np.maximum(found.count[own], 1)[:, None]
    lift = together(found.lift, found.lift)
    row = dict(zip(("auc", "f1"), against_graph(score, case), strict=True))
    row |= dict(zip(("lift_auc", "lift_f1"), against_graph(lift, case), strict=True))
    if case.truth.dtype == bool:
        return row
    frame = found.to_frame().set_index(["cause", "effect"])
    index = pd.MultiIndex.from_product([case.kinds, case.kinds])
    per_cause, held, low, high = (frame[name].reindex(index).to_numpy() for name in _EFFECTS)
    true, net = case.truth.ravel(), per_cause - held
    inside = (low - held <= true) & (true <= high - held)
    row["correlation"] = float(np.corrcoef(net, true)[0, 1])
    return row | {"coverage": float(inside.mean()), "coverage_of_edges": float(inside[true > 0].mean())}


def _pairs(case: Case) -> np.ndarray:
    """Whether each ordered pair of different kinds is an edge: the one sets off the other."""
    return (case.truth > 0)[~np.eye(len(case.kinds), dtype=bool)]


def against_graph(score: np.ndarray, case: Case) -> tuple[float, float]:
    """Area under the ROC curve, and F1 of as many edges as there are."""
    edges, values = _pairs(case), score[~np.eye(len(case.kinds), dtype=bool)]
    number, ranks = int(edges.sum()), pd.Series(values).rank().to_numpy()
    auc = (ranks[edges].sum() - number * (number + 1) / 2) / (number * (len(edges) - number))
    return float(auc), float(edges[np.argsort(-values, kind="stable")[:number]].mean())
