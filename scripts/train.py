"""Train a marked temporal point process, and on top of it a distiller.

    accelerate launch scripts/train.py                       # FullyNN, then MTPP-EHD by ST-GS, on simulated events
    accelerate launch scripts/train.py --config scripts/configs/stackoverflow_15-40_ehd_fast.yaml \\
        --data.source data/stackoverflow
    ... --data.windows somebody/stackoverflow --data.pair 15-40      # windows of `datasets`, a folder or a Hub id
    ... --training.steps 500 --point_process.training.steps 500      # any field of the config, by its path
    ... --resume                                             # go on after an interruption, bit for bit
    ... --push somebody/name                                 # at the end, to the Hub

A config has the sections `task` (mtpp or distiller), `data`, `model` and `training`, or a `base` and what differs from
it. That of a distiller also names the config of its `point_process`, which is trained first, on the same events,
unless its folder holds it already; or it has `model.mtpp`, the folder of one. See scripts/configs/.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import yaml
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoModel

from ehd_hf import EHDDistiller
from ehd_hf.data.sequences import EventSequences
from ehd_hf.data.sources import load_source, with_jitter
from ehd_hf.data.synthetic import simulated_splits
from ehd_hf.files import checkpoint_stamp, write_text
from ehd_hf.training.recipe import RESULTS_FILE, build_trainer, score_model
from ehd_hf.training.trainer import Trainer

SECTIONS = ("data", "model", "training")
DEFAULT = Path(__file__).parent / "configs" / "incidents_ehd.yaml"
SIMULATED = {"process", "num_sequences", "horizon", "seed"}
BUILT = {"crop_length", "pair", "streaming", "jitter_seed", "validation_items", "validation_seed"}


def read_config(argv: list[str] | None) -> tuple[dict[str, Any], argparse.Namespace]:
    """The config file with the command line's changes, and the other arguments."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=DEFAULT, help=f"YAML file (default: {DEFAULT.name})")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint in training.out")
    parser.add_argument("--push", metavar="REPO", help="push the trained model to this repository of the Hub")
    arguments, rest = parser.parse_known_args(argv)
    config = load_config(arguments.config)
    if set(config) - {"point_process"} != {"task", *SECTIONS} or not all(
        isinstance(config[x], dict) for x in SECTIONS
    ):
        raise ValueError(
            f"A config has a task and the sections {', '.join(SECTIONS)}, each with its fields; "
            f"{arguments.config} has {', '.join(map(str, config))}."
        )
    for flag, value in zip(rest[::2], [*rest[1::2], None], strict=False):
        *sections, field = flag.removeprefix("--").split(".")
        changed = config if sections[:1] != ["point_process"] else config.get(sections.pop(0), {})
        if not flag.startswith("--") or len(sections) != 1 or sections[0] not in SECTIONS or value is None:
            raise ValueError(
                f"Changes to the config read --section.field value with a section of {', '.join(SECTIONS)}, or "
                f"--point_process.section.field value; got {flag!r}."
            )
        if not changed:
            raise ValueError(f"{arguments.config} has no point_process; got {flag!r}. Leave it out.")
        changed[sections[0]][field] = yaml.safe_load(value)
    return config, arguments


def load_config(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A YAML config; one that names a `base` beside it says only what differs from it."""
    if path.resolve() in above:
        raise ValueError(f"{path} names itself as its base, directly or in a circle.")
    try:
        config = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"A config is a YAML file; {path} cannot be read ({error}).") from error
    if not isinstance(config, dict):
        raise ValueError(f"A config has a task and the sections {', '.join(SECTIONS)}; {path} has none.")
    above = (*above, path.resolve())
    if isinstance(config.get("point_process"), str):
        config["point_process"] = load_config(path.parent / config["point_process"], above)
    if "base" not in config:
        return config
    base = load_config(path.parent / config.pop("base"), above)
    for section, values in config.items():
        is_changed = isinstance(values, dict) and section != "point_process"
        base[section] = base.get(section, {}) | values if is_changed else values
    return base


def load_splits(data: dict[str, Any]) -> dict[str, EventSequences]:
    """Events of the config's `data` section: a `source` on disk, exported `windows`, or a simulated `process`."""
    kind = next((name for name in ("windows", "source") if name in data), None)
    if kind is not None:  # it takes the place of the preset's simulation
        data = {name: value for name, value in data.items() if name not in SIMULATED}
    where = SIMULATED if kind is None else {kind}
    if unknown := sorted(set(data) - where - BUILT):
        raise ValueError(f"data has the keys {', '.join(sorted(where | BUILT))}; got unknown {', '.join(unknown)}.")
    given = {name: value for name, value in data.items() if name in where}
    splits = simulated_splits(**given) if kind is None else load_source(data[kind])
    if not {"train", "validation"} <= set(splits):
        raise ValueError(f"Training needs the splits train and validation; got {', '.join(splits)}.")
    if data.get("jitter_seed") is not None:
        splits = {name: with_jitter(sequences, seed=data["jitter_seed"]) for name, sequences in splits.items()}
    return splits


def train(config: dict[str, Any], splits: dict[str, EventSequences], resume: bool) -> Trainer:
    """Train the model of a config, or go on with it; the trainer at its end."""
    torch.manual_seed(config["training"].get("seed", 0))  # the initial weights
    if config["task"] == "distiller":
        # Results were made with these draws before those of the weights: they can be repeated to the bit.
        AutoModel.from_config(AutoConfig.for_model(config["model"]["model_type"]))
    trainer = build_trainer(config, splits)
    parameters = trainer.model.num_parameters(only_trainable=True)
    say = trainer.accelerator.print
    say(f"{config['task']} in {trainer.out}: {parameters:,} trainable parameters")
    best = trainer.train(resume=resume)
    say(f"best at step {best['step']}: " + "  ".join(f"{k} {v:.4f}" for k, v in best.items() if k != "step"))
    return trainer


def train_both(config: dict[str, Any], splits: dict[str, EventSequences], resume: bool) -> Trainer:
    """Train the model of a config; before it the point process it names, unless its folder holds it already."""
    process = config.pop("point_process", None)
    if process is not None and "mtpp" not in config["model"]:
        out = Path(process["training"]["out"])
        if not (out / "training.json").is_file():
            train(process, splits, resume and any(out.glob("checkpoints/step-*[0-9]")))
            resume = False  # the distiller has not begun
        config["model"]["mtpp"] = str(out)
    return train(config, splits, resume)


def main(argv: list[str] | None = None) -> int:
    try:
        config, arguments = read_config(argv)
        splits = load_splits(config["data"])
        trainer = train_both(config, splits, arguments.resume)
        if trainer.accelerator.is_main_process:
            show(trainer, splits, config["data"])
        if arguments.push and (push := trainer.push_to_hub(arguments.push)):
            print(f"pushed to {push.url or 'the Hub before, unchanged'}")
    except (ValueError, TypeError, KeyError, OSError, StrictDataclassError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def show(trainer: Trainer, splits: dict[str, EventSequences], data: dict[str, Any]) -> None:
    """Judge the model by sequences it has not seen, and print the explanation of one of them."""
    split = "test" if "test" in splits else "validation"
    name = str(data.get("windows") or data.get("source") or data.get("process"))
    stamp = {"data": name, "split": split, **checkpoint_stamp(trainer.out)}
    rows = score_model(trainer.model.eval(), {**splits, "test": splits[split]}, **stamp)
    write_text(trainer.out / RESULTS_FILE, "".join(json.dumps(row) + "\n" for row in rows))
    explainer = EHDDistiller.from_pretrained(trainer.out)
    if explainer.future is not None:
        longest = splits[split].select([int(splits[split].lengths.argmax())])
        print(explainer.explain(longest))
    print(f'EHDDistiller.from_pretrained("{trainer.out}") opens the model.')


if __name__ == "__main__":
    sys.exit(main())
