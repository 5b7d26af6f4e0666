"""Train a marked temporal point process, or a distiller on top of one.

    accelerate launch scripts/train.py                       # a small default on simulated events
    accelerate launch scripts/train.py --config scripts/configs/stackoverflow_fullynn_fast.yaml \\
        --data.source ../shared/data/stackoverflow --training.out runs/so
    ... --training.steps 500 --model.hidden_size 64          # any field of the config, by its path
    ... --resume                                             # go on after an interruption, bit for bit

A config has the sections `task` (mtpp or distiller), `data`, `model` and `training`, or a `base` and what differs
from it; see scripts/configs/.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModel

from ehd_hf.data.sequences import EventSequences
from ehd_hf.data.sources import load_source, with_jitter
from ehd_hf.data.synthetic import simulated_splits
from ehd_hf.training.recipe import build_trainer

SECTIONS = ("data", "model", "training")
DEFAULT = Path(__file__).parent / "configs" / "simulated_fullynn_fast.yaml"
SIMULATED = {"process", "num_sequences", "horizon", "seed"}
BUILT = {"crop_length", "pair", "jitter_seed", "validation_items", "validation_seed"}


def read_config(argv: list[str] | None) -> tuple[dict[str, Any], bool]:
    """The config file with the command line's changes, and whether to resume."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=DEFAULT, help=f"YAML file (default: {DEFAULT.name})")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in training.out")
    arguments, rest = parser.parse_known_args(argv)
    config = load_config(arguments.config)
    if sorted(config) != sorted(("task", *SECTIONS)) or not all(isinstance(config[name], dict) for name in SECTIONS):
        raise ValueError(
            f"A config has a task and the sections {', '.join(SECTIONS)}, each with its fields; "
            f"{arguments.config} has {', '.join(map(str, config))}."
        )
    for flag, value in zip(rest[::2], [*rest[1::2], None], strict=False):
        section, _, field = flag.removeprefix("--").partition(".")
        if not flag.startswith("--") or section not in SECTIONS or not field or value is None:
            raise ValueError(
                f"Changes to the config read --section.field value with a section of {', '.join(SECTIONS)}; "
                f"got {flag!r}."
            )
        config[section][field] = yaml.safe_load(value)
    return config, arguments.resume


def load_config(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A YAML config; one that names a `base` beside it says only what differs from it."""
    if path.resolve() in above:
        raise ValueError(f"{path} names itself as its base, directly or in a circle.")
    try:
        changes = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"A config is a YAML file; {path} cannot be read ({error}).") from error
    if not isinstance(changes, dict):
        raise ValueError(f"A config has a task and the sections {', '.join(SECTIONS)}; {path} has none.")
    if "base" not in changes:
        return changes
    config = load_config(path.parent / changes.pop("base"), (*above, path.resolve()))
    for section, values in changes.items():
        config[section] = config.get(section, {}) | values if isinstance(values, dict) else values
    return config


def load_splits(data: dict[str, Any]) -> dict[str, EventSequences]:
    """Events of the config's `data` section: a `source` on disk, or a simulated `process`."""
    where = {"source"} if "source" in data else SIMULATED
    if unknown := sorted(set(data) - where - BUILT):
        raise ValueError(f"data has the keys {', '.join(sorted(where | BUILT))}; got unknown {', '.join(unknown)}.")
    given = {name: value for name, value in data.items() if name in where}
    splits = load_source(**{"path": given["source"]}) if "source" in data else simulated_splits(**given)
    if not {"train", "validation"} <= set(splits):
        raise ValueError(f"Training needs the splits train and validation; got {', '.join(splits)}.")
    if data.get("jitter_seed") is not None:
        splits = {name: with_jitter(sequences, seed=data["jitter_seed"]) for name, sequences in splits.items()}
    return splits


def main(argv: list[str] | None = None) -> int:
    try:
        config, resume = read_config(argv)
        splits = load_splits(config["data"])
        torch.manual_seed(config["training"].get("seed", 0))  # the initial weights
        if config["task"] == "distiller":
            # Results were made with these draws before those of the weights: they can be repeated to the bit.
            AutoModel.from_config(AutoConfig.for_model(config["model"]["model_type"]))
        trainer = build_trainer(config, splits)
        trainer.accelerator.print(
            f"{len(trainer.train_dataset):,} training items, {trainer.model.num_parameters(only_trainable=True):,} "
            "trainable parameters"
        )
        best = trainer.train(resume=resume)
    except (ValueError, TypeError, KeyError, OSError, StrictDataclassError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"best at step {best['step']}: " + "  ".join(f"{k} {v:.4f}" for k, v in best.items() if k != "step"))
    print(f"model in {config['training']['out']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
