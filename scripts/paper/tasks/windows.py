"""The paper's tables: a distiller beside recency and solvers that are asked for as much as it gave; case studies."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

from . import load_model_windows


def find_rows(arguments: Namespace, known: Callable[[dict[str, Any]], Any]) -> Iterator[dict[str, Any]]:
    """Rows of every distiller."""
    from ehd_hf.evaluation.scores import evaluate_windows
    from ehd_hf.solvers.base import get_solver
    from page import PAPER_DS

    for name in arguments.solvers:
        get_solver(name)  # a wrong name ends here, before anything is loaded
    for folder in arguments.model:
        distiller, windows, stamp = load_model_windows(arguments, folder)
        for row in evaluate_windows(
            distiller,
            windows,
            arguments.tasks,
            arguments.solvers,
            known=known,
            conditioning=arguments.conditioning,
            generator_seed=arguments.seed,
            batch_size=arguments.batch_size,
            progress=True,
            **stamp,
        ):
            if row["task"] == "distiller" and arguments.split == "test_sampled":
                row["paper_ds"] = PAPER_DS.get((row["data"], row["pair"]))
            yield row
