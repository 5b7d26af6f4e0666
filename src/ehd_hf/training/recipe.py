"""A plan carried out: trial steps, both training stages, the comparison with trivial models, the sentence at the end.

A model's folder: `config.json` + `model.safetensors` (the distiller with its point process), `plan.json` (how the
events were read, split and trained on), `results.jsonl` (what came of it), `training/` (both runs; an interrupted one
goes on from there). The first two appear when everything is done.
"""

from __future__ import annotations

import json
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import AutoModel
from transformers.utils import logging as transformers_logging

from .. import __version__
from ..data.reading import Reading
from ..data.sequences import EventSequences
from ..data.windows import CropStore, WindowStore, make_crops, make_windows
from ..evaluation.answers import compare
from ..evaluation.baselines import TrivialBaseline
from ..evaluation.scores import checkpoint_stamp, evaluate_mtpp, events_digest
from ..files import holds_nothing, locked, make_folder, read_rows, remove_folder, replaced_when_done, write_text
from ..models.distiller import DistillerModel
from ..models.fullynn import FullyNNConfig, FullyNNModel
from ..models.point_process import MTPPModel
from ..models.ranking import RankingDistillerModel
from .planning import NUM_EVALUATIONS, VALIDATION_ITEMS, Costs, Plan, split_events
from .trainer import Trainer, TrainingArguments

Row = dict[str, Any]

PLAN_FILE, RESULTS_FILE = "plan.json", "results.jsonl"
STAGES = {"point_process": "learning what usually follows what", "distiller": "learning what explains it"}
SHARE = 0.7
# A point process that has not improved for so many evaluations has learnt what it can.
PATIENCE = 5
SECONDS_BETWEEN_CHECKPOINTS = 20
MOST_TEST_EVENTS, MOST_TEST_WINDOWS = 50_000, 200
# Nats per event by which a model must beat the trivial ones to count as one that knows more.
SMALLEST_GAIN = 0.02
# Explanations this much smaller than the most recent events would have to be say more than "recently".
LESS_THAN_RECENT = 0.95
MODEL, SOLVER = "this model", "distiller+prune"


class Verdict(NamedTuple):
    """How good a model is, in a sentence; what to do next; and whether it knows more than averages."""

    sentence: str
    advice: str
    good: bool


# --- the run's folder


def saved_run(out: Path) -> dict[str, Any] | None:
    """What `plan.json` of a model's folder says; None if there is none."""
    file = out / PLAN_FILE
    if not file.is_file():
        return None
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
        if missing := {"request", "reading", "plan", "seconds_per_step", "finished"} - set(run):
            raise ValueError(f"it lacks {', '.join(sorted(missing))}")
        return run
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{file} is not the plan of a training run: {error}. Train again, in another folder."
        ) from error


def reading_of(model: str, explainer: Any) -> Reading:
    """How the events of a model are read: as those it was trained on."""
    if run := saved_run(Path(model)):
        return Reading.from_dict(run["reading"])
    config: Any = explainer.mtpp.config
    return Reading(marks=tuple(config.id2label.values()), time_unit=config.time_unit)


def open_run(out: Path, request: Mapping[str, Any]) -> dict[str, Any] | None:
    """The interrupted or finished run in `out`, if it was asked for in the same way; None if `out` is free."""
    saved = saved_run(out)
    if saved is None:
        if not holds_nothing(out):
            raise ValueError(f"{out} exists and is not a model of ehd-hf train. Choose another --out.")
        return None
    before, now = ({**asked, **asked.get("reading", {})} for asked in (saved["request"], request))
    changed = [key for key in now if key != "reading" and before.get(key) != now[key]]
    if changed:
        short = (key for key in changed if key not in ("events", "marks"))
        said = [f"{key}: {before.get(key)!r} -> {now[key]!r}" for key in short] or ["other events"]
        raise ValueError(
            f"{out} holds a run that began otherwise ({', '.join(said)}). Repeat its command to go on with it, or "
            "choose another --out."
        )
    return saved


def read_results(out: Path) -> list[Row]:
    """The rows of a finished run."""
    return read_rows(out / RESULTS_FILE)


def request_of(events: EventSequences, **options: Any) -> dict[str, Any]:
    """What makes two runs the same: the events, and what was asked."""
    return {"events": events_digest(events), **options}


def run_record(request: Mapping[str, Any], reading: Reading, plan: Plan, costs: Costs, data: str) -> dict[str, Any]:
    """The contents of `plan.json`."""
    return {
        "version": __version__,
        "data": data,
        "request": dict(request),
        "reading": reading.to_dict(),
        "plan": plan.to_dict(),
        "seconds_per_step": list(costs),
        "finished": False,
    }


def unseen_part(out: Path, events: EventSequences) -> tuple[EventSequences, EventSequences] | None:
    """The test and training splits, if the model in `out` was trained on these very events."""
    run = saved_run(out)
    if run is None or run["request"]["events"] != events_digest(events):
        return None
    plan = Plan(**run["plan"])
    splits, _ = split_events(events, plan.window, plan.seed)
    return splits["test"], splits["train"]


# --- training


def trial(splits: Mapping[str, EventSequences], plan: Plan) -> Costs:
    """Seconds of a training step of each stage, by trying a few."""
    with torch.random.fork_rng():
        mtpp = _new_mtpp(splits["train"], plan)
        crops = make_crops(splits["train"], length=plan.crop_length)
        first = _seconds_per_step(mtpp, crops, plan.mtpp_batch, 6)
        distiller = _new_distiller(mtpp, plan)
        windows = make_windows(splits["train"], future=plan.future, history=plan.history)
        return Costs(first, _seconds_per_step(distiller, windows, plan.distiller_batch, 3))


def _seconds_per_step(model: Any, store: CropStore | WindowStore, batch_size: int, repeats: int) -> float:
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.0)
    indices = np.random.default_rng(0).integers(len(store), size=(repeats, batch_size))
    seconds = []
    model.train()
    for rows in indices:
        began = time.perf_counter()
        model(**store.__getitems__(rows)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds[1:]))  # the first one warms up


def _new_mtpp(train: EventSequences, plan: Plan) -> MTPPModel:
    torch.manual_seed(plan.seed)
    config = FullyNNConfig(num_marks=train.num_marks, id2label=dict(train.id2label), time_unit=train.time_unit)
    mtpp = FullyNNModel(config)
    mtpp.fit_time_scale(torch.from_numpy(train.intervals()))
    return mtpp


def _new_distiller(mtpp: MTPPModel, plan: Plan) -> DistillerModel:
    torch.manual_seed(plan.seed)
    return RankingDistillerModel.from_mtpp(
        mtpp, history=plan.history, future=plan.future, share=SHARE, conditioning="survival"
    )


def begin(out: Path, run: Mapping[str, Any]) -> None:
    """Make the folder of a run and note its plan there."""
    make_folder(out)
    with locked(out):
        if open_run(out, run["request"]) is not None:
            raise ValueError(f"another run began in {out} meanwhile. Repeat the command to go on with it.")
        write_text(out / PLAN_FILE, json.dumps(run, indent=1))


def carry_out(
    out: Path,
    splits: Mapping[str, EventSequences],
    run: Mapping[str, Any],
    *,
    threads: int = 0,
    progress: bool = True,
    announce: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Train both stages, or what is left of them, judge the model by the test split and put it in place; its rows.

    Args:
        out: the model's folder.
        splits: of the events.
        run: the record of `run_record`.
        threads: CPU threads; 0 is all.
        progress: show bars.
        announce: is told what begins.
    """
    transformers_logging.disable_progress_bar()  # one bar at a time, and small models load in a blink
    plan, costs = Plan(**run["plan"]), Costs(*run["seconds_per_step"])
    with locked(out):
        for number, stage in enumerate(STAGES):
            folder = out / "training" / stage
            ended = (folder / "training.json").is_file()
            if ended and not (folder / "best").exists():  # if it is there, it was killed while it cleaned up
                continue
            announce(f"{number + 1} of 2: {STAGES[stage]}")
            resume = ended or any(folder.glob("checkpoints/step-*[0-9]"))
            if not resume:
                remove_folder(folder)  # it was interrupted before its first checkpoint
            make_trainer = _mtpp_trainer if number == 0 else _distiller_trainer
            make_trainer(out, splits, plan, _arguments(folder, plan, costs, threads, progress)).train(resume=resume)
        announce("Judging it by sequences it has not seen ...")
        folder = out / "training" / "distiller"
        distiller = AutoModel.from_pretrained(folder, use_safetensors=True).eval()
        stamp = {"data": run["data"], "split": "test", **checkpoint_stamp(folder)}
        rows = score_model(distiller, splits["test"], train=splits["train"], **stamp)
        write_text(out / RESULTS_FILE, "".join(json.dumps(row) + "\n" for row in rows))
        for name in ("model.safetensors", "config.json"):  # with the last one the folder becomes a model
            with replaced_when_done(out / name) as partial:
                shutil.copyfile(folder / name, partial)
        write_text(out / PLAN_FILE, json.dumps({**run, "finished": True}, indent=1))
        return rows


def _arguments(folder: Path, plan: Plan, costs: Costs, threads: int, progress: bool) -> TrainingArguments:
    is_mtpp = folder.name == "point_process"
    steps, cost = (plan.mtpp_steps, costs.mtpp) if is_mtpp else (plan.distiller_steps, costs.distiller)
    return TrainingArguments(
        out=str(folder),
        steps=steps,
        warmup_steps=steps // 20,
        batch_size=plan.mtpp_batch if is_mtpp else plan.distiller_batch,
        learning_rate=0.01 if is_mtpp else 0.001,
        eval_every=math.ceil(steps / NUM_EVALUATIONS["mtpp" if is_mtpp else "distiller"]),
        metric="loss" if is_mtpp else "size",
        patience=PATIENCE if is_mtpp else 0,
        save_every=max(1, round(SECONDS_BETWEEN_CHECKPOINTS / cost)),
        seed=plan.seed,
        num_threads=threads,
        progress=progress,
    )


def _mtpp_trainer(out: Path, splits: Mapping[str, EventSequences], plan: Plan, args: TrainingArguments) -> Trainer:
    train, validation = (make_crops(splits[name], length=plan.crop_length) for name in ("train", "validation"))
    mtpp = _new_mtpp(splits["train"], plan)
    return Trainer(mtpp, args, train, validation.sample(VALIDATION_ITEMS["mtpp"], seed=plan.seed))


def _distiller_trainer(
    out: Path, splits: Mapping[str, EventSequences], plan: Plan, args: TrainingArguments
) -> Trainer:
    mtpp = AutoModel.from_pretrained(out / "training" / "point_process", use_safetensors=True)
    train, validation = (
        make_windows(splits[name], future=plan.future, history=plan.history) for name in ("train", "validation")
    )
    distiller = _new_distiller(mtpp, plan)
    return Trainer(distiller, args, train, validation.sample(VALIDATION_ITEMS["distiller"], seed=plan.seed))


# --- how good it is


def score_model(
    model: DistillerModel | MTPPModel,
    test: EventSequences,
    *,
    train: EventSequences | None = None,
    **stamp: Any,
) -> list[Row]:
    """Rows of the point process beside trivial baselines; of a distiller, also of its explanations beside the most
    recent events.

    Args:
        test: events to be scored on; a part of them if they are very many.
        train: events the baselines are fitted to; those of `test` if not given, which flatters the baselines.
    """
    reached = np.cumsum(test.lengths)
    part = test.select(np.arange(min(len(test), int(np.searchsorted(reached, MOST_TEST_EVENTS)) + 1)))
    models: dict[str, Any] = {}
    for kinds in (("poisson", "unigram"), ("gamma", "bigram")):
        baseline = TrivialBaseline(*kinds)
        try:
            models[baseline.name] = baseline.fit(test if train is None else train)
        except ValueError:
            continue  # all intervals are equal: no gamma distribution
    mtpp = model.mtpp if isinstance(model, DistillerModel) else model
    rows = list(evaluate_mtpp({**models, MODEL: mtpp}, part, **stamp))
    config: Any = model.config
    if not isinstance(model, DistillerModel) or part.lengths.max() < config.history + config.future:
        return rows
    history, future = config.history, config.future
    windows = make_windows(part, future=future, history=history).sample(MOST_TEST_WINDOWS)
    target = {"share": config.share} if config.share is not None else {"epsilon": config.epsilon}
    try:
        rows += compare(
            mtpp,
            windows,
            [SOLVER],
            distiller=model,
            reference="recency",
            conditioning=config.conditioning,
            **target,
            **stamp,
        )
    except ValueError as error:
        if "explains something" not in str(error):
            raise
        pair = f"{future}-{history}"
        rows.append({"task": "explain", **stamp, "solver": SOLVER, "explains_nothing": 1.0, "pair": pair})
    return rows


def judge(rows: Sequence[Row]) -> Verdict:
    """The rows of `score_model` in words."""
    nll = {row["model"]: row["nll"] for row in rows if row["task"] == "mtpp"}
    own = nll.pop(MODEL)
    best = min(nll, key=lambda name: nll[name]) if nll else None
    gain = nll[best] - own if best else math.nan
    if not gain > SMALLEST_GAIN:
        averages = f"; {best} {nll[best]:.3f}" if best else ""
        return Verdict(
            f"It predicts these events no better than averages do (NLL {own:.3f}{averages}): its explanations would "
            "mean nothing.",
            "Give it more events or more time (--minutes), check the columns with ehd-hf data inspect, or accept that "
            "these events do not depend on those before them.",
            False,
        )
    sentence = (
        f"Each unseen event is {math.exp(gain):.2f} times as likely under it as under the better of two trivial "
        f"models (NLL {own:.3f} against {nll[best or '']:.3f})"
    )
    explained = {row["solver"]: row for row in rows if row["task"] == "explain"}
    found, recent = explained.get(SOLVER), explained.get("recency")
    if found is None:
        return Verdict(f"{sentence}; explanations were not tried.", "Try some with ehd-hf explain.", True)
    if found["explains_nothing"] >= 1 or recent is None:
        return Verdict(
            f"{sentence}, but no past event helps to predict the next ones.",
            "Ask about a shorter future (--future 1), or train on longer histories.",
            False,
        )
    history = int(found["pair"].split("-")[1])
    target = f"{found['share']:.0%} of what they explain" if found["share"] is not None else "the future"
    sentence += f"; {found['size']:.1f} of {history} past events carry {target}, "
    if found["size"] < LESS_THAN_RECENT * recent["size"]:
        sentence += f"where the most recent ones would have to be {recent['size']:.1f}."
    else:
        sentence += "about as many as if simply the most recent were taken."
    if found["explains_nothing"] > 0.2:
        sentence += f" In {found['explains_nothing']:.0%} of the cases the past explains nothing."
    return Verdict(sentence, "Explain a sequence with it.", True)
