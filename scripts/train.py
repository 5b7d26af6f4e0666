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
from ehd_hf.data.windows import make_crops, make_windows, parse_pair
from ehd_hf.training.trainer import Trainer, TrainingArguments

SECTIONS = ("data", "model", "training")
DEFAULT = Path(__file__).parent / "configs" / "simulated_fullynn_fast.yaml"


def read_config(argv: list[str] | None) -> tuple[dict[str, Any], bool]:
    """The config file with the command line's changes, and whether to resume."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=DEFAULT, help=f"YAML file (default: {DEFAULT.name})")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in training.out")
    known, rest = parser.parse_known_args(argv)
    config = load_config(known.config)
    if sorted(config) != sorted(("task", *SECTIONS)) or not all(isinstance(config[name], dict) for name in SECTIONS):
        raise ValueError(
            f"A config has a task and the sections {', '.join(SECTIONS)}, each with its fields; "
            f"{str(known.config)!r} has {', '.join(map(str, config))}."
        )
    for flag, value in zip(rest[::2], [*rest[1::2], None], strict=False):
        section, _, field = flag.removeprefix("--").partition(".")
        if not flag.startswith("--") or section not in SECTIONS or not field or value is None:
            raise ValueError(
                f"Changes to the config read --section.field value with a section of {', '.join(SECTIONS)}; "
                f"got {flag!r}."
            )
        config[section][field] = yaml.safe_load(value)
    return config, known.resume


def load_config(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A YAML config; one that names a `base` beside it says only what differs from it."""
    if not path.is_file():
        raise ValueError(f"A config is a YAML file; got {str(path)!r}, which does not exist.")
    if path.resolve() in above:
        raise ValueError(f"{str(path)!r} names itself as its base, directly or in a circle.")
    try:
        changes = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"A config is a YAML file; {str(path)!r} cannot be read ({error}).") from error
    if not isinstance(changes, dict):
        raise ValueError(f"A config has a task and the sections {', '.join(SECTIONS)}; {str(path)!r} has none.")
    if "base" not in changes:
        return changes
    config = load_config(path.parent / changes.pop("base"), (*above, path.resolve()))
    for section, values in changes.items():
        config[section] = config.get(section, {}) | values if isinstance(values, dict) else values
    return config


def load_splits(data: dict[str, Any], *needed: str) -> dict[str, EventSequences]:
    """Events of the config's `data` section: a `source` on disk, or a simulated `process`."""
    all_data, data = data, {name: value for name, value in data.items() if name not in needed}
    if missing := [name for name in needed if name != "jitter_seed" and name not in all_data]:
        raise ValueError(f"data needs {', '.join(missing)}; got {', '.join(all_data)}.")
    jitter_seed = all_data.get("jitter_seed")
    known = {"source"} if "source" in data else {"process", "num_sequences", "horizon", "seed"}
    if unknown := sorted(set(data) - known):
        raise ValueError(
            f"data has the keys {', '.join(sorted(known | set(needed)))}; got unknown {', '.join(unknown)}."
        )
    splits = load_source(data["source"]) if "source" in data else simulated_splits(**data)
    if not {"train", "validation"} <= set(splits):
        raise ValueError(f"Training needs the splits train and validation; got {', '.join(splits)}.")
    if jitter_seed is not None:
        splits = {name: with_jitter(sequences, seed=jitter_seed) for name, sequences in splits.items()}
    return splits


def train_mtpp(config: dict[str, Any], args: TrainingArguments) -> Trainer:
    splits = load_splits(config["data"], "crop_length", "jitter_seed")
    train, length = splits["train"], config["data"]["crop_length"]
    names = {"num_marks": train.num_marks, "id2label": dict(train.id2label), "time_unit": train.time_unit}
    mtpp = AutoModel.from_config(AutoConfig.for_model(**config["model"], **names))
    mtpp.fit_time_scale(torch.from_numpy(train.intervals()))
    validation = make_crops(splits["validation"], length=length).sample(2000, seed=0)
    return Trainer(mtpp, args, make_crops(train, length=length), validation)


def train_distiller(config: dict[str, Any], args: TrainingArguments) -> Trainer:
    splits = load_splits(config["data"], "pair", "jitter_seed")
    model = dict(config["model"])
    future, history = parse_pair(config["data"]["pair"])
    kind = type(AutoModel.from_config(AutoConfig.for_model(model.pop("model_type"))))
    distiller = kind.from_mtpp(model.pop("mtpp"), history=history, future=future, **model)
    train, validation = (
        make_windows(splits[name], future=future, history=history) for name in ("train", "validation")
    )
    return Trainer(distiller, args, train, validation.sample(2000, seed=0))


TASKS = {"mtpp": train_mtpp, "distiller": train_distiller}


def main(argv: list[str] | None = None) -> int:
    try:
        config, resume = read_config(argv)
        if config.get("task") not in TASKS:
            raise ValueError(f"task must be one of {', '.join(TASKS)}; got {config.get('task')!r}.")
        args = TrainingArguments.from_dict(config["training"])
        torch.manual_seed(args.seed)  # the initial weights
        trainer = TASKS[config["task"]](config, args)
        trainer.accelerator.print(
            f"{len(trainer.train_dataset):,} training items, {trainer.model.num_parameters(only_trainable=True):,} "
            "trainable parameters"
        )
        best = trainer.train(resume=resume)
    except (ValueError, TypeError, OSError, StrictDataclassError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"best at step {best['step']}: " + "  ".join(f"{k} {v:.4f}" for k, v in best.items() if k != "step"))
    print(f"model in {config['training']['out']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
