"""What explanations are worth: their size at a target, the causes they find, whether they can be trusted."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

from . import load_model_windows

Known = Callable[[dict[str, Any]], Any]
Rows = Iterator[dict[str, Any]]


def find_rows(arguments: Namespace, known: Known) -> Rows:
    """Rows of each task in turn."""
    from ehd_hf.evaluation.answers import get_method, get_ranking

    check = get_ranking if {"causes", "curves"} & set(arguments.tasks) else get_method
    for method in arguments.solvers:
        if not method.startswith("distiller"):
            check(method)  # a wrong name ends here, before anything is loaded
    find = {"explain": _explain, "causes": _causes, "trust": _trust, "curves": _curves}
    for task in arguments.tasks:
        yield from find[task](arguments, known)


def _options(arguments: Namespace, distiller: Any, known: Known) -> dict[str, Any]:
    conditioning = arguments.conditioning or distiller.config.conditioning
    options = {"conditioning": conditioning, "generator_seed": arguments.seed, "batch_size": arguments.batch_size}
    return {**options, "known": known}


def _target(arguments: Namespace, distiller: Any) -> dict[str, Any]:
    if arguments.epsilon is None and arguments.share is None:
        return {"epsilon": distiller.config.epsilon, "share": distiller.config.share, "delta": arguments.delta}
    return {"epsilon": arguments.epsilon, "share": arguments.share, "delta": arguments.delta}


def _explain(arguments: Namespace, known: Known) -> Rows:
    from ehd_hf.evaluation.answers import compare

    for folder in arguments.model:
        distiller, windows, stamp = load_model_windows(arguments, folder)
        options = _options(arguments, distiller, known) | _target(arguments, distiller) | stamp
        methods = ["recency", "distiller", *arguments.solvers]
        yield from compare(distiller.mtpp, windows, methods, distiller=distiller, progress=True, **options)


def _causes(arguments: Namespace, known: Known) -> Rows:
    from ehd_hf.data.synthetic import PROCESSES, simulated_events
    from ehd_hf.evaluation.answers import get_ranking
    from ehd_hf.evaluation.causes import TrueLikelihood, evaluate_causes
    from ehd_hf.evaluation.scores import check_vocabulary

    kind, _, name = arguments.data.partition(":")
    if kind != "simulated":
        raise ValueError(
            f"causes are known of simulated events only; got --data {arguments.data}. Try simulated:delayed."
        )
    if arguments.split != "test":
        raise ValueError(f"causes are evaluated on the split test; got {arguments.split}. Leave --split out.")
    parents, process = simulated_events(name)["test"].parents, PROCESSES[name]()
    for folder in arguments.model:
        distiller, windows, stamp = load_model_windows(arguments, folder)
        check_vocabulary(distiller, windows)
        solvers = list(dict.fromkeys(["recency", "distiller", *arguments.solvers]))
        methods = [(solver, distiller.mtpp, get_ranking(solver, distiller)) for solver in solvers]
        truth = [solver for solver in solvers if solver not in ("recency", "distiller")]
        methods += [(f"{solver}, true process", TrueLikelihood(process), get_ranking(solver)) for solver in truth]
        options = _options(arguments, distiller, known) | stamp
        yield from evaluate_causes(methods, windows, parents, process, progress=True, **options)


def _trust(arguments: Namespace, known: Known) -> Rows:
    from transformers import AutoModel

    from ehd_hf import EHDDistiller
    from ehd_hf.evaluation.scores import check_marks, checkpoint_stamp
    from ehd_hf.evaluation.trust import evaluate_trust

    for folder in arguments.mtpp:
        checkpoint_stamp(folder)  # one that is none ends here, and is named
    first, windows, stamp = load_model_windows(arguments, arguments.model[0])
    others: list[Any] = [EHDDistiller.from_pretrained(folder).model for folder in arguments.model[1:]]
    mtpps = [AutoModel.from_pretrained(folder).eval() for folder in arguments.mtpp]
    for folder, mtpp in zip(arguments.mtpp, mtpps, strict=True):
        check_marks(str(folder), mtpp, windows.sequences)
    methods = list(dict.fromkeys(["recency", "distiller", *arguments.solvers]))
    options = _options(arguments, first, known) | stamp
    given = first.config.share if arguments.share is None else arguments.share
    share = 0.7 if given is None else given
    yield from evaluate_trust([first, *others], mtpps, windows, methods, share=share, progress=True, **options)


def _curves(arguments: Namespace, known: Known) -> Rows:
    from ehd_hf.evaluation.trust import Explained, evaluate_curves

    distiller, windows, stamp = load_model_windows(arguments, arguments.model[0])
    methods = dict.fromkeys(["recency", "distiller", *arguments.solvers])
    explained = {method: (method, Explained(distiller.mtpp, distiller)) for method in methods}
    yield from evaluate_curves(explained, windows, **_options(arguments, distiller, known), **stamp)
