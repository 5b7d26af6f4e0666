"""Score trained models beside their baselines on the same events; print a table, keep the rows."""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLE = """examples:
  python scripts/evaluate.py --model runs/so --data data/stackoverflow --pair 15-40 --out rows.jsonl --figure qq.png
  python scripts/evaluate.py --model runs/seed0 runs/seed1 runs/seed2 --data simulated:delayed --out rows.jsonl

Rows already in --out for the same model, data, split and window are not computed again.
"""
# What makes two evaluations the same.
KEY = ("task", "data", "split", "jitter_seed", "pair", "model", "checkpoint", "version")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, nargs="+", required=True, help="checkpoint folder(s), one per seed")
    parser.add_argument("--data", required=True, help="folder or file of events, or simulated:<process>")
    parser.add_argument("--task", default="mtpp", help=f"one of {', '.join(TASKS)} (default mtpp)")
    parser.add_argument("--pair", metavar="K-L", help="also score the futures of windows, such as 15-40")
    parser.add_argument("--split", default="test", help="default test")
    parser.add_argument("--jitter-seed", type=int, help="spread whole-number times over their unit")
    parser.add_argument("--out", type=Path, help="JSON Lines file to which rows are added")
    parser.add_argument("--figure", type=Path, help="picture of the calibration (.png, .pdf, .svg)")
    return parser.parse_args(argv)


def load_data(arguments: argparse.Namespace) -> dict[str, Any]:
    """Event sequences by split; train and the split to score must be there."""
    from ehd_hf.sources import load_source, with_jitter
    from ehd_hf.synthetic import simulated_splits

    kind, _, process = arguments.data.partition(":")
    splits = simulated_splits(process) if kind == "simulated" else load_source(arguments.data)
    for split in ("train", arguments.split):
        if split not in splits:
            raise ValueError(f"the data must have the split {split!r}; got {', '.join(splits)}. Check --split, --data.")
    if arguments.jitter_seed is None:
        return splits
    return {split: with_jitter(sequences, seed=arguments.jitter_seed) for split, sequences in splits.items()}


def load_checkpoint(folder: Path) -> tuple[Any, dict[str, Any]]:
    """The model, and what identifies it in a row: a digest of its weights and the seed it was trained with."""
    from transformers import AutoModel

    import ehd_hf.mtpp.fullynn  # noqa: F401  # registers the model type

    if not (folder / "config.json").is_file() or not (folder / "model.safetensors").is_file():
        raise ValueError(f"--model must be a folder with config.json and model.safetensors; got {folder}. Train first.")
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:12]
    training = folder / "training.json"
    seed = json.loads(training.read_text())["args"].get("seed") if training.is_file() else None
    return AutoModel.from_pretrained(folder), {"checkpoint": digest, "seed": seed}


def evaluate_mtpp_task(arguments: argparse.Namespace, done: dict[tuple[Any, ...], Any]) -> Iterator[dict[str, Any]]:
    """Rows of the trivial baselines, of the true process if there is one, and of the models: old ones, then new."""
    from ehd_hf import __version__
    from ehd_hf.evaluation import TRUE_PROCESS, evaluate_mtpp, trivial_baselines
    from ehd_hf.mtpp.base import MTPPModel
    from ehd_hf.synthetic import PROCESSES
    from ehd_hf.windows import parse_pair

    pair = None if arguments.pair is None else parse_pair(arguments.pair)
    checkpoints = {str(folder): load_checkpoint(folder) for folder in arguments.model}
    for name, (model, _) in checkpoints.items():
        if not isinstance(model, MTPPModel):
            raise ValueError(f"task mtpp needs a point process; {name} holds a {type(model).__name__}.")
    splits = load_data(arguments)
    scorers: dict[str, Any] = dict(trivial_baselines(splits["train"]))
    if arguments.data.startswith("simulated:"):
        scorers[TRUE_PROCESS] = PROCESSES[arguments.data.partition(":")[2]]()
    scorers |= {name: model for name, (model, _) in checkpoints.items()}
    data = arguments.data if arguments.data.startswith("simulated:") else Path(arguments.data).resolve().name
    stamp = {"data": data, "split": arguments.split, "pair": arguments.pair, "jitter_seed": arguments.jitter_seed}
    for name, scorer in scorers.items():
        identity = stamp | (checkpoints[name][1] if name in checkpoints else {"checkpoint": None, "seed": None})
        key = {"task": "mtpp", "model": name, "version": __version__} | identity
        if (old := done.get(tuple(key[part] for part in KEY))) is not None:
            yield old
        else:
            yield from evaluate_mtpp({name: scorer}, splits[arguments.split], pair=pair, progress=True, **identity)
