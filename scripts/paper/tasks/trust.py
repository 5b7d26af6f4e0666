"""Can explanations be trusted? They should stay when a seed changes, change when the model is spoilt, and order well.

Overlap of two sets is their Jaccard index, |A and B| / |A or B|; beside it stands what two random sets of the same
sizes would share.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch

from ehd_hf.data.windows import WindowStore
from ehd_hf.evaluation.answers import (
    DISTILLER,
    check_vocabulary,
    get_method,
    objectives,
    solver_answers,
    where_explained,
)
from ehd_hf.evaluation.statistics import mean_interval
from ehd_hf.models.distiller import DistillerModel
from ehd_hf.models.point_process import MTPPModel
from ehd_hf.models.question import MARGIN, Question
from ehd_hf.models.window import places_of
from ehd_hf.solvers.base import Solver, rule_for
from ehd_hf.solvers.prefix import prefix_curve

from . import Row, Run, get_ranking

CHANCE_DRAWS = 32


class Explained(NamedTuple):
    """A point process and, if there is one, the distiller trained on it."""

    mtpp: MTPPModel
    distiller: DistillerModel | None = None


def overlaps(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Jaccard index of the sets in each window, (W,); 1 where both are empty. `one`, `other`: (W, L) bool."""
    either = (one | other).sum(1)
    return np.where(either > 0, (one & other).sum(1) / np.maximum(either, 1), 1.0)


def chance_overlaps(one: np.ndarray, other: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The same if the second set were any of its size, (W,): mean of some draws."""
    shuffled = (generator.permuted(other, axis=1) for _ in range(CHANCE_DRAWS))
    return np.mean([overlaps(one, drawn) for drawn in shuffled], axis=0)


def shuffle_weights(mtpp: MTPPModel, seed: int) -> MTPPModel:
    """A copy that has unlearnt everything: the entries of each of its parameters in random order."""
    spoilt, generator = copy.deepcopy(mtpp), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in spoilt.parameters():
            order = torch.randperm(parameter.numel(), generator=generator)
            parameter.copy_(parameter.flatten()[order.to(parameter.device)].view_as(parameter))
    return spoilt


def with_mtpp(distiller: DistillerModel, mtpp: MTPPModel) -> DistillerModel:
    """A copy of a distiller around another point process of the same shape."""
    changed = copy.deepcopy(distiller)
    changed.mtpp.load_state_dict(mtpp.state_dict())
    return changed.eval()


def _same_weights(one: MTPPModel, other: MTPPModel) -> bool:
    theirs = other.state_dict()
    return all(name in theirs and torch.equal(value, theirs[name]) for name, value in one.state_dict().items())


def evaluate_trust(
    distillers: Sequence[DistillerModel],
    mtpps: Sequence[MTPPModel],
    windows: WindowStore,
    methods: Iterable[str],
    share: float,
    run: Run,
) -> Iterator[Row]:
    """Rows of three checks, for each method that can take them; `overlap` with a 95 % interval, and `chance`.

    "distiller seeds": distillers of the same point process, mean over pairs. "point process seeds": the methods that
    need no distiller, on point processes trained alike. "shuffled weights": each method with the first point process
    and with its weights shuffled; the distiller keeps its own weights.

    Only windows whose history explains something to every point process that was trained are looked at.
    """
    first = distillers[0].mtpp
    for distiller in distillers:
        check_vocabulary(distiller, windows)
    if not all(_same_weights(first, distiller.mtpp) for distiller in distillers[1:]):
        raise ValueError(
            "distillers must explain the same point process; got different ones. Compare each with its own kind, and "
            "pass point processes of other seeds as mtpps."
        )
    if any(mtpp.config.id2label != first.config.id2label for mtpp in mtpps):
        raise ValueError("mtpps must know the marks of the distiller's own, in the same order; got others.")
    if any(_same_weights(first, mtpp) for mtpp in mtpps):
        raise ValueError("mtpps must be of other seeds than the distiller's own; got that one again. Leave it out.")
    seeds = [first, *mtpps]
    windows = windows.select(where_explained(seeds, windows, run.conditioning, run.batch_size))
    if not len(windows):
        return
    spoilt = shuffle_weights(first, run.generator_seed)
    checks: list[tuple[str, str, list[Explained]]] = []
    if len(distillers) > 1:
        checks.append(("distiller seeds", DISTILLER, [Explained(first, distiller) for distiller in distillers]))
    for method in dict.fromkeys(methods):
        if mtpps and not method.startswith(DISTILLER):
            checks.append(("point process seeds", method, [Explained(mtpp) for mtpp in seeds]))
        pair = [Explained(first, distillers[0]), Explained(spoilt, with_mtpp(distillers[0], spoilt))]
        checks.append(("shuffled weights", method, pair))
    question = Question(share=share, conditioning=run.conditioning)
    done: dict[tuple[str, int, int], np.ndarray] = {}

    def masks_of(check: str, method: str, each: Explained) -> np.ndarray:
        key = (method, id(each.mtpp), id(each.distiller) if method.startswith(DISTILLER) else 0)
        if key not in done:
            done[key] = solver_answers(
                get_method(method, each.distiller),
                each.mtpp,
                windows,
                lambda objective, rows: rule_for(question, objective, MARGIN),
                conditioning=run.conditioning,
                seed=run.generator_seed,
                batch_size=run.batch_size,
                progress=run.bar(f"{check}: {method}"),
            ).distill_mask
        return done[key]

    base = run.key("trust", windows, **run.search, target=f"share {share}")
    base["num_sequences"] = len(np.unique(windows.sequence_index))
    for check, method, explained in checks:
        key = {**base, "check": check, "solver": method, "num_models": len(explained)}

        def compute(check: str = check, method: str = method, explained: list[Explained] = explained) -> Row:
            return overlap_of_all([masks_of(check, method, each) for each in explained], windows, run.generator_seed)

        yield run.row(key, compute)


def overlap_of_all(masks: Sequence[np.ndarray], windows: WindowStore, seed: int) -> Row:
    """Mean overlap of all pairs of `masks` (W, L), with its interval, and that of random sets of these sizes.

    Where a model's history explains nothing its set is empty and overlaps with no other; how often that is so is said
    too.
    """
    pairs, generator = list(combinations(masks, 2)), np.random.default_rng(seed)
    overlap = np.mean([overlaps(*pair) for pair in pairs], axis=0)
    chance = np.mean([chance_overlaps(*pair, generator) for pair in pairs], axis=0)
    row: Row = {"overlap": float(overlap.mean()), "overlap_std": float(overlap.std()), "num_models": len(masks)}
    row["overlap_low"], row["overlap_high"] = mean_interval(overlap, windows.sequence_index)
    sizes = np.array([mask.sum(1) for mask in masks])
    row |= {"chance": float(chance.mean()), "size": float(sizes.mean())}
    return row | {"with_empty_set": float((sizes == 0).any(0).mean())}


def evaluate_curves(explained: Explained, methods: Iterable[str], windows: WindowStore, run: Run) -> Iterator[Row]:
    """Deletion and insertion curves, a row for each method.

    `deletion`: dppl_left when the first 0, 1, ... L events are taken out, summed over windows, in units of what the
    whole history explains: from 0 to -1, the earlier the better. `insertion`: the same when only they are kept, from
    -1 to 0. `deletion_mean` and `insertion_mean` are their means over all sizes.
    """
    mtpp, distiller = explained
    solvers = {method: get_ranking(method, distiller) for method in dict.fromkeys(methods)}
    if distiller is not None:
        check_vocabulary(distiller, windows)
    windows = windows.select(where_explained([mtpp], windows, run.conditioning, run.batch_size))

    def curves(solver: Solver) -> Row:
        generator = torch.Generator(device=mtpp.device).manual_seed(run.generator_seed)
        totals, worth = np.zeros((2, windows.history + 1)), 0.0
        for _, objective in objectives(mtpp, windows, run.conditioning, run.batch_size):
            with torch.no_grad():
                places = places_of(solver.rank(objective, generator), objective.history)
                curve = prefix_curve(objective, places)
                size = torch.arange(windows.history + 1, device=places.device)[:, None, None]
                alone = objective.dppl_distilled(places < size).t()
            totals += np.stack([curve.sum(0).cpu().numpy(), alone.sum(0).cpu().numpy()])
            worth -= float(curve[:, -1].sum())
        both = dict(zip(("deletion", "insertion"), totals / worth, strict=True))
        row: Row = {name: curve.round(5).tolist() for name, curve in both.items()}
        return row | {f"{name}_mean": float(curve.mean()) for name, curve in both.items()}

    for method, solver in solvers.items() if len(windows) else ():
        key = run.key("curves", windows, **run.search, solver=method)
        yield run.row(key, lambda solver=solver: curves(solver))
