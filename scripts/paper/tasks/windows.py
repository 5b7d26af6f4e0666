"""The paper's tables: a distiller beside recency and solvers that are asked for as much as it gave; case studies."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch

from ehd_hf.data.windows import WindowStore
from ehd_hf.evaluation.answers import DISTILLER, Answers, answer_windows, check_vocabulary, objectives, solver_answers
from ehd_hf.evaluation.statistics import mean_interval
from ehd_hf.models.distiller import DistillerModel
from ehd_hf.models.question import Question
from ehd_hf.solvers.base import AtSize, Objective, Reaches, Rule, SolverResult, get_solver, rule_for
from page import PAPER_DS

from . import Cache, Row, Run, load_model_windows
from .case_study import case_study

SOLVER_TASKS = {"ehed": "ds", "emhd": "lmhs"}  # and the metric of each


def find_rows(arguments: Namespace, cache: Cache) -> Iterator[Row]:
    """Rows of every distiller."""
    for name in arguments.solvers:
        get_solver(name)  # refuses a wrong name before anything is loaded
    for folder in arguments.model:
        for row in PaperTasks(*load_model_windows(arguments, folder, cache)).rows(arguments.tasks, arguments.solvers):
            if row["task"] == "distiller" and arguments.split == "test_sampled":
                row["paper_ds"] = PAPER_DS.get((row["data"], row["pair"]))
            yield row


class PaperTasks:
    """A distiller and windows; its answers are computed once, when first needed."""

    def __init__(self, distiller: DistillerModel, windows: WindowStore, run: Run) -> None:
        check_vocabulary(distiller, windows)
        self.distiller, self.windows, self.run = distiller.eval(), windows, run
        self.distill_seconds = 0.0

    def rows(self, tasks: Iterable[str], solvers: Iterable[str] = ()) -> Iterator[Row]:
        """The rows of the tasks, one after the other; for ehed and emhd one for each solver, the distiller and recency
        always among them."""
        names = list(dict.fromkeys([DISTILLER, "recency", *solvers]))
        for task in dict.fromkeys(tasks):
            if task in SOLVER_TASKS:
                for name in names:
                    key = self.run.key(task, self.windows, solver=name, **self.run.search)
                    yield self.run.row(key, lambda task=task, name=name: self.solver_row(task, name))
            else:
                compute = {"distiller": self.distiller_row, "case_study": self.case_study_row}[task]
                yield self.run.row(self.run.key(task, self.windows), compute)

    @cached_property
    def own(self) -> Answers:
        """The distiller's own masks (alg. 2), and what they are worth; `distill_seconds` is then the CPU time
        that the masks alone took."""

        def answer(objective: Objective, rows: slice) -> SolverResult:
            began = time.process_time()
            chosen, _ = self.distiller.distill(objective.window)
            self.distill_seconds += time.process_time() - began
            values = objective.dppl_left(chosen), objective.dppl_distilled(chosen)
            return SolverResult(chosen, *values, objective.num_evaluations, torch.ones_like(chosen[:, 0]))

        run, bar = self.run, self.run.bar(DISTILLER)
        batches = objectives(self.distiller.mtpp, self.windows, run.conditioning, run.batch_size, bar)
        return answer_windows(answer, batches)

    def solved(self, name: str, rule: Callable[[Objective, slice], Rule], bar: str) -> Answers:
        run = self.run
        options: Any = {"conditioning": run.conditioning, "seed": run.generator_seed, "batch_size": run.batch_size}
        return solver_answers(
            get_solver(name), self.distiller.mtpp, self.windows, rule, progress=run.bar(bar), **options
        )

    def as_much_as_own(self, task: str) -> Callable[[Objective, slice], Rule]:
        """The rule that asks for the distiller's own size in each window (EHED), or for its values (EMHD)."""
        own = self.own
        sizes, left, distilled = (
            torch.from_numpy(values).to(self.distiller.device)
            for values in (own.sizes, own.dppl_left, own.dppl_distilled)
        )
        if task == "ehed":
            return lambda objective, rows: AtSize(sizes[rows])
        return lambda objective, rows: Reaches(left[rows], distilled[rows])

    def solver_row(self, task: str, name: str) -> Row:
        """EHED gives every solver the distiller's own size in each window; `ds` is the metric. EMHD gives it the
        distiller's dppl_left and dppl_distilled as targets; `lmhs` is the metric, the size needed, and L where a
        solver does not reach them (`reached` is the share that does).

        Keys: the metric's mean with `_std` over windows and a 95 % interval of the mean, `_low` and `_high`, by
        bootstrap over sequences (windows overlap); `difference` from the distiller on the same windows, with its
        interval; means of `size`, `dppl_left`, `dppl_distilled`, `evaluations` (likelihoods of one window given one
        mask; the full history's and those of the values reported included) and `seconds_per_window` (of which a
        distiller took `distill_seconds_per_window` for its masks).
        """
        own, windows = self.own, self.windows
        is_own = name == DISTILLER
        answers = own if is_own else self.solved(name, self.as_much_as_own(task), f"{task} {name}")
        metric, reference = (answers.ds, own.ds) if task == "ehed" else (answers.sizes, own.sizes)
        groups, key = windows.sequence_index, SOLVER_TASKS[task]
        row: Row = {key: float(metric.mean()), f"{key}_std": float(metric.std())}
        row[f"{key}_low"], row[f"{key}_high"] = mean_interval(metric, groups)
        row |= {"difference": None, "difference_low": None, "difference_high": None}
        if not is_own:
            row["difference"] = float((metric - reference).mean())
            row["difference_low"], row["difference_high"] = mean_interval(metric - reference, groups)
        means = {"reached": answers.reached, "size": answers.sizes, "evaluations": answers.num_evaluations}
        means |= {"dppl_left": answers.dppl_left, "dppl_distilled": answers.dppl_distilled}
        row |= {key: float(values.mean()) for key, values in means.items()}
        row["seconds_per_window"] = answers.seconds / len(windows)
        if is_own:
            row["distill_seconds_per_window"] = self.distill_seconds / len(windows)
        options = {} if is_own else vars(get_solver(name))
        row["solver_options"] = ", ".join(f"{option}={value}" for option, value in options.items())
        row |= {"epsilon": self.distiller.config.epsilon, "num_sequences": len(np.unique(groups))}
        return row | {"threads": torch.get_num_threads(), "seconds": round(answers.seconds, 2)}

    def distiller_row(self) -> Row:
        """What a distiller's argmax answers are worth, beside the most recent events.

        Keys, each a mean over windows with its `_std`: `ds` (dppl_distilled - dppl_left), `size`, `dppl_left`,
        `dppl_distilled`; shares of windows: `constraint_met`, `is_last_k` (the answer is exactly the last events);
        `last_k_share` (share of distilled events that are among the last k). Recency: `recency_ds` at the same sizes,
        and `recency_size`, the fewest last events that meet the constraint (mean over the `recency_reached` share).
        """
        own, epsilon = self.own, self.distiller.config.epsilon
        recent = self.solved("recency", self.as_much_as_own("ehed"), "recency")
        question = Question(epsilon=epsilon)
        enough = self.solved("recency", lambda objective, rows: rule_for(question, objective), "recency")
        shared, nonempty = (own.distill_mask & recent.distill_mask).sum(1), own.sizes > 0
        arrays = {
            "ds": own.ds,
            "size": own.sizes,
            "dppl_left": own.dppl_left,
            "dppl_distilled": own.dppl_distilled,
            "recency_ds": recent.ds,
            "recency_size": enough.sizes[enough.reached],
        }
        shares = {
            "constraint_met": own.dppl_left < np.log(epsilon),
            "is_last_k": (own.distill_mask == recent.distill_mask).all(1),
            "last_k_share": shared[nonempty] / own.sizes[nonempty],  # undefined where nothing was distilled
            "recency_reached": enough.reached,
        }
        row = {key: float(values.mean()) if len(values) else None for key, values in (arrays | shares).items()}
        row |= {f"{key}_std": float(values.std()) if len(values) else None for key, values in arrays.items()}
        rate = len(self.windows) / self.distill_seconds
        return row | {"epsilon": epsilon, "windows_per_second": rate, "seconds": round(own.seconds, 2)}

    def case_study_row(self) -> Row:
        """What the distiller's masks say together; keys as in `case_study`. Slides need neighbouring windows, so give
        it a whole split."""
        windows = self.windows
        marks = windows.gather(np.arange(len(windows)))[1].numpy()[:, : windows.history]
        where = windows.sequence_index, windows.window_offset
        row = case_study(self.own.distill_mask, marks, *where, windows.sequences.id2label)
        return row | {"seconds": round(self.own.seconds, 2)}
