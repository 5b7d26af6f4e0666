"""What each loss does alone (the paper's figure 2): the share of events left along the training of a distiller."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from ehd_hf import __version__
from ehd_hf.files import checkpoint_stamp, read_rows

from . import Cache, Row, load_distiller


def find_rows(arguments: Namespace, cache: Cache) -> Iterator[Row]:
    """A row per run, from its log: `left_share` holds (step, share of validation events left by the argmax)."""
    for folder in arguments.model:
        config = load_distiller(folder).config
        log = read_rows(folder / "log.jsonl") if (folder / "log.jsonl").is_file() else []
        points = [(row["step"], row["eval_left_share"]) for row in log if "eval_left_share" in row]
        if not points:
            raise ValueError(f"{folder} must hold a log.jsonl with eval_left_share; train a distiller there first.")
        weights = {name: getattr(config, name) for name in ("alpha", "constraint_weight", "epsilon")}
        if config.alpha and config.constraint_weight:
            losses = "both losses"
        else:
            losses = "size alone" if config.alpha else "constraint alone"
        stamp = {"task": "losses", "data": Path(arguments.data).stem, "split": "validation", "version": __version__}
        stamp |= {"pair": f"{config.future}-{config.history}", "model": folder.name, **checkpoint_stamp(folder)}
        yield stamp | {"losses": losses, **weights, "left_share": points, "left_at_end": points[-1][1]}
