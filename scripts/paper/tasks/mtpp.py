"""How good a point process is: NLL and calibration, beside trivial baselines and the true process."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from transformers import AutoModel

from ehd_hf import __version__
from ehd_hf.data.synthetic import PROCESSES
from ehd_hf.data.windows import parse_pair
from ehd_hf.evaluation.scores import TRUE_PROCESS, check_marks, checkpoint_stamp, evaluate_mtpp, trivial_baselines

from . import Cache, Row, load_data


def find_rows(arguments: Namespace, cache: Cache) -> Iterator[Row]:
    """A row per baseline, for the true process if there is one, and per model."""
    pair = None if arguments.pair is None else parse_pair(arguments.pair)
    checkpoints = {str(folder): checkpoint_stamp(folder) for folder in arguments.model}
    splits, stamp = load_data(arguments, "train", arguments.split)
    models: dict[str, Any] = dict(trivial_baselines(splits["train"]))
    if arguments.data.startswith("simulated:"):
        models[TRUE_PROCESS] = PROCESSES[arguments.data.partition(":")[2]]()
    models |= {name: AutoModel.from_pretrained(name) for name in checkpoints}
    for name, model in models.items():
        check_marks(name, model, splits[arguments.split])
    for name, model in models.items():
        identity = stamp | checkpoints.get(name, {"checkpoint": None, "seed": None})
        row = cache(identity | {"task": "mtpp", "pair": arguments.pair, "model": name, "version": __version__})
        if row is not None:
            yield row
        else:
            yield from evaluate_mtpp({name: model}, splits[arguments.split], pair=pair, progress=True, **identity)
