"""Scaling: the time of an explanation along the history's length, the number of marks and the model's width.

A set of five events is asked for. "Integrated gradient" takes its slopes in rounds of a fifth of the history (the
default), in one round, or in a new one every eight events (more rounds, the longer the history: up to 500 events).
Linear growth is claimed for the first two. "All prefixes" is what a certificate evaluates at worst.
Windows are of random events, so that they may have any length, and equally many at every length. Last stands what a
ranking distiller trained on histories of 40 events is worth on longer ones: sizes of sets, not times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ehd_hf import EHDDistiller
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.models.perplexity import log_perplexity
from ehd_hf.models.window import Window, places_of
from ehd_hf.solvers.base import AtSize, Objective
from ehd_hf.solvers.integrated_gradient import IntegratedGradient
from ehd_hf.solvers.prefix import prefix_curve
from groups import Row, random_windows, real_windows, summarize, time_interleaved
from groups.explain import RANKING, answering

HISTORY, FUTURE, SIZE = 40, 15, 5
LENGTHS = (25, 50, 100, 200, 500, 1000, 2000)
DEFAULT, ONE, EIGHTS = (f"integrated gradient, {rounds}" for rounds in ("default", "one round", "8 events a round"))


def searching(mtpp: Any, window: Window, per_round: int | None, **options: Any) -> Callable[[], Any]:
    """A set of `SIZE` events by integrated gradients."""
    solver = IntegratedGradient(per_round=per_round)
    return lambda: solver.solve(Objective(mtpp, window, **options), AtSize(SIZE))


def explanations(model: Any, history: int, windows: int, certified: int) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Ways to explain windows of a length, each with its number of windows."""
    window = random_windows(history, FUTURE, windows).to(torch.float32)
    few = window.rows(torch.arange(certified))
    scores = torch.randn(certified, history, generator=torch.Generator().manual_seed(0))
    options: Any = {"conditioning": "survival"}
    rounds = {DEFAULT: None, ONE: history, EIGHTS: 8}
    return {
        **{name: (windows, searching(model.mtpp, window, number, **options)) for name, number in rounds.items()},
        "attention ranker": (windows, lambda: model.history_scores(window)),
        "all prefixes": (
            certified,
            lambda: prefix_curve(Objective(model.mtpp, few, **options), places_of(scores, few.history)),
        ),
    }


def exponent(x: Sequence[float], y: np.ndarray) -> np.ndarray:
    """Slope of log y (N, repeats) on log x (N,) in each repeat."""
    return np.polyfit(np.log(x), np.log(y), 1)[0]


@torch.no_grad()
def along_history(
    repeats: int, lengths: Sequence[int] = LENGTHS, windows: int = 16, certified: int = 4, longest_eights: int = 500
) -> Iterator[Row]:
    model = EHDDistiller.from_pretrained(RANKING).model
    measured: dict[str, list[np.ndarray]] = {}
    for length in lengths:
        ways = explanations(model, length, windows, certified)
        if length > longest_eights:
            del ways[EIGHTS]  # minutes
        seconds = time_interleaved([call for _, call in ways.values()], repeats).T
        for (name, (number, _)), column in zip(ways.items(), seconds, strict=True):
            measured.setdefault(name, []).append(column / number)
            yield _point("history length", name, length, column / number)
    for name, points in measured.items():
        target = "<= 1.15" if name in (DEFAULT, ONE) else None
        used = lengths[: len(points)]
        grown = f"grows with history^x, {used[0]:,} to {used[-1]:,} events"
        yield summarize(f"{name}: {grown}", exponent(used, np.stack(points)), target)


@torch.no_grad()
def along_model(
    repeats: int,
    axis: str,
    values: Sequence[int],
    make: Callable[[int], FullyNNConfig],
    windows: int = 64,
) -> Iterator[Row]:
    """Along what the point process is made of."""
    for value in values:
        torch.manual_seed(0)
        model = FullyNNModel(make(value)).eval()
        window = random_windows(HISTORY, FUTURE, windows, model.config.num_marks).to(torch.float32)
        calls: dict[str, Callable[[], Any]] = {
            ONE: searching(model, window, HISTORY),
            "log perplexity": lambda model=model, window=window: log_perplexity(model, window),
        }
        for name, column in zip(calls, time_interleaved(list(calls.values()), repeats).T, strict=True):
            yield _point(axis, name, value, column / windows)


def _point(axis: str, name: str, x: int, seconds: np.ndarray) -> Row:
    figure = f"{name}, {axis} {x:,}: ms per window"
    return summarize(figure, 1e3 * seconds, axis=axis, x=x, series=name, unit="ms per window")


def beyond_training(histories: Sequence[int] = (40, 80, 160), windows: int = 128) -> Iterator[Row]:
    """Size of the sets that meet the target by the order of a ranking distiller, relative to integrated gradient's."""
    ranking = EHDDistiller.from_pretrained(RANKING)
    others = EHDDistiller(ranking.model, solver="integrated_gradient")
    for history in histories:
        window, data = real_windows(history, FUTURE, windows)
        answers = [answering(explainer, window, refine="prefix")() for explainer in (ranking, others)]
        statuses = [[status == "explained" for status in answer.columns["status"]] for answer in answers]
        both = torch.tensor(statuses).all(0)
        ours, theirs = (float(answer.distill_mask[both].sum(1).double().mean()) for answer in answers)
        name = f"history {history} of a distiller trained on 40"
        yield summarize(f"{name}: size of its sets / of integrated gradient's", [ours / theirs], data=data)
        yield summarize(f"{name}: events in its sets, mean", [ours], data=data)


def measure(repeats: int) -> Iterator[Row]:
    repeats = min(repeats, 3)  # the longest of these calls take seconds
    yield from along_history(repeats)
    yield from along_model(repeats, "marks", (3, 22, 200, 1000, 5000), lambda marks: FullyNNConfig(num_marks=marks))
    yield from along_model(repeats, "width", (16, 32, 64, 128, 256), of_width)
    yield from beyond_training()


def of_width(width: int) -> FullyNNConfig:
    return FullyNNConfig(num_marks=22, embedding_size=width, hidden_size=width, num_components=width)
