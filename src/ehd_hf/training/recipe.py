"""What `ehd-hf train` does: look at the events, plan, train the stages, judge the model by unseen sequences.

A plan holds a config of each stage, of the form that `scripts/train.py` reads: task, data, model and training. Several
point processes are trained one after the other and compared on validation; the distiller is built on the best.

A model's folder: `config.json` + `model.safetensors` (the distiller with its point process), `reading.json` (how its
events are read), `plan.json` (the `Run`: how they were split and trained on), `results.jsonl` (how good it is),
`train.log` (what happened when), `training/` (the stages; an interrupted one goes on from there). The first two appear
with the first evaluation: the best point process so far. From then on the folder holds a model that explains.
"""

from __future__ import annotations

import functools
import json
import math
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml
from transformers import CONFIG_MAPPING, MODEL_MAPPING, AutoConfig, AutoModel
from transformers.utils import logging as transformers_logging

from .. import __version__
from ..data.reading import EITHER, EPOCHS, SELDOM, Read, Reading
from ..data.sequences import EventSequences, events_digest
from ..data.windows import EventStore, make_crops, make_windows, parse_pair, sampled
from ..evaluation.answers import compare
from ..evaluation.scores import evaluate_mtpp, trivial_baselines
from ..files import checkpoint_stamp, holds_nothing, locked, make_folder, remove_folder, replaced_when_done, write_text
from ..models.distiller import DistillerModel
from ..models.point_process import MTPPConfig, MTPPModel
from ..models.question import Question
from .trainer import Trainer, TrainingArguments, Watch, interrupts_held, log_line, reopen, seconds_spent

Row = dict[str, Any]
Config = dict[str, Any]
Splits = Mapping[str, EventSequences]

PLAN_FILE, READING_FILE, RESULTS_FILE = "plan.json", "reading.json", "results.jsonl"
LOG_FILE, FINISH_FILE, OTHERS = "train.log", "finish", "backbones"
POINT_PROCESS, DISTILLER = "point_process", "distiller"  # stages; of several point processes, "point_process-<name>"
# What is learnt in a stage, and what it is judged by.
TASKS = {"mtpp": "learning what usually follows what", "distiller": "learning what explains it"}
METRICS = {"mtpp": "validation NLL", "distiller": "events needed in validation"}
SPLITS = {"train": 0.8, "validation": 0.1, "test": 0.1}
SHORTEST_WINDOW, LONGEST_WINDOW = 4, 36  # events, history and future together
FUTURE_SHARE = 1 / 6
CROP_LENGTH, BATCH_SIZE = 64, 64
# The distillers to choose from. A ranker orders the search, which integrated gradients do as well without training: it
# gets little time. MTPP-EHD answers by itself, with what it learnt and nothing else.
DISTILLERS: dict[str, Config] = {
    "ranking": {"model_type": "ranking_distiller", "share": 0.7, "conditioning": "survival"},
    "ehd": {"model_type": "ehd_distiller"},
    "none": {},
}
# The point processes that are named first, of those that transformers knows. auto: the first, then the second.
BACKBONES, AUTO = ("hawkes", "lognormmix", "fullynn", "attention"), ("hawkes", "lognormmix")
# Widths of those that have one, by the number of events to train on.
WIDTHS = {0: 32, 30_000: 64, 100_000: 96}
# Steps of each stage: so many passes over the training data, within bounds.
MTPP_PASSES, MTPP_STEPS = 100, (1000, 6000)
DISTILLER_PASSES, DISTILLER_STEPS = {"ranking": 2, "ehd": 10}, {"ranking": (60, 300), "ehd": (300, 1500)}
# By the clock: shares of the time of a distiller, and of hawkes among point processes; evaluations, of some 20, that
# may pass without improvement.
DISTILLER_TIME, HAWKES_TIME, PATIENCE = {"ranking": 0.15, "ehd": 0.3}, 1 / 6, {"mtpp": 8, "distiller": 8}
NUM_EVALUATIONS = {"mtpp": 16, "distiller": 6}
VALIDATION_ITEMS = {"mtpp": 1000, "distiller": 300}
SECONDS_BETWEEN_CHECKPOINTS = 20
REHEARSED = 0.1  # the part of the scoring that is tried beforehand, to know how long it takes
FEWER_THREADS = 0.9  # more threads must bring a step below this share of its time with one
MOST_TEST_EVENTS, MOST_TEST_WINDOWS = 50_000, 200
# When to warn: fewer events, a mean interval so many times the first quartile (of draws at random 3.5).
FEW_EVENTS, BURSTY = 2000, 100
# Nats per event by which a model must beat the trivial ones to count as one that knows more.
SMALLEST_GAIN = 0.02
# Explanations this much smaller than the most recent events would have to be say more than "recently".
LESS_THAN_RECENT = 0.95
MODEL = "this model"


@dataclass(frozen=True)
class Plan:
    """How to train: a point process, or several of which the best is kept, then a distiller if there is one.

    Args:
        stages: a config of each; where the events are and where the models go is added when they are trained.
        split: "by sequence"; "in time", where sequences are too few: the first part of each, the next, the last; or
            "given", where the events come in files of their own.
        seed: of the split, the initial weights and all that is drawn.
        minutes: by the clock, for everything; 0: as many steps as the stages say.
    """

    stages: dict[str, Config]
    split: str = "by sequence"
    seed: int = 0
    minutes: float = 0.0

    @property
    def window(self) -> tuple[int, int]:
        """K and L, future and history."""
        return parse_pair(next(iter(self.stages.values()))["data"]["pair"])

    @property
    def backbones(self) -> dict[str, str]:
        """The stages that are point processes, and which one each is."""
        return {
            stage: config["model"]["model_type"] for stage, config in self.stages.items() if config["task"] == "mtpp"
        }

    def training(self, name: str) -> list[Any]:
        """A training argument of each stage."""
        return [config["training"][name] for config in self.stages.values()]

    def with_steps(self, *steps: int) -> Plan:
        """The plan with so many steps of each stage, and what depends on them."""
        stages = {}
        for (stage, config), num in zip(self.stages.items(), steps, strict=True):
            every = math.ceil(num / NUM_EVALUATIONS[config["task"]])
            changes = {"steps": num, "warmup_steps": num // 20, "eval_every": every}
            stages[stage] = {**config, "training": {**config["training"], **changes}}
        return replace(self, stages=stages)

    def shares(self) -> dict[str, float]:
        """By the clock, the share of each stage in the time to train; they sum to 1."""
        *_, last = self.stages.values()
        kind = next(
            (kind for kind, model in DISTILLERS.items() if model and model.items() <= last["model"].items()), ""
        )
        distiller = DISTILLER_TIME.get(kind, 0.3) if last["task"] == "distiller" else 0.0
        names = list(self.backbones.values())
        short = HAWKES_TIME if "hawkes" in names and len(names) > 1 else 0.0
        equal = (1 - short) / max(1, len(names) - bool(short))
        shares = {
            stage: (1 - distiller) * (short if short and name == "hawkes" else equal)
            for stage, name in self.backbones.items()
        }
        return shares | ({DISTILLER: distiller} if distiller else {})


def choose_backbones(asked: str) -> list[str]:
    """The model types of "auto", of one name or of several with commas between them."""
    registered = [kind.model_type for kind in _kinds(MTPPConfig) if kind.model_type in CONFIG_MAPPING]
    available = list(dict.fromkeys([name for name in BACKBONES if name in registered] + registered))
    names = [name for name in AUTO if name in available] if asked == "auto" else asked.split(",")
    if unknown := [name for name in names if name not in available]:
        raise ValueError(f"backbone must be auto or one of {', '.join(available)}; got {unknown[0]!r}. Take auto.")
    return list(dict.fromkeys(names))


def _kinds(parent: type[Any]) -> Iterator[type[Any]]:
    """The classes below a class."""
    for kind in parent.__subclasses__():
        yield kind
        yield from _kinds(kind)


def choose_width(num_events: int) -> int:
    """The width of a neural backbone that so many events can fill."""
    return max((least, width) for least, width in WIDTHS.items() if num_events >= least)[1]


def make_plan(
    events: EventSequences,
    *,
    history: int | None = None,
    future: int | None = None,
    seed: int = 0,
    distiller: str = "ranking",
    backbone: str = "lognormmix",
    minutes: float | None = None,
    given: Splits | None = None,
) -> tuple[Plan, dict[str, EventSequences]]:
    """A plan for these events, and their splits train, validation and test; `distiller` is ranking, ehd or none;
    `backbone` as in `choose_backbones`; `given`: splits that the events came in."""
    if distiller not in DISTILLERS:
        raise ValueError(f"distiller must be one of {', '.join(DISTILLERS)}; got {distiller!r}. ehd is the paper's.")
    backbones = choose_backbones(backbone)
    history, future = choose_window(events.lengths, history, future)
    splits, split = split_events(events, history + future, seed, given)
    train = splits["train"]
    crop_length = int(min(max(CROP_LENGTH, history + future), max(train.lengths.max(), 2)))
    windows = num_windows(train.lengths, history + future)
    mtpp_batch, distiller_batch = (int(min(BATCH_SIZE, size)) for size in (train.num_events, windows))
    crop = min(crop_length, float(train.lengths.mean()))
    passes = (MTPP_PASSES * train.num_events / (mtpp_batch * crop), MTPP_STEPS)
    stages: dict[str, Config] = {}
    for name in backbones:
        width = {"hidden_size": choose_width(train.num_events)} if hasattr(CONFIG_MAPPING[name], "hidden_size") else {}
        stages[POINT_PROCESS if len(backbones) == 1 else f"{POINT_PROCESS}-{name}"] = {
            "task": "mtpp",
            "data": {"crop_length": crop_length},
            "model": {"model_type": name, **width},
            "training": {"batch_size": mtpp_batch, "learning_rate": 0.01, "metric": "loss", "patience": 5},
        }
    steps = [passes] * len(stages)
    if distiller != "none":
        metric = "size_or_all" if distiller == "ehd" else "size"
        stages[DISTILLER] = {
            "task": "distiller",
            "data": {},
            "model": dict(DISTILLERS[distiller]),
            "training": {"batch_size": distiller_batch, "learning_rate": 0.001, "metric": metric},
        }
        steps.append((DISTILLER_PASSES[distiller] * windows / distiller_batch, DISTILLER_STEPS[distiller]))
    for config in stages.values():
        items = VALIDATION_ITEMS[config["task"]]
        config["data"] |= {"pair": f"{future}-{history}", "validation_items": items, "validation_seed": seed}
        config["training"] |= {"seed": seed} | ({"patience": PATIENCE[config["task"]]} if minutes else {})
    rounded = (int(round(min(max(num, low), high), -1)) for num, (low, high) in steps)
    return Plan(stages, split, seed, minutes or 0.0).with_steps(*rounded), splits


def choose_window(lengths: np.ndarray, history: int | None = None, future: int | None = None) -> tuple[int, int]:
    """L and K: three quarters of the median sequence, at most 36 events, a sixth of them the future.

    Where fewer than three sequences are long enough, so that each must be cut in time: a twelfth of the longest.
    """
    if min(value for value in (history, future, 1) if value is not None) < 1:
        raise ValueError(f"history and future must be at least 1 event; got {history} and {future}. Leave them out.")
    if history is not None:
        return history, future or max(1, round(history * FUTURE_SHARE / (1 - FUTURE_SHARE)))
    long = lengths[lengths >= SHORTEST_WINDOW]
    typical = 0.75 * float(np.median(long)) if len(long) >= 3 else float(lengths.max()) / 12
    window = int(min(max(typical, SHORTEST_WINDOW), LONGEST_WINDOW))
    future = future or max(1, round(window * FUTURE_SHARE))
    return max(window - future, future, 1), future


def num_windows(lengths: np.ndarray, window: int) -> int:
    """How many windows sequences of these lengths give (see `windows.make_windows`)."""
    return int(np.where(lengths == window, 1, np.maximum(lengths - window, 0)).sum())


def split_events(
    events: EventSequences, window: int, seed: int = 0, given: Splits | None = None
) -> tuple[dict[str, EventSequences], str]:
    """Splits train, validation and test, each with a window of `window` events, and how they were made.

    Those `given` are kept. Else whole sequences, by a hash of their names: the order of the rows in a file does not
    matter. Where fewer than three sequences are long enough, every sequence is cut in time instead.
    """
    if given is not None:
        for split in SPLITS:
            longest = int(given[split].lengths.max()) if split in given else 0
            if longest < window:
                raise ValueError(
                    f"the files train, validation and test must each hold a sequence of at least {window} events; the "
                    f"longest of {split} has {longest}. Add events, or ask for a shorter history."
                )
        return dict(given), "given"
    is_long = events.lengths >= window
    if is_long.sum() < 3:
        return _cut_in_time(events, window), "in time"
    key = np.array([zlib.crc32(f"{seed}:{name}".encode()) for name in events.seq_ids])
    chosen: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    for group, fewest in ((is_long, 1), (~is_long, 0)):
        members = np.flatnonzero(group)
        members = members[np.lexsort((members, key[members]))]
        held_out = max(fewest, round(SPLITS["validation"] * len(members)))
        chosen["validation"].append(members[:held_out])
        chosen["test"].append(members[held_out : 2 * held_out])
        chosen["train"].append(members[2 * held_out :])
    return {split: events.select(np.sort(np.concatenate(parts))) for split, parts in chosen.items()}, "by sequence"


def _cut_in_time(events: EventSequences, window: int) -> dict[str, EventSequences]:
    """The first 80 %, the next 10 % and the last 10 % of every sequence that is long enough for a window in each."""
    lengths = events.lengths
    edges = np.cumsum([0.0, *SPLITS.values()])
    bounds = np.rint(lengths[:, None] * edges).astype(np.int64)  # (S, 4)
    whole = np.flatnonzero((np.diff(bounds, axis=1) >= window).all(1))
    if not len(whole):
        raise ValueError(
            f"training needs three sequences of at least {window} events, or one of about {10 * window + 5}; there "
            f"{'is' if len(events) == 1 else 'are'} {len(events):,}, the longest of {int(lengths.max()):,} events. "
            "Give more events, name the column of sequences, or ask for a shorter history."
        )
    previous, splits = events.previous_times(), {}
    for number, split in enumerate(SPLITS):
        first, last = (events.offsets[whole] + bounds[whole, edge] for edge in (number, number + 1))
        where = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)])
        splits[split] = replace(
            events.select(whole),
            times=events.times[where],
            marks=events.marks[where],
            offsets=np.concatenate([[0], np.cumsum(last - first)]).astype(np.int64),
            starts=events.starts[whole] if number == 0 else previous[first],
        )
    return splits


@dataclass(frozen=True)
class Costs:
    """What was measured before training: of each stage the seconds of a step and the threads that suit it, and the
    seconds that scoring takes at the end."""

    steps: Sequence[float] = ()
    threads: Sequence[int] = ()
    scoring: float = 0.0


def trial(splits: Splits, plan: Plan, threads: int = 0) -> Costs:
    """Try a few steps of each stage with one thread and with all there are (or with `threads`), and a part of the
    scoring. More threads than one are taken only where they help: beside other work they often do not."""
    before, seconds, chosen = torch.get_num_threads(), list[float](), list[int]()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else before
    mtpp: Any = None
    with torch.random.fork_rng():
        for config in plan.stages.values():
            model, store, _ = build(config, splits, mtpp)
            torch.set_num_threads(number := threads or 1)
            cost = _seconds_per_step(model, store, config)
            if not threads and cores > 1 and (not chosen or chosen[-1] > 1 or config["task"] == "mtpp"):
                torch.set_num_threads(cores)
                with_all = _seconds_per_step(model, store, config, most=FEWER_THREADS * cost)
                cost, number = min((with_all, cores), (FEWER_THREADS * cost, 1))
                cost = cost if number > 1 else cost / FEWER_THREADS
            seconds.append(cost)
            chosen.append(number)
            mtpp = model if config["task"] == "mtpp" else mtpp
        torch.set_num_threads(chosen[-1])
        began = time.perf_counter()
        score_model(model.eval(), splits["test"], share=REHEARSED)
        scoring = (time.perf_counter() - began) / REHEARSED
    torch.set_num_threads(before)
    return Costs(seconds, chosen, scoring)


def _seconds_per_step(model: Any, store: EventStore, config: Config, most: float = math.inf) -> float:
    """Of some tries, the median; infinite as soon as one, after the first, takes longer than `most`. With more threads
    than free cores a step may take a hundred times as long."""
    repeats = 6 if config["task"] == "mtpp" else 3
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0)
    times: list[float] = []
    model.train()
    for indices in np.random.default_rng(0).integers(len(store), size=(repeats, config["training"]["batch_size"])):
        began = time.perf_counter()
        model(**store.__getitems__(indices)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
        if times[-1] > (most if len(times) > 1 else 3 * most):  # the first one warms up
            return math.inf
    return float(np.median(times[1:]))


def estimate_seconds(plan: Plan, costs: Costs) -> float:
    """How long everything takes: as long as was asked; or the steps, evaluations, which look at their items once and
    learn nothing (half a step's work), and the scoring."""
    if plan.minutes:
        return 60 * plan.minutes
    tasks = [config["task"] for config in plan.stages.values()]
    looks = (NUM_EVALUATIONS[task] * VALIDATION_ITEMS[task] for task in tasks)
    passes = [items / batch * 0.5 for items, batch in zip(looks, plan.training("batch_size"), strict=True)]
    return float(np.dot(np.add(plan.training("steps"), passes), costs.steps)) + costs.scoring


def duration(seconds: float) -> str:
    """ "40 s", "6 min", "2.5 h": as precise as an estimate deserves."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Findings(NamedTuple):
    figures: dict[str, Any]  # what a table of events looks like
    warnings: list[str]  # what may go wrong with it


def inspect_events(events: EventSequences) -> Findings:
    """Figures of the events, and what may go wrong when a model is trained on them."""
    lengths = events.lengths
    # Times that were spread within their resolution are looked at as the source has them, in units of it.
    unit = events.resolution or 1.0
    times = events.times if events.resolution is None else np.floor(events.times / unit)
    is_inner = np.ones(events.num_events, dtype=bool)
    is_inner[events.offsets[:-1]] = False
    intervals = np.diff(times)[is_inner[1:]] * unit
    repeated = (np.diff(times) == 0) & (np.diff(events.marks) == 0) & is_inner[1:]
    counts = np.bincount(events.marks, minlength=events.num_marks)
    fewest, most, (history, future) = int(lengths.min()), int(lengths.max()), choose_window(lengths)
    figures: dict[str, Any] = {
        "sequences": len(events),
        "events": events.num_events,
        "marks": events.num_marks,
        "events_per_sequence": {"fewest": fewest, "median": float(np.median(lengths)), "most": most},
        "time_unit": events.time_unit,
        "interval": None,
        "tied": float((intervals == 0).mean()) if len(intervals) else 0.0,
        "window": {"history": history, "future": future},
        "windows": num_windows(lengths, history + future),
        "mark_counts": {events.id2label[int(mark)]: int(counts[mark]) for mark in np.argsort(-counts, kind="stable")},
    }
    if len(intervals):
        values = (intervals.mean(), *np.quantile(intervals, (0.05, 0.5, 0.95)))
        figures["interval"] = dict(zip(("mean", "5 %", "median", "95 %"), map(float, values), strict=True))
    if events.epochs is not None:
        for name, end in (("from", events.epochs.min()), ("to", events.shown_times().max())):
            figures[name] = str(end.astype("datetime64[s]")).replace("T", " ")
    return Findings(figures, list(_warnings(events, figures, intervals, int(repeated.sum()))))


def _warnings(
    events: EventSequences, figures: Mapping[str, Any], intervals: np.ndarray, num_repeated: int
) -> Iterator[str]:
    """Sentences, the gravest first."""
    unit = f" {events.time_unit}" if events.time_unit else ""
    history, future = figures["window"].values()
    counts = {name: count for name, count in figures["mark_counts"].items() if count}
    if len(events) == 1:
        yield "There is one sequence only; it will be cut in time. If there are several, name the sequence column."
    if len(counts) == 1:
        yield "All events are of one kind, so only their times can be explained. Is the mark column the right one?"
    if events.num_events < FEW_EVENTS:
        yield f"{events.num_events:,} events are few: expect a model that knows little more than averages."
    if len(intervals) and intervals.min() == intervals.max():
        yield f"All intervals are equal ({intervals[0]:g}{unit}): the times carry no information."
    elif len(intervals):
        mean, quartile = intervals.mean(), float(np.quantile(intervals[intervals > 0], 0.25))
        if mean > BURSTY * quartile:
            yield (
                f"Events come in bursts: a quarter follow within {quartile:.3g}{unit}, though the mean interval is "
                f"{mean:.3g}{unit}. Such bursts are easy to predict and will be much of what is explained."
            )
    if figures["tied"] > 0.01 and events.resolution is None:  # else a note says it, and the times were spread
        yield f"{figures['tied']:.1%} of the intervals are 0: events share their time, and have the file's order."
    if num_repeated > 0.01 * events.num_events:
        yield f"{num_repeated:,} events repeat the one before them, time and mark: were rows written twice?"
    short = int((events.lengths < history + future).sum())
    if short > 0.25 * len(events):
        yield (
            f"{short:,} of {len(events):,} sequences have fewer than {history + future} events, too short for a "
            f"window of {history} past and {future} future ones."
        )
    if rare := [name for name, count in counts.items() if count < SELDOM]:
        listed = ", ".join(rare[:3]) + (", ..." if len(rare) > 3 else "")
        happen = "mark happens" if len(rare) == 1 else "marks happen"
        yield f"{len(rare)} {happen} fewer than {SELDOM} times ({listed}): too seldom to learn from."
    if events.epochs is not None and (early := int((events.epochs < np.datetime64("1980-01-01")).sum())):
        yield f"{early:,} sequences begin before 1980: are these times, or blanks that were filled in?"


_UNIT_WORDS = {"ms": "milliseconds", "s": "seconds", "min": "minutes", "h": "hours", "D": "days"}
_WRITTEN = {"iso": "timestamps", "number": "plain numbers"} | {unit: f"{unit} since 1970" for unit in EPOCHS}


def describe_events(findings: Findings, reading: Reading) -> list[tuple[str, str]]:
    """Figures of the events for people: names and texts."""
    figures = findings.figures
    lengths, interval, window = figures["events_per_sequence"], figures["interval"] or {}, figures["window"]
    unit = _UNIT_WORDS.get(reading.time_unit or "", reading.time_unit) or "numbers without a unit"
    written = _WRITTEN.get(reading.time_format or "", reading.time_format or "").replace(EITHER, " or ")
    columns = ", ".join(f"{role} {getattr(reading, role)!r}" for role in ("time", "mark", "sequence"))
    span = ", ".join(figures[end].removesuffix(" 00:00:00") for end in ("from", "to") if end in figures)
    return [
        ("events", f"{figures['events']:,} in {figures['sequences']:,} sequences"),
        ("a sequence", f"{lengths['fewest']:,} to {lengths['most']:,} events, median {lengths['median']:g}"),
        ("columns", columns.replace("sequence None", "no sequence column")),
        *([("from, to", span)] if span else []),
        ("times", written if unit == written else f"{written}, here in {unit}"),
        ("intervals", ", ".join(f"{name} {value:.3g}" for name, value in interval.items()) or "none"),
        ("windows", f"{figures['windows']:,} of {window['history']} past and {window['future']} next events"),
    ]


def describe_plan(run: Run, splits: Splits, findings: Findings) -> list[tuple[str, str]]:
    """A plan for people: names and texts."""
    plan, (future, history) = run.plan, run.plan.window
    counts = list(findings.figures["mark_counts"].items())
    marks = f"{len(counts)}, from {counts[0][0]} ({counts[0][1]:,}) to {counts[-1][0]} ({counts[-1][1]:,})"
    sizes = " / ".join(f"{len(splits[name]):,}" for name in SPLITS)
    windows = num_windows(splits["train"].lengths, history + future)
    about = f"about {duration(estimate_seconds(plan, run.costs))}, judging by a few steps that were tried"
    clock = f"{plan.minutes:g} min by the clock, reading and scoring included; less if validation stops improving"
    names = {**plan.backbones, DISTILLER: "the distiller"}
    shares = (f"{share:.0%} for {names[stage]}" for stage, share in plan.shares().items())
    steps = (f"{config['training']['steps']:,} of {names[stage]}" for stage, config in plan.stages.items())
    return [
        *(row for row in describe_events(findings, Reading.from_dict(run.reading)) if row[0] != "windows"),
        ("marks", marks),
        ("window", f"{history} past events explain the next {future}; {windows:,} windows to train on"),
        ("split", f"{plan.split}: {sizes} sequences for training / validation / test"),
        ("shares", ", ".join(shares)) if plan.minutes else ("steps", ", ".join(steps)),
        ("time", clock if plan.minutes else about),
        ("threads", ", ".join(map(str, run.costs.threads)) + " of the CPU, those that helped when tried"),
        ("why so", "explanations are worth what the point process knows; a distiller only makes the search shorter"),
    ]


def build(config: Config, splits: Splits, mtpp: Any = None) -> tuple[Any, Any, Any]:
    """The model of a config, its weights drawn from torch's own generator, and what it is trained and validated on.

    mtpp: the point process of a distiller; by default the one its config names. A distiller whose config names
    `windows`, a folder or Hub id, reads them by `datasets`, streamed if it says so; all else is cut from `splits`.
    """
    task, data, model, train = config["task"], config["data"], dict(config["model"]), splits["train"]
    needed = {"mtpp": "crop_length", "distiller": "pair"}.get(task)
    if needed not in data or "model_type" not in model:
        raise ValueError(
            f"task must be mtpp (data needs crop_length) or distiller (data needs pair), and model needs model_type; "
            f"got task {task!r}, data {', '.join(data)}, model {', '.join(model)}."
        )
    cut: Callable[[EventSequences], Any]
    if task == "mtpp":
        names = {"num_marks": train.num_marks, "id2label": dict(train.id2label), "time_unit": train.time_unit}
        if "pair" in data:
            names["future"], names["history"] = parse_pair(data["pair"])
        built = AutoModel.from_config(AutoConfig.for_model(**{**model, **names}))
        built.fit_time_scale(torch.from_numpy(train.intervals()))
        cut = functools.partial(make_crops, length=data["crop_length"])
    else:
        future, history = parse_pair(data["pair"])
        kind: Any = MODEL_MAPPING[type(AutoConfig.for_model(model.pop("model_type")))]
        mtpp = model.pop("mtpp", None) if mtpp is None else mtpp
        built = kind.from_mtpp(mtpp, history=history, future=future, **model)
        cut = functools.partial(make_windows, future=future, history=history)
    size, seed = data.get("validation_items", 2000), data.get("validation_seed", 0)
    if task == "distiller" and "windows" in data:
        from datasets import load_dataset

        rows = load_dataset(str(data["windows"]), data["pair"], streaming=bool(data.get("streaming")))
        if data.get("streaming"):
            return built, rows["train"], rows["validation"].take(size)
        return built, rows["train"], rows["validation"].select(sampled(len(rows["validation"]), size, seed))
    return built, cut(train), cut(splits["validation"]).sample(size, seed=seed)


def build_trainer(config: Config, splits: Splits, mtpp: Any = None, watch: Watch | None = None) -> Trainer:
    """What trains the model of a config (see `build`)."""
    model, train, validation = build(config, splits, mtpp)
    return Trainer(model, TrainingArguments.from_dict(config["training"]), train, validation, watch)


@dataclass
class Run:
    """What `plan.json` of a model's folder holds; a YAML file of `plan` and `reading` is one too."""

    plan: Plan
    reading: Row  # how the events are read
    data: str = ""  # what the events are called
    request: Row = field(default_factory=dict)  # what makes two runs the same: the events, and what was asked
    costs: Costs = Costs()
    compared: dict[str, float] = field(default_factory=dict)  # validation NLL of each backbone, once it is known
    finished: bool = False
    version: str = __version__

    @classmethod
    def load(cls, file: Path) -> Run:
        try:
            text = file.read_text(encoding="utf-8")
            saved = json.loads(text) if file.suffix == ".json" else yaml.safe_load(text)
            saved_stages = saved["plan"]["stages"]
            # YAML sorts by name: the distiller comes last.
            stages = {stage: saved_stages[stage] for stage in sorted(saved_stages, key=lambda name: name == DISTILLER)}
            plan = Plan(**{**saved["plan"], "stages": stages})
            if not plan.backbones or not all(plan.window):
                raise ValueError("it lacks a point process or windows")
            if not all(plan.training("steps") + plan.training("batch_size")):
                raise ValueError("it lacks steps")
            return cls(**{**saved, "plan": plan, "costs": Costs(**saved.get("costs", {}))})
        except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
            raise ValueError(
                f"{file} is not the plan of a training run: {error}. Correct it, or train in another folder."
            ) from error


def open_run(out: Path, request: Row) -> Run | None:
    """The interrupted or finished run in `out`, if it was asked for in the same way; None if `out` is free."""
    if not (out / PLAN_FILE).is_file():
        if not holds_nothing(out):
            raise ValueError(f"{out} exists and is not a model of ehd-hf train. Choose another folder.")
        return None
    saved = Run.load(out / PLAN_FILE)
    before, now = ({**asked, **asked.get("reading", {})} for asked in (saved.request, request))
    changed = [key for key in now if key != "reading" and before.get(key) != now[key]]
    if before.get("minutes") and now.get("minutes"):  # a run by the clock may get more time
        changed = [key for key in changed if key != "minutes"]
    if changed:
        short = [key for key in changed if key not in ("events", "marks", "plan")]
        listed = [f"{key}: {before.get(key)!r} -> {now[key]!r}" for key in short] or [f"other {changed[0]}"]
        raise ValueError(
            f"{out} holds a run that began otherwise ({', '.join(listed)}). Repeat its command to go on with it, or "
            "choose another folder."
        )
    return saved


def prepare(
    out: Path,
    read: Read,
    data: str,
    *,
    plan: Plan | None = None,
    threads: int = 0,
    **asked: Any,
) -> tuple[Run, dict[str, EventSequences]]:
    """The run in `out`, if it was asked for in the same way, or a new one; and the splits of its events.

    data: what to call the events. plan: made for the events if not given. threads: 0 for those that help. asked:
    history, future, seed, distiller, backbone and minutes of `make_plan`.
    """
    usual = {
        "history": None,
        "future": None,
        "seed": 0,
        "distiller": "ranking",
        "backbone": "lognormmix",
        "minutes": None,
    }
    asked = {**usual, **asked}
    request = {"events": events_digest(read.events), "reading": read.reading.to_dict(), **asked}
    if plan is None:
        plan, splits = make_plan(read.events, **asked, given=read.splits)
    else:
        splits, split = split_events(read.events, sum(plan.window), plan.seed, read.splits)
        plan = replace(plan, split=split)
        request["plan"] = asdict(plan)
    run = open_run(out, request)
    if run is None:
        return Run(plan, read.reading.to_dict(), data, request, trial(splits, plan, threads)), splits
    grows = plan.minutes > run.plan.minutes
    minutes = max(plan.minutes, run.plan.minutes) if run.finished else plan.minutes
    plan = replace(run.plan, minutes=minutes)
    return replace(run, plan=plan, request=request, finished=run.finished and not grows), splits


def unseen_part(
    out: Path, events: EventSequences, given: Splits | None = None
) -> tuple[EventSequences, EventSequences | None] | None:
    """The test and training splits: those `given`; or those of the model in `out`, if these events trained it."""
    if given is not None and "test" in given:
        return given["test"], given.get("train")
    run = Run.load(out / PLAN_FILE) if (out / PLAN_FILE).is_file() else None
    if run is None or run.request.get("events") != events_digest(events):
        return None
    splits, _ = split_events(events, sum(run.plan.window), run.plan.seed)
    return splits["test"], splits["train"]


def carry_out(
    out: Path,
    splits: Splits,
    run: Run,
    *,
    threads: int = 0,
    progress: bool = True,
    began: float | None = None,
    finish: bool = False,
    keep_all: bool = False,
    announce: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Train all stages, or what is left of them, judge the model by the test split and put it in place; its rows.

    Args:
        threads: CPU threads, 0 for those that the trial found best.
        progress: show bars.
        began: when the clock of `minutes` started, by `time.monotonic`; now, if not given.
        finish: take the best models so far and train no further.
        keep_all: keep the point processes that were not the best too, as `backbones/<name>`.
        announce: is called with what begins.
    """
    began = time.monotonic() if began is None else began
    transformers_logging.disable_progress_bar()  # one bar at a time, and small models load in a blink
    make_folder(out)
    with locked(out):
        run = _claim(out, run)
        (out / FINISH_FILE).touch() if finish else (out / FINISH_FILE).unlink(missing_ok=True)

        def tell(text: str) -> None:
            log_line(out / LOG_FILE, text)
            announce(text)

        session = _Session(out, run, began, tell)
        folder = session.train(splits, threads, progress)
        _put_in_place(folder, out)
        tell("Judging it by sequences it has not seen ...")
        stamp = {"data": run.data, "split": "test", **checkpoint_stamp(folder)}
        rows = score_model(_open(folder).eval(), splits["test"], train=splits["train"], **stamp)
        write_text(out / RESULTS_FILE, "".join(json.dumps(row) + "\n" for row in rows))
        run = replace(run, compared=session.compared(), finished=True)
        for stage in session.others():
            if keep_all:
                _put_in_place(out / "training" / stage, make_other(out, run.plan.backbones[stage], run))
            else:
                remove_folder(out / "training" / stage)
        write_text(out / PLAN_FILE, json.dumps(asdict(run), indent=1))
        (out / FINISH_FILE).unlink(missing_ok=True)
        log_line(out / LOG_FILE, f"Done after {duration(time.monotonic() - began)}.")
        return rows


def ask_to_finish(out: Path) -> None:
    """Have the training that runs in `out` end with the best model so far."""
    (out / FINISH_FILE).touch()


def make_other(out: Path, name: str, run: Run) -> Path:
    """The folder of a point process that is kept beside the best."""
    make_folder(folder := out / OTHERS / name)
    write_text(folder / READING_FILE, json.dumps(run.reading, indent=1))
    return folder


def _claim(out: Path, run: Run) -> Run:
    """The run as it stands in `out`; where it got more minutes than it had, its stages are opened again."""
    saved = open_run(out, run.request)
    if saved is not None:
        if run.plan.minutes > saved.plan.minutes:
            for stage in saved.plan.backbones:
                reopen(out / "training" / stage)
            remove_folder(out / "training" / DISTILLER)  # what it learnt was about another point process
            (out / RESULTS_FILE).unlink(missing_ok=True)
        run = replace(saved, plan=run.plan, request=run.request, finished=run.finished)
    write_text(out / READING_FILE, json.dumps(run.reading, indent=1))
    write_text(out / PLAN_FILE, json.dumps(asdict(run), indent=1))
    return run


def _open(folder: Path) -> Any:
    return AutoModel.from_pretrained(folder, use_safetensors=True)


def _put_in_place(folder: Path, out: Path) -> None:
    """Make the model of a stage the one in `out`."""
    with interrupts_held():  # weights and config belong together
        for name in ("model.safetensors", "config.json"):  # with the last one the folder becomes a model
            with replaced_when_done(out / name) as partial:
                shutil.copyfile(folder / name, partial)


class _Session:
    """The training of a run's stages, in one process, on one clock."""

    def __init__(self, out: Path, run: Run, began: float, tell: Callable[[str], None]) -> None:
        self.out, self.run, self.plan, self.began, self.tell = out, run, run.plan, began, tell
        self.spent = {stage: seconds_spent(self.folder(stage)) for stage in self.plan.stages}  # in earlier sessions

    def folder(self, stage: str) -> Path:
        return self.out / "training" / stage

    def train(self, splits: Splits, threads: int, progress: bool) -> Path:
        """Train what is not trained yet; the folder of the model to keep."""
        for number, (stage, config) in enumerate(self.plan.stages.items()):
            folder, costs = self.folder(stage), self.run.costs
            if self._is_done(stage):
                continue
            self.tell(f"{number + 1} of {len(self.plan.stages)}: {TASKS[config['task']]}, {self._name(stage)}")
            resume = (folder / "training.json").is_file() or any(folder.glob("checkpoints/step-*[0-9]"))
            if not resume:
                remove_folder(folder)  # it was interrupted before its first checkpoint
            options: Row = {"out": str(folder), "num_threads": threads or costs.threads[number], "progress": progress}
            options["save_every"] = max(1, round(SECONDS_BETWEEN_CHECKPOINTS / costs.steps[number]))
            options["minutes"] = self._minutes_of(stage)
            mtpp = None if config["task"] == "mtpp" else _open(self.folder(self.best()))
            torch.manual_seed(self.plan.seed)  # the initial weights
            config = {**config, "training": {**config["training"], **options}}
            build_trainer(config, splits, mtpp, self._watch(stage, config["task"])).train(resume=resume)
            if stage in self.plan.backbones and len(compared := self.compared()) > 1:
                self.tell(describe_choice(compared))
        distiller = self.folder(DISTILLER)
        return distiller if (distiller / "training.json").is_file() else self.folder(self.best())

    def _is_done(self, stage: str) -> bool:
        """Whether a stage has ended; was dropped after an earlier comparison; or would begin although the run is to
        finish with what there is."""
        folder = self.folder(stage)
        if (folder / "training.json").is_file():
            return not (folder / "best").exists()  # if it is there, it was killed while it cleaned up
        if (self.out / FINISH_FILE).exists() and self.compared():
            return not (folder / "best").exists()
        return self._name(stage) in self.run.compared and not folder.exists()

    def _name(self, stage: str) -> str:
        return self.plan.backbones.get(stage, stage)

    def _minutes_of(self, stage: str) -> float:
        """How long a stage may train, in all sessions: its share of the time that is left to it and to later ones."""
        if not self.plan.minutes:
            return 0.0
        total, shares = 60 * self.plan.minutes, self.plan.shares()
        here = time.monotonic() - self.began
        left = total - sum(self.spent.values()) - here - self.run.costs.scoring
        later = list(shares)[list(shares).index(stage) :]
        allotted = (left + self.spent[stage]) * shares[stage] / sum(shares[name] for name in later)
        if stage == DISTILLER:  # a point process that was done early leaves it no more than its share
            allotted = min(allotted, total * shares[stage])
        return max(allotted, self.spent[stage], 0.001) / 60

    def _watch(self, stage: str, task: str) -> Watch:
        def put_if_best(folder: Path, value: float) -> None:
            others = [nll for name, nll in self.compared().items() if name != self._name(stage)]
            if not others or value < min(others):
                _put_in_place(folder, self.out)

        return Watch(
            title=self._name(stage),
            metric=METRICS[task],
            log=self.out / LOG_FILE,
            on_best=put_if_best if task == "mtpp" else None,
            should_end=(self.out / FINISH_FILE).exists,
        )

    def compared(self) -> dict[str, float]:
        """The validation NLL of each point process that has ended, by its name."""
        known = dict(self.run.compared)
        for stage, name in self.plan.backbones.items():
            if (summary := self.folder(stage) / "training.json").is_file():
                known[name] = json.loads(summary.read_text(encoding="utf-8"))["best"]["eval_loss"]
        return known

    def best(self) -> str:
        """The stage of the point process that predicts validation events best."""
        known = self.compared()
        ended = [stage for stage in self.plan.backbones if (self.folder(stage) / "training.json").is_file()]
        return min(ended, key=lambda stage: known[self._name(stage)])

    def others(self) -> list[str]:
        """The stages of the other point processes that were trained."""
        return [stage for stage in self.plan.backbones if stage != self.best() and self.folder(stage).exists()]


def describe_choice(compared: Mapping[str, float]) -> str:
    """Which backbone predicts validation events best, and by how much, in a sentence."""
    (best, least), *others = sorted(compared.items(), key=lambda item: item[1])
    rest = ", ".join(f"{name} {nll:.3f} ({nll - least:.3f} nats more)" for name, nll in others)
    return f"Of the backbones, {best} predicts validation events best: NLL {least:.3f}; {rest}."


def score_model(
    model: DistillerModel | MTPPModel,
    test: EventSequences,
    *,
    train: EventSequences | None = None,
    share: float = 1.0,
    **stamp: Any,
) -> list[Row]:
    """Rows of the point process beside trivial baselines; if its window is known, also of explanations beside the most
    recent events, by the distiller or, without one, by integrated gradients.

    Of very many events a part is scored; `share`: only so much of it. The baselines are fitted to `train`, or to
    `test`, which flatters them.
    """
    last = int(np.searchsorted(np.cumsum(test.lengths), share * min(MOST_TEST_EVENTS, test.num_events)))
    part = test.select(np.arange(min(len(test), last + 1)))
    models: dict[str, Any] = dict(trivial_baselines(test if train is None else train))
    distiller, mtpp = (model, model.mtpp) if isinstance(model, DistillerModel) else (None, model)
    rows = list(evaluate_mtpp({**models, MODEL: mtpp}, part, **stamp))
    config: Any = model.config
    if config.future is None or part.lengths.max() < config.history + config.future:
        return rows
    windows = make_windows(part, future=config.future, history=config.history).sample(
        math.ceil(share * MOST_TEST_WINDOWS)
    )
    solver = "integrated_gradient+prune" if distiller is None else "distiller+prune"
    question = Question(share=0.7, conditioning="survival") if distiller is None else distiller.config.question
    compared = list(compare(mtpp, windows, [solver], question, distiller=distiller, reference="recency", **stamp))
    if not compared:  # no window's history explains anything
        pair = f"{config.future}-{config.history}"
        compared = [{"task": "explain", **stamp, "solver": solver, "explains_nothing": 1.0, "pair": pair}]
    return rows + compared


class Verdict(NamedTuple):
    """How good a model is, in a sentence; what to do next; and whether it knows more than averages."""

    sentence: str
    advice: str
    good: bool


def judge(rows: Sequence[Row]) -> Verdict:
    """The rows of `score_model` in words."""
    nll = {row["model"]: row["nll"] for row in rows if row["task"] == "mtpp"}
    own = nll.pop(MODEL)
    best, best_nll = min(nll.items(), key=lambda item: item[1], default=("", math.nan))
    if not best_nll - own > SMALLEST_GAIN:
        averages = f"; {best} {best_nll:.3f}" if best else ""
        return Verdict(
            f"It predicts these events no better than averages do (NLL {own:.3f}{averages}): its explanations would "
            "mean nothing.",
            "Give it more events or more minutes, check the columns (ehd-hf data inspect), or accept that "
            "these events do not depend on those before them.",
            False,
        )
    sentence = (
        f"Each unseen event is {math.exp(best_nll - own):.2f} times as likely under it as under the better of two "
        f"trivial models (NLL {own:.3f} against {best_nll:.3f})"
    )
    explained = {row["solver"]: row for row in rows if row["task"] == "explain"}
    recent = explained.pop("recency", None)
    if not explained:
        return Verdict(f"{sentence}; explanations were not tried.", "Try some with ehd-hf explain.", True)
    (distilled,) = explained.values()
    if distilled["explains_nothing"] >= 1 or recent is None:
        sentence += ", but no past event helps to predict the next ones."
        return Verdict(sentence, "Ask about a shorter future, such as 1 event, or train on longer histories.", False)
    history = distilled["pair"].split("-")[1]
    target = f"{distilled['share']:.0%} of what they explain" if distilled["share"] is not None else "the future"
    sentence += f"; {distilled['size']:.1f} of {history} past events carry {target}, "
    if distilled["size"] < LESS_THAN_RECENT * recent["size"]:
        sentence += f"where the most recent ones would have to be {recent['size']:.1f}."
    else:
        sentence += "about as many as if simply the most recent were taken."
    if distilled["explains_nothing"] > 0.2:
        sentence += f" In {distilled['explains_nothing']:.0%} of the cases the past explains nothing."
    return Verdict(sentence, "Explain a sequence with it.", True)
