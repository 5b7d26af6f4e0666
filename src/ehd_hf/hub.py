"""Cards from data: what a checkpoint explains, what it was trained on, how good its answers are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

from .report import TASK_COLUMNS, markdown_table


def model_card(
    name: str,
    model: Any,
    *,
    data: Mapping[str, Any],
    training: Mapping[str, Any],
    commands: Sequence[str],
    rows: Sequence[Mapping[str, Any]],
) -> str:
    """The card of a distiller's checkpoint.

    Args:
        name: what users pass to `from_pretrained`.
        model: the distiller.
        data: the data set's own words: pretty_name, license, provenance (see `dataset_cards/`).
        training: contents of the run's `training.json`.
        commands: what trained it, in order.
        rows: evaluation rows of it (task "distiller"); a card without results is refused.
    """
    if not rows:
        raise ValueError("A card needs evaluation rows of the checkpoint; got none. Run scripts/evaluate.py first.")
    config, args = model.config, training["args"]
    columns = [column for column in TASK_COLUMNS["distiller"] if column.key not in ("model", "paper_ds")]
    facts = {
        "name": name,
        "license": data["license"],
        "model_class": type(model).__name__,
        "mtpp_class": type(model.mtpp).__name__,
        "num_parameters": f"{model.num_parameters():,}",
        "marks": ", ".join(config.id2label.values()),
        "time_unit": config.mtpp_config.time_unit or "the unit of the data",
        "data_name": data["pretty_name"],
        "provenance": " ".join(data["provenance"].split()),
        "history": config.history,
        "future": config.future,
        "commands": "\n".join(commands),
        "epsilon": config.epsilon,
        "conditioning": config.conditioning,
        "training": f"{training['steps_run']:,} steps of {args['batch_size']} windows, learning rate "
        f"{args['learning_rate']}, seed {args['seed']}; best by {args['metric']} at step {training['best']['step']}",
        "results": markdown_table(rows, columns),
    }
    return Template((files(__package__) / "templates" / "model_card.md").read_text()).substitute(facts)
