"""Put a trained distiller into the package, with its card and, for simulated events, an example to explain.

    python scripts/tools/bundle.py --run runs/incidents_ehd --name incidents \\
        --card dataset_cards/simulated_incident.yaml --rows results/*.jsonl \\
        --configs incidents_fullynn incidents_ehd --example incident
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import yaml

from ehd_hf.data.synthetic import simulated_splits
from ehd_hf.data.windows import make_windows
from ehd_hf.explain.explainer import CHECKPOINTS, EHDDistiller
from ehd_hf.files import put_files, read_rows
from ehd_hf.hub.push import rows_of
from ehd_hf.present.cards import check_card, model_card


def example_events(explainer: EHDDistiller, process: str, start: str = "2026-03-02") -> pd.DataFrame:
    """The first simulated test window whose explanation meets its constraint, as a log with timestamps."""
    config = explainer.model.config
    events = simulated_splits(process)["test"]
    windows = make_windows(events, future=config.future, history=config.history)
    for first in windows.first:
        span = slice(first, first + config.history + config.future)
        # Whole seconds, as a log would have them.
        moments = pd.Timestamp(start) + pd.to_timedelta(np.round(events.times[span] * 3600), unit="s")
        frame = pd.DataFrame({"time": moments, "mark": [events.id2label[mark] for mark in events.marks[span]]})
        if explainer.explain(frame, future=config.future).constraint_met:
            return frame
    raise ValueError("no window's explanation meets its constraint; train longer.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="folder of the training run")
    parser.add_argument("--name", required=True, help="name for from_pretrained")
    parser.add_argument("--card", type=Path, required=True, help="the data set's own words, of dataset_cards/")
    parser.add_argument("--rows", type=Path, nargs="+", required=True, help="evaluation rows that have this run's")
    parser.add_argument("--configs", nargs="+", required=True, help="configs that trained it, in order")
    parser.add_argument("--example", help="simulated process to take example events from")
    arguments = parser.parse_args()

    explainer = EHDDistiller.from_pretrained(arguments.run)
    card = model_card(
        arguments.name,
        explainer.model,
        data=yaml.safe_load(arguments.card.read_text()),
        training=json.loads((arguments.run / "training.json").read_text()),
        commands=[f"accelerate launch scripts/train.py --config scripts/configs/{c}.yaml" for c in arguments.configs],
        rows=rows_of(explainer.model, [row for file in arguments.rows for row in read_rows(file)]),
    )
    check_card(card)
    folder = CHECKPOINTS / arguments.name
    with TemporaryDirectory() as made:
        for file in ("config.json", "model.safetensors"):
            shutil.copy(arguments.run / file, made)
        Path(made, "README.md").write_text(card)
        if arguments.example:
            example_events(explainer, arguments.example).to_csv(Path(made, "example.csv"), index=False)
        put_files(made, folder)
    print(f"{folder.name}: {sum(file.stat().st_size for file in folder.iterdir()) / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
