"""Can explanations be trusted? They should stay when a seed changes, change when the model is spoilt, and order well.

Overlap of two sets is their Jaccard index, |A and B| / |A or B|; beside it stands what two random sets of the same
sizes would share.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import torch

from ehd_hf import __version__
from ehd_hf.data.windows import WindowStore
from ehd_hf.evaluation.answers import (
    BATCH_SIZE,
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
from ehd_hf.models.question import MARGIN, Conditioning, Question
from ehd_hf.models.window import places_of
from ehd_hf.solvers.base import rule_for
from ehd_hf.solvers.prefix import prefix_curve

from . import Cache, Row, get_ranking

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
    *,
    share: float = 0.7,
    cache: Cache = lambda key: None,
    conditioning: Conditioning = "survival",
    generator_seed: int = 0,
    batch_size: int = BATCH_SIZE,
    progress: bool = False,
    **stamp: Any,
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
            "distillers must explain the same point process; got some of others. Compare each with its own kind, and "
            "pass point processes of other seeds as mtpps."
        )
    if any(mtpp.config.id2label != first.config.id2label for mtpp in mtpps):
        raise ValueError("mtpps must know the marks of the distiller's own, in the same order; got others.")
    if any(_same_weights(first, mtpp) for mtpp in mtpps):
        raise ValueError("mtpps must be of other seeds than the distiller's own; got that one again. Leave it out.")
    seeds = [first, *mtpps]
    windows = windows.select(where_explained(seeds, windows, conditioning, batch_size))
    if not len(windows):
        return
    spoilt = shuffle_weights(first, generator_seed)
    methods = list(dict.fromkeys(methods))
    checks: list[tuple[str, str, list[Explained]]] = []
    if len(distillers) > 1:
        checks.append(("distiller seeds", DISTILLER, [Explained(first, distiller) for distiller in distillers]))
    for method in methods:
        plain = not method.startswith(DISTILLER)
        if plain and mtpps:
            checks.append(("point process seeds", method, [Explained(mtpp) for mtpp in seeds]))
        pair = [Explained(first, distillers[0]), Explained(spoilt, with_mtpp(distillers[0], spoilt))]
        checks.append(("shuffled weights", method, pair))
    base = {"task": "trust", "pair": f"{windows.future}-{windows.history}", **stamp, "target": f"share {share}"}
    base |= {"conditioning": conditioning, "generator_seed": generator_seed, "batch_size": batch_size}
    base |= {"num_windows": len(windows), "num_sequences": len(np.unique(windows.sequence_index))}
    base |= {"version": __version__}
    question = Question(share=share, conditioning=conditioning)
    done: dict[tuple[str, int, int], np.ndarray] = {}
    for check, method, explained in checks:
        row = cache({**base, "check": check, "solver": method, "num_models": len(explained)})
        if row is None:
            masks = []
            for each in explained:
                key = (method, id(each.mtpp), id(each.distiller) if method.startswith(DISTILLER) else 0)
                if key not in done:
                    done[key] = solver_answers(
                        get_method(method, each.distiller),
                        each.mtpp,
                        windows,
                        lambda objective, rows: rule_for(question, objective, MARGIN),
                        conditioning=conditioning,
                        seed=generator_seed,
                        batch_size=batch_size,
                        progress=f"{check}: {method}" if progress else None,
                    ).distill_mask
                masks.append(done[key])
            row = {**base, "check": check, "solver": method, **overlap_of_all(masks, windows, generator_seed)}
        yield row


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


def evaluate_curves(
    explained: Mapping[str, tuple[str, Explained]],
    windows: WindowStore,
    *,
    cache: Cache = lambda key: None,
    conditioning: Conditioning = "survival",
    generator_seed: int = 0,
    batch_size: int = BATCH_SIZE,
    **stamp: Any,
) -> Iterator[Row]:
    """Deletion and insertion curves, a row for each name of `explained` (method, on what).

    `deletion`: dppl_left when the first 0, 1, ... L events are taken out, summed over windows, in units of what the
    whole history explains: from 0 to -1, the earlier the better. `insertion`: the same when only they are kept, from
    -1 to 0. `deletion_mean` and `insertion_mean` are their means over all sizes.
    """
    base = {"task": "curves", "pair": f"{windows.future}-{windows.history}", **stamp, "conditioning": conditioning}
    base |= {"generator_seed": generator_seed, "batch_size": batch_size, "version": __version__}
    solvers = {name: get_ranking(method, distiller) for name, (method, (_, distiller)) in explained.items()}
    for _, (_, distiller) in explained.values():
        if distiller is not None:
            check_vocabulary(distiller, windows)
    for name, (_, (mtpp, _)) in explained.items():
        some = windows.select(where_explained([mtpp], windows, conditioning, batch_size))
        if not len(some):
            continue
        key = {**base, "solver": name, "num_windows": len(some)}
        if (row := cache(key)) is not None:
            yield row
            continue
        generator = torch.Generator(device=mtpp.device).manual_seed(generator_seed)
        totals, worth = np.zeros((2, windows.history + 1)), 0.0
        for _, objective in objectives(mtpp, some, conditioning, batch_size):
            with torch.no_grad():
                ranks = places_of(solvers[name].rank(objective, generator), objective.history)
                curve = prefix_curve(objective, ranks)
                size = torch.arange(windows.history + 1, device=ranks.device)[:, None, None]
                alone = objective.dppl_distilled(ranks < size).t()
            totals += np.stack([curve.sum(0).cpu().numpy(), alone.sum(0).cpu().numpy()])
            worth -= float(curve[:, -1].sum())
        deletion, insertion = totals / worth
        yield {
            **key,
            "deletion": deletion.round(5).tolist(),
            "insertion": insertion.round(5).tolist(),
            "deletion_mean": float(deletion.mean()),
            "insertion_mean": float(insertion.mean()),
        }
