"""What explanations are worth: their size at a target, the causes they find, whether they can be trusted."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from transformers import AutoModel

from ehd_hf.data.windows import WindowStore
from ehd_hf.evaluation.answers import check_vocabulary, compare, get_method
from ehd_hf.evaluation.scores import check_marks
from ehd_hf.files import checkpoint_stamp
from ehd_hf.models.question import Question

from . import Cache, Row, get_ranking, load_distiller, load_model_windows
from .causes import TrueLikelihood, evaluate_causes, known_process
from .trust import Explained, evaluate_curves, evaluate_trust

Rows = Iterator[Row]


def find_rows(arguments: Namespace, cache: Cache) -> Rows:
    """Rows of each task in turn."""
    check = get_ranking if {"causes", "curves"} & set(arguments.tasks) else get_method
    for method in arguments.solvers:
        if not method.startswith("distiller"):
            check(method)  # a wrong name ends here, before anything is loaded
    find = {"explain": _explain, "causes": _causes, "trust": _trust, "curves": _curves}
    for task in arguments.tasks:
        yield from find[task](arguments, cache)


def _explain(arguments: Namespace, cache: Cache) -> Rows:
    for folder in arguments.model:
        distiller, windows, run = load_model_windows(arguments, folder, cache)
        config, given = distiller.config, arguments.epsilon is not None or arguments.share is not None
        target = {name: getattr(arguments if given else config, name) for name in ("epsilon", "share")}
        question = Question(**target, delta=arguments.delta, conditioning=run.conditioning)
        rows = compare(
            distiller.mtpp,
            windows,
            ["recency", "distiller", *arguments.solvers],
            question,
            distiller=distiller,
            cache=cache,
            progress=True,
            **run.search,
            **run.stamp,
        )
        yield from explained_rows(rows, windows)


def _causes(arguments: Namespace, cache: Cache) -> Rows:
    parents, process = known_process(arguments)
    for folder in arguments.model:
        distiller, windows, run = load_model_windows(arguments, folder, cache)
        check_vocabulary(distiller, windows)
        solvers = _methods(arguments)
        methods = [(solver, distiller.mtpp, get_ranking(solver, distiller)) for solver in solvers]
        truth = [solver for solver in solvers if solver not in ("recency", "distiller")]
        methods += [(f"{solver}, true process", TrueLikelihood(process), get_ranking(solver)) for solver in truth]
        yield from evaluate_causes(methods, windows, parents, process, run)


def _methods(arguments: Namespace) -> list[str]:
    return list(dict.fromkeys(["recency", "distiller", *arguments.solvers]))


def _trust(arguments: Namespace, cache: Cache) -> Rows:
    for folder in arguments.mtpp:
        checkpoint_stamp(folder)  # refuses what is no checkpoint, by name
    first, windows, run = load_model_windows(arguments, arguments.model[0], cache)
    others: list[Any] = [load_distiller(folder) for folder in arguments.model[1:]]
    mtpps = [AutoModel.from_pretrained(folder).eval() for folder in arguments.mtpp]
    for folder, mtpp in zip(arguments.mtpp, mtpps, strict=True):
        check_marks(str(folder), mtpp, windows.sequences)
    given = first.config.share if arguments.share is None else arguments.share
    share = 0.7 if given is None else given
    rows = evaluate_trust([first, *others], mtpps, windows, _methods(arguments), share, run)
    yield from explained_rows(rows, windows)


def _curves(arguments: Namespace, cache: Cache) -> Rows:
    distiller, windows, run = load_model_windows(arguments, arguments.model[0], cache)
    rows = evaluate_curves(Explained(distiller.mtpp, distiller), _methods(arguments), windows, run)
    yield from explained_rows(rows, windows)


def explained_rows(rows: Rows, windows: WindowStore) -> Rows:
    """The rows, of which there must be some: there are none where no window's history explains anything."""
    empty = True
    for row in rows:
        empty = False
        yield row
    if empty:
        raise ValueError(
            f"there must be a window whose history explains something; got none among {len(windows)}. Take more "
            "windows, or a point process that has learnt more."
        )
