"""What `ehd-hf train` does: plan for the events, train the stages, judge the model by unseen sequences.

A plan holds a config of each stage, of the form that `scripts/train.py` reads: task, data, model and training. Several
point processes are trained one after the other and compared on validation; the distiller is built on the best.

A model's folder: `config.json` + `model.safetensors` (the distiller with its point process), `reading.json` (how its
events are read), `plan.json` (the `Run`: how they were split and trained on), `results.jsonl` (how good it is),
`train.log` (what happened when), `training/` (the stages; an interrupted one goes on from there). The first two appear
with the first evaluation: the best point process so far. From then on the folder holds a model that explains.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
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
from ..data.inspection import Findings, describe_events
from ..data.reading import Read, Reading
from ..data.related import without_marks
from ..data.sequences import EventSequences, events_digest
from ..data.splits import SPLITS, choose_window, num_windows, split_events
from ..data.windows import EventStore, WindowStore, make_crops, make_windows, parse_pair, sampled
from ..evaluation.answers import compare
from ..evaluation.scores import OURS, compare_with_trivial, evaluate_mtpp, trivial_baselines
from ..files import (
    Damaged,
    check_manifest,
    checkpoint_stamp,
    holds_nothing,
    locked,
    make_folder,
    read_json,
    remove_folder,
    replaced_when_done,
    write_json,
    write_manifest,
    write_text,
)
from ..hub.fetch import fetch_model, open_model, resolve
from ..models.distiller import DistillerModel
from ..models.ensemble import EnsembleConfig, EnsembleModel
from ..models.point_process import MTPPConfig, MTPPModel
from ..models.question import Question
from .trainer import Trainer, TrainingArguments, Watch, interrupts_held, log_line, outcome, reopen, seconds_spent

Row = dict[str, Any]
Config = dict[str, Any]
Splits = Mapping[str, EventSequences]

PLAN_FILE, READING_FILE, RESULTS_FILE = "plan.json", "reading.json", "results.jsonl"
_MODEL_FILES = ("config.json", "model.safetensors", READING_FILE, RESULTS_FILE)  # that the manifest lists
LOG_FILE, FINISH_FILE, OTHERS = "train.log", "finish", "backbones"
POINT_PROCESS, DISTILLER = "point_process", "distiller"  # stages; of several point processes, "point_process-<name>"
ENSEMBLE = "ensemble"  # beside them, the best point processes in one model
# What is learnt in a stage, and what it is judged by.
TASKS = {"mtpp": "learning what usually follows what", "distiller": "learning what explains it"}
METRICS = {"mtpp": "validation NLL", "distiller": "events needed in validation"}
CROP_LENGTH, BATCH_SIZE = 64, 64
# The distillers to choose from. A ranker orders the search, which integrated gradients do as well without training: it
# gets little time. MTPP-EHD answers by itself, with what it learnt and nothing else.
DISTILLERS: dict[str, Config] = {
    "ranking": {"model_type": "ranking_distiller", "share": 0.7, "conditioning": "survival"},
    "ehd": {"model_type": "ehd_distiller"},
    "none": {},
}
# The point processes to choose from, and what they are; "auto" tries the first two. A Hawkes process has a matrix of
# marks for each kernel: of more marks it would have too many parameters.
BACKBONES = {
    "hawkes": "a Hawkes process, quick and readable: each event adds to the intensity of each mark",
    "lognormmix": "a recurrent network with log-normal intervals",
    "fullynn": "the paper's recurrent network",
    "attention": "attention over the past events",
}
AUTO, MOST_HAWKES_MARKS = ("hawkes", "lognormmix"), 200
# Widths of those that have one, by the number of events to train on.
WIDTHS = {0: 32, 200_000: 64}
WITH_RECENT_MARKS = ("lognormmix", "fullynn")
LEARNING_RATES = {"hawkes": 0.1}  # of point processes; 0.01 of others
# Steps of each stage: so many passes over the training data, within bounds.
MTPP_PASSES, MTPP_STEPS = 100, (1000, 6000)
DISTILLER_PASSES, DISTILLER_STEPS = {"ranking": 2, "ehd": 10}, {"ranking": (60, 300), "ehd": (300, 1500)}
# By the clock: the share of the time of a distiller. Of steps or time, hawkes needs this part of what others do.
DISTILLER_TIME, HAWKES_PART = {"ranking_distiller": 0.15, "ehd_distiller": 0.3}, 0.2
# Evaluations of a stage whose steps are counted (by the clock some 20), and those in vain after which it ends.
NUM_EVALUATIONS, PATIENCE = {"mtpp": 16, "distiller": 6}, 8
VALIDATION_ITEMS = {"mtpp": 1000, "distiller": 300}
SECONDS_BETWEEN_CHECKPOINTS = 20
REHEARSED = 0.1  # the part of the scoring that is tried beforehand, to know how long it takes
FEWER_THREADS = 0.9  # more threads must bring a step below this share of its time with one
MOST_TEST_EVENTS, MOST_TEST_WINDOWS = 50_000, 200
# Explanations this much smaller than the most recent events would have to be say more than "recently".
LESS_THAN_RECENT = 0.95
ADVICE = "Give it more events, more minutes or another backbone, or check the columns (ehd-hf data inspect)."


# --- the plan


@dataclass(frozen=True)
class Plan:
    """How to train: a point process, or several of which the best is kept, then a distiller if there is one."""

    stages: dict[str, Config]  # where the events are and where the models go is added when they are trained
    split: str = "by sequence"  # or "in time", where sequences are too few, or "given", as files of their own
    seed: int = 0  # of the split, the initial weights and all that is drawn
    minutes: float = 0.0  # by the clock, for everything; 0: as many steps as the stages say
    ensemble: int = 0  # how many point processes to keep in the model, the best; 0: the best alone

    def __post_init__(self) -> None:
        if self.ensemble and not 2 <= self.ensemble <= len(self.backbones):
            most = f"at most {len(self.backbones)}, the point processes that are trained"
            raise ValueError(f"ensemble must be at least 2 and {most}; got {self.ensemble}. Leave it out for one.")

    @property
    def window(self) -> tuple[int, int]:
        """K and L, future and history."""
        return parse_pair(next(iter(self.stages.values()))["data"]["pair"])

    @property
    def backbones(self) -> dict[str, str]:
        """The stages that are point processes, and which one each is: its kind, of several of a kind the seed too."""
        names: dict[str, str] = {}
        for stage, config in self.stages.items():
            if config["task"] == "mtpp":
                kind, seed = config["model"]["model_type"], config["training"].get("seed")
                names[stage] = kind if kind not in names.values() else f"{kind}-seed{seed}"
        return names

    def training(self, name: str) -> list[Any]:
        """A training argument of each stage."""
        return [config["training"][name] for config in self.stages.values()]

    def shares(self) -> dict[str, float]:
        """By the clock, the share of each stage in the time to train; they sum to 1."""
        kind = self.stages.get(DISTILLER, {"model": {}})["model"].get("model_type")
        distiller = DISTILLER_TIME.get(kind, max(DISTILLER_TIME.values())) if kind else 0.0
        weights = {stage: HAWKES_PART if name == "hawkes" else 1.0 for stage, name in self.backbones.items()}
        each = (1 - distiller) / sum(weights.values())
        return {stage: weight * each for stage, weight in weights.items()} | ({DISTILLER: distiller} if kind else {})


def choose_backbones(asked: str, num_marks: int) -> list[str]:
    """The model types of "auto", of one name or of several with commas between them."""
    fitting = AUTO if num_marks <= MOST_HAWKES_MARKS else AUTO[1:]
    names = list(fitting) if asked == "auto" else asked.split(",")
    if unknown := [name for name in names if not _is_backbone(name)]:
        raise ValueError(f"backbone must be auto or one of {', '.join(BACKBONES)}; got {unknown[0]!r}. Take auto.")
    return list(dict.fromkeys(names))


def _is_backbone(name: str) -> bool:
    """Whether transformers knows a point process of this name that can be trained, ours or another."""
    config = CONFIG_MAPPING[name] if name in CONFIG_MAPPING else object
    return issubclass(config, MTPPConfig) and not issubclass(config, EnsembleConfig)


def choose_model(backbone: str, num_events: int) -> Config:
    """The config of a point process: as wide as so many events can fill, and with a path for recent marks."""
    width = max(width for least, width in WIDTHS.items() if num_events >= least)
    sizes = {"hidden_size": width} if hasattr(CONFIG_MAPPING[backbone], "hidden_size") else {}
    return {"model_type": backbone, **sizes, **({"recent_marks": True} if backbone in WITH_RECENT_MARKS else {})}


def make_plan(
    events: EventSequences,
    *,
    history: int | None = None,
    future: int | None = None,
    seed: int = 0,
    distiller: str = "ranking",
    backbone: str = "auto",
    minutes: float | None = None,
    given: Splits | None = None,
    ensemble: int | None = None,
    context: Sequence[str] = (),
) -> tuple[Plan, dict[str, EventSequences]]:
    """A plan for these events, and their splits train, validation and test; `distiller` is ranking, ehd or none;
    `backbone` as in `choose_backbones`; `given`: splits that the events came in; `ensemble`: how many point processes
    to keep; `context`: marks that are never predicted. Where fewer backbones are named, the last neural one is trained
    from further seeds."""
    known: Config = {"num_marks": events.num_marks, "id2label": dict(events.id2label)}
    MTPPConfig(**known, context_marks=list(context))  # refuses unknown ones
    if distiller not in DISTILLERS:
        raise ValueError(f"distiller must be one of {', '.join(DISTILLERS)}; got {distiller!r}. ehd is the paper's.")
    if ensemble and distiller == "ehd":
        raise ValueError("an ensemble needs a distiller that orders a search; got ehd, which has none. Take ranking.")
    backbones = choose_backbones(backbone, events.num_marks)
    extra, neural = range((ensemble or 0) - len(backbones)), [name for name in backbones if name != "hawkes"]
    if extra and not neural:
        raise ValueError("an ensemble needs models that differ; all seeds of hawkes learn the same. Name another too.")
    seeds = [(name, seed) for name in backbones] + [(neural[-1], seed + 1 + number) for number in extra]
    history, future = choose_window(events.lengths, history, future)
    splits, split = split_events(events, history + future, seed, given)
    train = splits["train"]
    crop_length = int(min(max(CROP_LENGTH, history + future), max(train.lengths.max(), 2)))
    crops = train.num_events / min(crop_length, float(train.lengths.mean()))  # that hold every event once
    windows = int(num_windows(train.lengths, history + future).sum())

    def stage(task: str, model: Config, size: int, items: float, bounds: Any, **training: Any) -> Config:
        """`items`: how many to look at in all, in batches that `size` bounds; `bounds` of the steps."""
        batch_size = int(min(BATCH_SIZE, size))
        steps = max(10, int(round(float(np.clip(items / batch_size, *bounds)), -1)))
        training |= {"batch_size": batch_size, "steps": steps, "warmup_steps": steps // 20}
        training |= {"eval_every": math.ceil(steps / NUM_EVALUATIONS[task]), "patience": PATIENCE}
        data = {"pair": f"{future}-{history}", "validation_items": VALIDATION_ITEMS[task], "validation_seed": seed}
        return {"task": task, "data": data, "model": model, "training": training}

    stages = {}
    for name, own_seed in seeds:
        part = HAWKES_PART if name == "hawkes" else 1.0
        effort: Any = (part * MTPP_PASSES * crops, part * np.array(MTPP_STEPS))
        options: Config = {"learning_rate": LEARNING_RATES.get(name, 0.01), "seed": own_seed}
        model = choose_model(name, train.num_events) | ({"context_marks": list(context)} if context else {})
        config = stage("mtpp", model, train.num_events, *effort, **options)
        config["data"]["crop_length"] = crop_length
        called = f"{POINT_PROCESS}-{name}" + (f"-seed{own_seed}" if own_seed != seed else "")
        stages[called if len(seeds) > 1 else POINT_PROCESS] = config
    if distiller != "none":
        model, metric = dict(DISTILLERS[distiller]), "size_or_all" if distiller == "ehd" else "size"
        effort = (DISTILLER_PASSES[distiller] * windows, DISTILLER_STEPS[distiller])
        stages[DISTILLER] = stage("distiller", model, windows, *effort, learning_rate=0.001, metric=metric, seed=seed)
    return Plan(stages, split, seed, minutes or 0.0, ensemble or 0), splits


# --- what it takes


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
            is_mtpp = config["task"] == "mtpp"
            model, store, _ = build(config, splits, mtpp)
            torch.set_num_threads(number := threads or 1)
            cost = _seconds_per_step(model, store, config)
            if not threads and cores > 1 and (is_mtpp or chosen[-1] > 1):
                torch.set_num_threads(cores)
                with_all = _seconds_per_step(model, store, config, most=FEWER_THREADS * cost)
                cost, number = (with_all, cores) if with_all <= FEWER_THREADS * cost else (cost, 1)
            seconds.append(cost)
            chosen.append(number)
            mtpp = model if is_mtpp else mtpp
        torch.set_num_threads(chosen[-1])
        began = time.perf_counter()
        score_model(model.eval(), {"test": splits["test"]}, share=REHEARSED)
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
    seconds = costs.scoring
    for config, cost in zip(plan.stages.values(), costs.steps, strict=True):
        looks = NUM_EVALUATIONS[config["task"]] * VALIDATION_ITEMS[config["task"]]
        seconds += cost * (config["training"]["steps"] + 0.5 * looks / config["training"]["batch_size"])
    return seconds


def duration(seconds: float) -> str:
    """ "40 s", "6 min", "2.5 h": as precise as an estimate deserves."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def describe_plan(run: Run, splits: Splits, findings: Findings) -> list[tuple[str, str]]:
    """A plan for people: names and texts."""
    plan, (future, history) = run.plan, run.plan.window
    context = next(iter(plan.stages.values()))["model"].get("context_marks")
    counts = list(findings.figures["mark_counts"].items())
    sizes = " / ".join(f"{len(splits[name]):,}" for name in SPLITS)
    windows = num_windows(splits["train"].lengths, history + future).sum()
    names = {**plan.backbones, DISTILLER: "the distiller"}
    steps = (f"{config['training']['steps']:,} of {names[stage]}" for stage, config in plan.stages.items())
    effort = ("steps", ", ".join(steps))
    clock = f"about {duration(estimate_seconds(plan, run.costs))}, judging by a few steps that were tried"
    if plan.minutes:
        effort = ("shares", ", ".join(f"{share:.0%} for {names[stage]}" for stage, share in plan.shares().items()))
        clock = f"{plan.minutes:g} min by the clock, reading and scoring included; less if validation stops improving"
    return [
        *(row for row in describe_events(findings, Reading.from_dict(run.reading)) if row[0] != "windows"),
        ("marks", f"{len(counts)}, from {counts[0][0]} ({counts[0][1]:,}) to {counts[-1][0]} ({counts[-1][1]:,})"),
        ("window", f"{history} past events explain the next {future}; {windows:,} windows to train on"),
        ("split", f"{plan.split}: {sizes} sequences for training / validation / test"),
        *([("context", f"{', '.join(context)}: causes that are never predicted")] if context else []),
        *describe_models(plan, splits["train"].num_events),
        effort,
        ("time", clock),
        ("threads", ", ".join(map(str, run.costs.threads)) + " of the CPU, those that helped when tried"),
        ("why so", "explanations are worth what the point process knows; a distiller only makes the search shorter"),
    ]


def describe_models(plan: Plan, num_events: int) -> Iterator[tuple[str, str]]:
    """Which point processes are tried, and why these."""
    for number, (stage, name) in enumerate(plan.backbones.items()):
        model = plan.stages[stage]["model"]
        width = f", of width {model['hidden_size']} for {num_events:,} events" if "hidden_size" in model else ""
        recent = ", that sees the sequence's own recent marks" if model.get("recent_marks") else ""
        yield "" if number else "model", f"{name}: {BACKBONES.get(name, 'of your own')}{recent}{width}"
    if len(plan.backbones) > 1:
        yield "", "The one that predicts validation events better is kept."


# --- a run and its folder


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
            saved = read_json(file) if file.suffix == ".json" else yaml.safe_load(file.read_text(encoding="utf-8"))
            # YAML sorts by name: the distiller comes last.
            stages = dict(sorted(saved["plan"]["stages"].items(), key=lambda stage: stage[0] == DISTILLER))
            plan = Plan(**{**saved["plan"], "stages": stages})
            if not plan.backbones or not all(plan.window):
                raise ValueError("it lacks a point process or windows")
            if not all(plan.training("steps") + plan.training("batch_size")):
                raise ValueError("it lacks steps")
            return cls(**{**saved, "plan": plan, "costs": Costs(**saved.get("costs", {}))})
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, yaml.YAMLError) as error:
            fix = "Correct it, or train in another folder."
            raise ValueError(f"{file} is not the plan of a training run: {error}. {fix}") from error

    def save(self, out: Path) -> None:
        write_text(out / READING_FILE, json.dumps(self.reading, indent=1))
        write_json(out / PLAN_FILE, asdict(self))


def open_run(out: Path, request: Row) -> Run | None:
    """The interrupted or finished run in `out`, if it was asked for in the same way; None if `out` is free."""
    if not (out / PLAN_FILE).is_file():
        if not holds_nothing(out):
            raise ValueError(
                f"{out} exists and is not a model of ehd-hf train: it has no {PLAN_FILE}. Choose another folder."
            )
        return None
    saved = Run.load(out / PLAN_FILE)
    before, now = ({**asked, **asked.get("reading", {})} for asked in (saved.request, request))
    may_change = {"reading"}
    if before.get("minutes") and now.get("minutes"):  # a run by the clock may get more time
        may_change.add("minutes")
    if changed := [key for key in now if key not in may_change and before.get(key) != now[key]]:
        short = [key for key in changed if key not in ("events", "marks", "plan")]
        listed = [f"{key}: {before.get(key)!r} -> {now[key]!r}" for key in short] or [f"other {changed[0]}"]
        fix = "Repeat its command to go on with it, or choose another folder."
        raise ValueError(f"{out} holds a run that began otherwise ({', '.join(listed)}). {fix}")
    return saved


def prepare(
    out: Path, read: Read, data: str, *, plan: Plan | None = None, threads: int = 0, **asked: Any
) -> tuple[Run, dict[str, EventSequences]]:
    """The run in `out`, if it was asked for in the same way, or a new one; and the splits of its events.

    data: what to call the events. plan: made for the events if not given. threads: 0 for those that help. asked:
    history, future, seed, distiller, backbone, minutes and ensemble of `make_plan`.
    """
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
    if not run.finished or plan.minutes > run.plan.minutes or not _is_whole(out):
        run.plan, run.finished = replace(run.plan, minutes=plan.minutes), False
    run.request = request
    return run, splits


def _is_whole(out: Path) -> bool:
    """Whether the files of a finished model are those that were written; else the stages give them again."""
    try:
        listed = check_manifest(out)
    except Damaged:
        return False
    return set(_MODEL_FILES) <= set(listed) or all((out / name).is_file() for name in _MODEL_FILES)


def unseen_part(out: Path, events: EventSequences, given: Splits | None = None) -> Splits | None:
    """The splits whose test part the model in `out` has not seen: those `given`; or those it was trained on, if these
    events trained it."""
    if given is not None and "test" in given:
        return given
    run = Run.load(out / PLAN_FILE) if (out / PLAN_FILE).is_file() else None
    if run is None or run.request.get("events") != events_digest(events):
        return None
    return split_events(events, sum(run.plan.window), run.plan.seed)[0]


# --- training


def build(config: Config, splits: Splits, mtpp: Any = None) -> tuple[Any, Any, Any]:
    """The model of a config, its weights drawn from torch's own generator, and what it is trained and validated on.

    mtpp: the point process of a distiller; by default the one its config names. A distiller whose config names
    `windows`, a folder or Hub id, reads them by `datasets`, streamed if it says so; all else is cut from `splits`.
    """
    task, data, model, train = config["task"], config["data"], dict(config["model"]), splits["train"]
    needed = {"mtpp": "crop_length", "distiller": "pair"}.get(task)
    if needed not in data or "model_type" not in model:
        expected = "mtpp (data needs crop_length) or distiller (data needs pair), and model needs model_type"
        got = f"got task {task!r}, data {', '.join(data)}, model {', '.join(model)}"
        raise ValueError(f"task must be {expected}; {got}.")
    window = dict(zip(("future", "history"), parse_pair(data["pair"]), strict=True)) if "pair" in data else {}
    size, seed = data.get("validation_items", 2000), data.get("validation_seed", 0)
    if task == "mtpp":
        names = {"num_marks": train.num_marks, "id2label": dict(train.id2label), "time_unit": train.time_unit}
        built = AutoModel.from_config(AutoConfig.for_model(**{**model, **names, **window}))
        built.fit_time_scale(torch.from_numpy(train.intervals()))
        crops, others = (make_crops(splits[name], length=data["crop_length"]) for name in ("train", "validation"))
        return built, crops, others.sample(size, seed=seed)
    kind: Any = MODEL_MAPPING[type(AutoConfig.for_model(model.pop("model_type")))]
    if mtpp is None and (named := model.pop("mtpp", None)) is not None:
        mtpp = open_model(fetch_model(resolve(named)))
    built = kind.from_mtpp(mtpp, **window, **model)
    if "windows" not in data:
        windows, judged = (_asked(make_windows(splits[name], **window), mtpp) for name in ("train", "validation"))
        return built, windows, judged.sample(size, seed=seed)
    from datasets import load_dataset

    streaming = bool(data.get("streaming"))
    rows = load_dataset(str(data["windows"]), data["pair"], streaming=streaming)
    validation = rows["validation"]
    chosen = validation.take(size) if streaming else validation.select(sampled(len(validation), size, seed))
    return built, rows["train"], chosen


def _asked(windows: WindowStore, mtpp: Any) -> WindowStore:
    """Without windows whose whole future is context."""
    mtpp = mtpp if isinstance(mtpp, MTPPModel) else _open(mtpp)
    if mtpp.context is None:
        return windows
    predicted = np.append(0, np.cumsum(~mtpp.is_context(torch.from_numpy(windows.sequences.marks)).numpy()))
    end = windows.first + windows.count
    return windows.select(np.flatnonzero(predicted[end] > predicted[end - windows.future]))


def build_trainer(config: Config, splits: Splits, mtpp: Any = None, watch: Watch | None = None) -> Trainer:
    """What trains the model of a config (see `build`)."""
    model, train, validation = build(config, splits, mtpp)
    return Trainer(model, TrainingArguments.from_dict(config["training"]), train, validation, watch)


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

    threads: 0 for those that the trial found best. began: when the clock of `minutes` started, by `time.monotonic`.
    finish: take the best models so far and train no further. keep_all: keep the other point processes too, as
    `backbones/<name>`. announce: is called with what begins.
    """
    began = time.monotonic() if began is None else began
    transformers_logging.disable_progress_bar()  # one bar at a time, and small models load in a blink
    make_folder(out)
    with locked(out):
        _claim(out, run)
        (out / FINISH_FILE).touch() if finish else (out / FINISH_FILE).unlink(missing_ok=True)

        def tell(text: str) -> None:
            log_line(out / LOG_FILE, text)
            announce(text)

        session = _Session(out, run, began, tell)
        folder = session.train(splits, threads, progress)
        _put_in_place(folder, out)
        tell("Judging it by sequences it has not seen ...")
        rows = score_model(_open(folder), splits, data=run.data, split="test", **checkpoint_stamp(folder))
        write_text(out / RESULTS_FILE, "".join(json.dumps(row) + "\n" for row in rows))
        write_manifest(out, _MODEL_FILES)
        run = replace(run, compared=session.compared(), finished=True)
        for stage in run.plan.backbones.keys() - session.kept():
            if not keep_all:
                remove_folder(session.folder(stage))
            elif session.has_ended(stage):
                make_folder(other := out / OTHERS / run.plan.backbones[stage])
                write_text(other / READING_FILE, json.dumps(run.reading, indent=1))
                _put_in_place(session.folder(stage), other)
        run.save(out)
        (out / FINISH_FILE).unlink(missing_ok=True)
        log_line(out / LOG_FILE, f"Done after {duration(time.monotonic() - began)}.")
        return rows


def _claim(out: Path, run: Run) -> None:
    """Write down the run; where it got more minutes than it had, its stages are opened again."""
    saved = open_run(out, run.request)
    if saved is not None and run.plan.minutes > saved.plan.minutes:
        for stage in saved.plan.backbones:
            reopen(out / "training" / stage)
        remove_folder(out / "training" / DISTILLER)  # what it learnt was about another point process
        (out / RESULTS_FILE).unlink(missing_ok=True)
    run.save(out)


def _open(folder: Path) -> Any:
    check_manifest(folder, _MODEL_FILES[:2])
    return AutoModel.from_pretrained(folder, use_safetensors=True)


def _put_in_place(folder: Path, out: Path) -> None:
    """Make the model of a stage the one in `out`."""
    check_manifest(folder, _MODEL_FILES[:2])
    with interrupts_held():  # weights and config belong together
        for name in ("model.safetensors", "config.json"):  # with the last one the folder becomes a model
            with replaced_when_done(out / name) as partial:
                shutil.copyfile(folder / name, partial)
        write_manifest(out, [name for name in _MODEL_FILES[:3] if (out / name).is_file()])


class _Session:
    """The training of a run's stages, in one process, on one clock."""

    def __init__(self, out: Path, run: Run, began: float, tell: Callable[[str], None]) -> None:
        self.out, self.run, self.plan, self.began, self.tell = out, run, run.plan, began, tell
        self.spent = {stage: seconds_spent(self.folder(stage)) for stage in self.plan.stages}  # in earlier sessions

    def folder(self, stage: str) -> Path:
        return self.out / "training" / stage

    def has_ended(self, stage: str) -> bool:
        return (self.folder(stage) / "training.json").is_file()

    def train(self, splits: Splits, threads: int, progress: bool) -> Path:
        """Train what is not trained yet; the folder of the model to keep."""
        costs = self.run.costs
        for number, (stage, config) in enumerate(self.plan.stages.items()):
            folder, name = self.folder(stage), self._name(stage)
            if self._is_done(stage):
                continue
            self.tell(f"{number + 1} of {len(self.plan.stages)}: {TASKS[config['task']]}, {name}")
            resume = self.has_ended(stage) or any(folder.glob("checkpoints/step-*[0-9]"))
            if not resume:
                remove_folder(folder)  # it was interrupted before its first checkpoint
            options: Row = {"out": str(folder), "num_threads": threads or costs.threads[number], "progress": progress}
            options["save_every"] = max(1, round(SECONDS_BETWEEN_CHECKPOINTS / costs.steps[number]))
            options["minutes"] = self._minutes_of(stage)
            mtpp = None if config["task"] == "mtpp" else _open(self.point_process())
            torch.manual_seed(config["training"].get("seed", self.plan.seed))  # the initial weights
            config = {**config, "training": {**config["training"], **options}}
            build_trainer(config, splits, mtpp, self._watch(stage, config["task"])).train(resume=resume)
            if stage in self.plan.backbones and len(compared := self.compared()) > 1:
                self.tell(describe_choice(compared))
        return self.folder(DISTILLER) if self.has_ended(DISTILLER) else self.point_process()

    def _is_done(self, stage: str) -> bool:
        """Whether a stage has ended; was dropped after an earlier comparison; or would begin although the run is to
        finish with what there is."""
        if self.has_ended(stage) or ((self.out / FINISH_FILE).exists() and self.compared()):
            return not (self.folder(stage) / "best").exists()  # if it is there, it has to be put in place
        return self._name(stage) in self.run.compared and not self.folder(stage).exists()

    def _name(self, stage: str) -> str:
        return self.plan.backbones.get(stage, stage)

    def _minutes_of(self, stage: str) -> float:
        """How long a stage may train, in all sessions: its share of the time that is left to it and to later ones."""
        if not self.plan.minutes:
            return 0.0
        total, shares, spent = 60 * self.plan.minutes, self.plan.shares(), self.spent[stage]
        here = time.monotonic() - self.began
        left = total - sum(self.spent.values()) - here - self.run.costs.scoring
        later = list(shares)[list(shares).index(stage) :]
        allotted = (left + spent) * shares[stage] / sum(shares[name] for name in later)
        if stage == DISTILLER:  # a point process that was done early leaves it no more than its share
            allotted = min(allotted, total * shares[stage])
        return max(allotted, spent, 0.001) / 60

    def _watch(self, stage: str, task: str) -> Watch:
        name = self._name(stage)

        def put_if_best(folder: Path, value: float) -> None:
            others = [nll for other, nll in self.compared().items() if other != name]
            if task == "mtpp" and value < min(others, default=math.inf):
                _put_in_place(folder, self.out)

        return Watch(name, METRICS[task], self.out / LOG_FILE, put_if_best, (self.out / FINISH_FILE).exists)

    def compared(self) -> dict[str, float]:
        """The validation NLL of each point process that has ended, by its name."""
        compared = dict(self.run.compared)
        for stage, name in self.plan.backbones.items():
            if self.has_ended(stage):
                compared[name] = outcome(self.folder(stage))["best"]["eval_loss"]
        return compared

    def kept(self) -> list[str]:
        """The stages of the point processes that predict validation events best: one, or those of the ensemble."""
        compared = self.compared()
        ended = filter(self.has_ended, self.plan.backbones)
        return sorted(ended, key=lambda stage: compared[self._name(stage)])[: self.plan.ensemble or 1]

    def point_process(self) -> Path:
        """The folder of the best point process, or of the ensemble, which is put together there."""
        folders = [self.folder(stage) for stage in self.kept()]
        if not folders:
            raise ValueError(f"{self.out} has lost what was trained, its folder training. Train in another folder.")
        if len(folders) == 1:
            return folders[0]
        EnsembleModel.of([_open(folder) for folder in folders]).save_pretrained(self.folder(ENSEMBLE))
        return self.folder(ENSEMBLE)


def describe_choice(compared: Mapping[str, float]) -> str:
    """Which backbone predicts validation events best, and by how much, in a sentence."""
    (best, least), *others = sorted(compared.items(), key=lambda item: item[1])
    rest = ", ".join(f"{name} {nll:.3f} ({nll - least:.3f} nats more)" for name, nll in others)
    return f"Of the backbones, {best} predicts validation events best: NLL {least:.3f}; {rest}."


# --- the verdict


def score_model(model: DistillerModel | MTPPModel, splits: Splits, *, share: float = 1.0, **stamp: Any) -> list[Row]:
    """Rows of the point process beside trivial baselines on the split test; if its window is known, also of
    explanations beside the most recent events, by the distiller or, without one, by integrated gradients.

    Of very many events a part is scored; `share`: only so much of it. The baselines are fitted to the split train and
    chosen on validation; without train they are fitted to test itself, which flatters them.
    """
    test = splits["test"]
    last = int(np.searchsorted(np.cumsum(test.lengths), share * min(MOST_TEST_EVENTS, test.num_events)))
    part = test.select(np.arange(min(len(test), last + 1)))
    distiller, mtpp = (model, model.mtpp) if isinstance(model, DistillerModel) else (None, model)
    # Trivial models know nothing of context: they see, and are scored on, the predicted events alone.
    context: Any = mtpp.config.context_marks or ()
    plain = {name: without_marks(splits[name], context) for name in SPLITS if name in splits}
    trivial = trivial_baselines(plain["test"], plain.get("train"), plain.get("validation"))
    rows = list(evaluate_mtpp(trivial, without_marks(part, context), **stamp))
    rows += evaluate_mtpp({OURS: mtpp}, part, **stamp)
    config: Any = model.config
    if config.future is None or part.lengths.max() < config.history + config.future:
        return rows
    windows = _asked(make_windows(part, future=config.future, history=config.history), mtpp)
    windows = windows.sample(math.ceil(share * MOST_TEST_WINDOWS))
    solver = "integrated_gradient+prune" if distiller is None else "distiller+prune"
    question = Question(share=0.7, conditioning="survival") if distiller is None else distiller.config.question
    compared = list(compare(mtpp, windows, [solver], question, distiller=distiller, reference="recency", **stamp))
    if not compared:  # no window's history explains anything
        pair = f"{config.future}-{config.history}"
        compared = [{"task": "explain", **stamp, "solver": solver, "explains_nothing": 1.0, "pair": pair}]
    return rows + compared


class Verdict(NamedTuple):
    """How good a model is, in a sentence; what to do next; and whether it predicts better than trivial models."""

    sentence: str
    advice: str
    good: bool


def judge(rows: Sequence[Row]) -> Verdict:
    """The rows of `score_model` in words."""
    *trivial, own = (row for row in rows if row["task"] == "mtpp")
    standing = compare_with_trivial(own, trivial)
    if standing is None:
        sentence = "No trivial model can be fitted to compare it with: no two events differ in time."
        return Verdict(sentence, ADVICE, False)
    numbers = f"(NLL {own['nll']:.3f} against {standing.best['nll']:.3f}). {standing.words}".rstrip()
    if not standing.good:
        sentence = f"It predicts these events no better than a trivial model does, {standing.best['model']} {numbers} "
        return Verdict(f"{sentence}Its explanations would say little about these events.", ADVICE, False)
    sentence = f"Each unseen event is {math.exp(standing.gain):.2f} times as likely under it as under the best "
    sentence += f"trivial model, {standing.best['model']} {numbers}"
    explained = {row["solver"]: row for row in rows if row["task"] == "explain"}
    recent = explained.pop("recency", None)
    if not explained:
        return Verdict(f"{sentence} Explanations were not tried.", "Try some with ehd-hf explain.", True)
    (distilled,) = explained.values()
    if distilled["explains_nothing"] >= 1 or recent is None:
        sentence += " But no past event helps to predict the next ones."
        return Verdict(sentence, "Ask about a shorter future, such as 1 event, or train on longer histories.", False)
    history = distilled["pair"].split("-")[1]
    target = f"{distilled['share']:.0%} of what they explain" if distilled["share"] is not None else "the future"
    others = "about as many as if simply the most recent were taken"
    if distilled["size"] < LESS_THAN_RECENT * recent["size"]:
        others = f"where the most recent ones would have to be {recent['size']:.1f}"
    sentence += f" {distilled['size']:.1f} of {history} past events carry {target}, {others}."
    if distilled["explains_nothing"] > 0.2:
        sentence += f" In {distilled['explains_nothing']:.0%} of the cases the past explains nothing."
    return Verdict(sentence, "Explain a sequence with it.", True)
