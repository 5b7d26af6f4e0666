"""The paper's tables: a distiller beside recency and solvers that are asked for as much as it gave; case studies."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch

from ehd_hf import __version__
from ehd_hf.data.windows import WindowStore
from ehd_hf.evaluation.answers import (
    BATCH_SIZE,
    DISTILLER,
    Answers,
    answer_windows,
    check_vocabulary,
    objectives,
    solver_answers,
)
from ehd_hf.evaluation.statistics import mean_interval
from ehd_hf.models.distiller import DistillerModel
from ehd_hf.models.question import Conditioning, Question
from ehd_hf.solvers.base import AtSize, Objective, Reaches, Rule, SolverResult, get_solver, rule_for
from page import PAPER_DS

from . import Cache, Row, load_model_windows
from .case_study import case_study

SOLVER_TASKS = {"ehed": "ds", "emhd": "lmhs"}  # and the metric of each
WINDOW_TASKS = ("distiller", *SOLVER_TASKS, "case_study")


def find_rows(arguments: Namespace, cache: Cache) -> Iterator[Row]:
    """Rows of every distiller."""
    for name in arguments.solvers:
        get_solver(name)  # a wrong name ends here, before anything is loaded
    for folder in arguments.model:
        distiller, windows, stamp = load_model_windows(arguments, folder)
        for row in evaluate_windows(
            distiller,
            windows,
            arguments.tasks,
            arguments.solvers,
            cache=cache,
            conditioning=arguments.conditioning,
            generator_seed=arguments.seed,
            batch_size=arguments.batch_size,
            progress=True,
            **stamp,
        ):
            if row["task"] == "distiller" and arguments.split == "test_sampled":
                row["paper_ds"] = PAPER_DS.get((row["data"], row["pair"]))
            yield row


def distiller_answers(
    distiller: DistillerModel,
    windows: WindowStore,
    *,
    conditioning: Conditioning | None = None,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
) -> tuple[Answers, float]:
    """The distiller's own masks (alg. 2), what they are worth under `conditioning` (its own if not given), and the
    seconds it took for the masks alone."""
    check_vocabulary(distiller, windows)
    distiller, seconds = distiller.eval(), 0.0

    def answer(objective: Objective, rows: slice) -> SolverResult:
        nonlocal seconds
        began = time.perf_counter()
        chosen, _ = distiller.distill(objective.window)
        seconds += time.perf_counter() - began
        values = objective.dppl_left(chosen), objective.dppl_distilled(chosen)
        return SolverResult(chosen, *values, objective.num_evaluations, torch.ones_like(chosen[:, 0]))

    conditioning = conditioning or distiller.config.conditioning
    name = DISTILLER if progress else None
    return answer_windows(answer, objectives(distiller.mtpp, windows, conditioning, batch_size, name)), seconds


def evaluate_windows(
    distiller: DistillerModel,
    windows: WindowStore,
    tasks: Iterable[str],
    solvers: Iterable[str] = (),
    *,
    cache: Cache = lambda key: None,
    conditioning: Conditioning | None = None,
    generator_seed: int = 0,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
    **stamp: Any,
) -> Iterator[Row]:
    """The rows of several tasks, one after the other: of `evaluate_solvers` for ehed and emhd, with the distiller and
    recency always among the solvers; of `evaluate_distiller`; of `evaluate_case_study`.

    Args:
        cache: asked before a row is computed, with what identifies it: the row itself if there is one.
    """
    check_vocabulary(distiller, windows)
    solvers = list(dict.fromkeys([DISTILLER, "recency", *solvers]))
    questions: list[tuple[str, str | None]] = []
    for task in dict.fromkeys(tasks):
        if task not in WINDOW_TASKS:
            raise ValueError(f"task must be one of {', '.join(WINDOW_TASKS)}; got {task!r}.")
        questions += [(task, solver) for solver in solvers] if task in SOLVER_TASKS else [(task, None)]
    how: dict[str, Any] = {"conditioning": conditioning or distiller.config.conditioning}
    base = {"pair": f"{windows.future}-{windows.history}", **stamp, **how, "num_windows": len(windows)}

    def look_up(task: str, solver: str | None) -> Row | None:
        search = {"solver": solver, "generator_seed": generator_seed, "batch_size": batch_size} if solver else {}
        return cache({"task": task, **base, **search, "version": __version__})

    rows = {question: look_up(*question) for question in questions}
    missing = [(task, solver) for (task, solver), row in rows.items() if solver and row is None]
    options: dict[str, Any] = {**how, "batch_size": batch_size, "progress": progress, **stamp}
    fresh = evaluate_solvers(distiller, windows, missing, generator_seed=generator_seed, **options)
    single = {"distiller": evaluate_distiller, "case_study": evaluate_case_study}
    for (task, solver), row in rows.items():
        if row is None:
            row = next(fresh) if solver else single[task](distiller, windows, **options)
        yield row


def evaluate_solvers(
    distiller: DistillerModel,
    windows: WindowStore,
    questions: Iterable[tuple[str, str]],
    *,
    conditioning: Conditioning | None = None,
    generator_seed: int = 0,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
    **stamp: Any,
) -> Iterator[Row]:
    """One row for each of `questions`, as soon as it is answered.

    EHED gives every solver the distiller's own size in each window; `ds` is the metric. EMHD gives it the distiller's
    dppl_left and dppl_distilled as targets; `lmhs` is the metric, the size needed, and L where a solver does not reach
    them (`reached` is the share that does). The distiller's own rows are the solver "distiller".

    Keys: the metric's mean with `_std` over windows and a 95 % interval of the mean, `_low` and `_high`, by bootstrap
    over sequences (windows overlap); `difference` from the distiller on the same windows, with its interval; means of
    `size`, `dppl_left`, `dppl_distilled`, `evaluations` (likelihoods of one window given one mask; the full history's
    and those of the values reported included) and `seconds_per_window` (of which a distiller took
    `distill_seconds_per_window` for its masks).

    Args:
        questions: (task, solver) by name: ehed or emhd; "distiller" or one of `available_solvers()`.
        conditioning: of the perplexities; the distiller's own if not given.
        generator_seed: of the solvers' randomness.
        batch_size: windows searched at once; what a random solver draws depends on it.
        stamp: what else each row says (data, split, ...).
    """
    questions = list(questions)
    for task, name in questions:
        if task not in SOLVER_TASKS:
            raise ValueError(f"task must be one of {', '.join(SOLVER_TASKS)}; got {task!r}.")
        if name != DISTILLER:
            get_solver(name)  # an unknown one is refused before anything is computed
    if not questions:
        return
    how: dict[str, Any] = {"conditioning": conditioning or distiller.config.conditioning, "batch_size": batch_size}
    own, distill_seconds = distiller_answers(distiller, windows, progress=progress, **how)
    groups = windows.sequence_index

    def rule(task: str, objective: Objective, rows: slice) -> Rule:
        device = distiller.device
        if task == "ehed":
            return AtSize(torch.from_numpy(own.sizes[rows]).to(device))
        left, distilled = own.dppl_left[rows], own.dppl_distilled[rows]
        return Reaches(torch.from_numpy(left).to(device), torch.from_numpy(distilled).to(device))

    for task, name in questions:
        answers, options = own, ""
        if name != DISTILLER:
            solver = get_solver(name)
            options = ", ".join(f"{option}={value}" for option, value in vars(solver).items())
            answers = solver_answers(
                solver,
                distiller.mtpp,
                windows,
                partial(rule, task),
                seed=generator_seed,
                progress=f"{task} {name}" if progress else None,
                **how,
            )
        metric, reference = (answers.ds, own.ds) if task == "ehed" else (answers.sizes, own.sizes)
        key = SOLVER_TASKS[task]
        row: Row = {"task": task, "pair": f"{windows.future}-{windows.history}", **stamp, "solver": name}
        row |= {key: float(metric.mean()), f"{key}_std": float(metric.std())}
        row[f"{key}_low"], row[f"{key}_high"] = mean_interval(metric, groups)
        row |= {"difference": None, "difference_low": None, "difference_high": None}
        if name != DISTILLER:
            difference = metric - reference
            row["difference"] = float(difference.mean())
            row["difference_low"], row["difference_high"] = mean_interval(difference, groups)
        means = {
            "reached": answers.reached,
            "size": answers.sizes,
            "dppl_left": answers.dppl_left,
            "dppl_distilled": answers.dppl_distilled,
            "evaluations": answers.num_evaluations,
        }
        row |= {key: float(values.mean()) for key, values in means.items()}
        row["seconds_per_window"] = answers.seconds / len(windows)
        if name == DISTILLER:
            row["distill_seconds_per_window"] = distill_seconds / len(windows)
        row |= {"num_windows": len(windows), "num_sequences": len(np.unique(groups)), "solver_options": options}
        row |= {"epsilon": distiller.config.epsilon, **how, "generator_seed": generator_seed}
        row |= {"threads": torch.get_num_threads(), "seconds": round(answers.seconds, 2), "version": __version__}
        yield row


def evaluate_distiller(
    distiller: DistillerModel,
    windows: WindowStore,
    *,
    conditioning: Conditioning | None = None,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
    **stamp: Any,
) -> Row:
    """One row: what a distiller's argmax answers are worth, beside the most recent events.

    Keys, each a mean over windows with its `_std`: `ds` (dppl_distilled - dppl_left), `size`, `dppl_left`,
    `dppl_distilled`; shares of windows: `constraint_met`, `is_last_k` (the answer is exactly the last events);
    `last_k_share` (share of distilled events that are among the last k). Recency: `recency_ds` at the same sizes, and
    `recency_size`, the fewest last events that meet the constraint (mean over the `recency_reached` share of windows).
    """
    began = time.perf_counter()
    how: dict[str, Any] = {"conditioning": conditioning or distiller.config.conditioning, "batch_size": batch_size}
    epsilon = distiller.config.epsilon
    own, distill_seconds = distiller_answers(distiller, windows, progress=progress, **how)
    sizes = torch.from_numpy(own.sizes).to(distiller.device)
    question, name = Question(epsilon=epsilon), "recency" if progress else None
    recent, enough = (
        solver_answers(get_solver("recency"), distiller.mtpp, windows, rule, progress=name, **how)
        for rule in (
            lambda objective, rows: AtSize(sizes[rows]),
            lambda objective, rows: rule_for(question, objective),
        )
    )
    shared = (own.distill_mask & recent.distill_mask).sum(1)
    arrays = {
        "ds": own.ds,
        "size": own.sizes,
        "dppl_left": own.dppl_left,
        "dppl_distilled": own.dppl_distilled,
        "constraint_met": own.dppl_left < np.log(epsilon),
        "is_last_k": (own.distill_mask == recent.distill_mask).all(1),
        "last_k_share": shared[own.sizes > 0] / own.sizes[own.sizes > 0],  # undefined where nothing was distilled
        "recency_ds": recent.ds,
        "recency_size": enough.sizes[enough.reached],
    }
    row: Row = {"task": "distiller", "pair": f"{windows.future}-{windows.history}", **stamp}
    for name, array in arrays.items():
        row[name] = float(array.mean()) if len(array) else None
        if name not in ("constraint_met", "is_last_k", "last_k_share"):
            row[f"{name}_std"] = float(array.std()) if len(array) else None
    row["recency_reached"] = float(enough.reached.mean())
    row |= {"epsilon": epsilon, "conditioning": how["conditioning"], "num_windows": len(windows)}
    row["windows_per_second"] = len(windows) / distill_seconds
    return row | {"seconds": round(time.perf_counter() - began, 2), "version": __version__}


def evaluate_case_study(
    distiller: DistillerModel,
    windows: WindowStore,
    *,
    conditioning: Conditioning | None = None,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
    **stamp: Any,
) -> Row:
    """One row of what the distiller's masks say together; keys as in `case_study`. Slides need neighbouring
    windows, so give it a whole split."""
    how: dict[str, Any] = {"conditioning": conditioning or distiller.config.conditioning}
    own, _ = distiller_answers(distiller, windows, batch_size=batch_size, progress=progress, **how)
    marks = windows.gather(np.arange(len(windows)))[1].numpy()[:, : windows.history]
    where = windows.sequence_index, windows.window_offset
    row: Row = {"task": "case_study", "pair": f"{windows.future}-{windows.history}", **stamp}
    row |= case_study(own.distill_mask, marks, *where, windows.sequences.id2label)
    row |= {**how, "num_windows": len(windows)}
    return row | {"seconds": round(own.seconds, 2), "version": __version__}
