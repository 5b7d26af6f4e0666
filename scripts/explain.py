"""Explain what just happened: print which past events are responsible.

python scripts/explain.py                                            # the bundled example, nothing to download
python scripts/explain.py --share 0.7 --curve                        # certified, and how much by how few
python scripts/explain.py --figure docs/figures/explanation.png      # the README's picture
python scripts/explain.py --model stackoverflow-15-40 --events events.csv --future 15
python scripts/explain.py --model runs/my_distiller --events events.parquet --sequence-column user --json

Every sequence or every window of data of any size, to a folder of Parquet files; repeat the command to go on:

python scripts/explain.py --model stackoverflow-15-40 --events data/stackoverflow/test.parquet --out answers --windows
python scripts/explain.py --model stackoverflow-15-40 --events runs/windows --config 15-40 --split test --out answers
torchrun --nproc_per_node 2 scripts/explain.py --model stackoverflow-15-40 --events events.parquet --out answers
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="incidents", help="folder, bundled name or Hub id (default: incidents)")
    parser.add_argument("--events", help="CSV, JSONL or Parquet file of events (default: the bundled example)")
    parser.add_argument("--sequence-column", help="column of sequence ids (default: seq_id, if there is one)")
    parser.add_argument("--time-column", help="column of times (default: time or times)")
    parser.add_argument("--mark-column", help="column of marks (default: mark or marks)")
    parser.add_argument("--future", type=int, help="how many last events to explain (default: the model's own)")
    parser.add_argument("--history", type=int, help="how many events before them to look at (default: all)")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--epsilon", type=float, help="make the future less likely by this factor, such as 0.5")
    target.add_argument("--share", type=float, help="or lose this share of what the history explains, such as 0.7")
    target.add_argument("--size", type=int, help="or take so many events (default: what the model was trained for)")
    parser.add_argument("--delta", type=float, help="the events alone may lose this much: dppl_distilled >= -delta")
    parser.add_argument(
        "--refine",
        choices=("none", "bisect", "prefix", "prune"),
        help="none: the distiller's own answer; bisect: some first of its order that meet the target, found fast; "
        "prefix: the fewest first of its order that do; prune: of these, "
        "only those that cannot be spared (default: prune; none for the paper's distiller without a target)",
    )
    parser.add_argument("--table", action="store_true", help="also print every event with its role and score")
    parser.add_argument("--curve", action="store_true", help="also print how much is explained by how few events")
    parser.add_argument("--json", action="store_true", help="print JSON Lines instead of text")
    parser.add_argument("--figure", help="also draw it, to this PNG, SVG or PDF file; for one sequence")
    many = parser.add_argument_group("every sequence, to a folder")
    many.add_argument("--out", type=Path, help="folder for Parquet files; that of the same command is completed")
    many.add_argument("--windows", action="store_true", help="every window, not the end of each sequence alone")
    many.add_argument("--scores", action="store_true", help="also write the score of every event of a history")
    many.add_argument("--rows-per-file", type=int, default=10_000, help="(default 10000)")
    many.add_argument("--split", help="read a dataset by its name on the Hub, or its folder: this split of it")
    many.add_argument("--config", help="and this configuration, such as 15-40")
    many.add_argument("--device", help="such as cuda: each process takes the GPU of its number (default: CPU)")
    arguments = parser.parse_args(argv)
    if arguments.out is None and (arguments.windows or arguments.scores or arguments.split):
        parser.error("--windows, --scores and --split need --out, a folder to write to")
    if arguments.out is not None and arguments.events is None:
        parser.error("--out needs --events, a file, a folder or a dataset")
    return arguments


def explain_all(arguments: argparse.Namespace, explainer: Any, question: dict[str, Any]) -> None:
    from ehd_hf.explain.many import explain_to_parquet

    source = arguments.events
    if arguments.split is not None:
        import datasets

        source = datasets.load_dataset(source, arguments.config, split=arguments.split, streaming=True)
    if arguments.device is not None:
        local = f":{os.environ.get('LOCAL_RANK', 0)}" if arguments.device == "cuda" else ""
        explainer.model.to(arguments.device + local)
    columns = {name: getattr(arguments, f"{name}_column") for name in ("sequence", "time", "mark")}
    options = {name: getattr(arguments, name) for name in ("windows", "scores", "rows_per_file")}
    done = explain_to_parquet(explainer, source, arguments.out, **question, **columns, **options)
    said = ", ".join(f"{name} {value}" for name, value in vars(done).items())
    print(f"{arguments.out}: {said}")


def explain(arguments: argparse.Namespace) -> None:
    from transformers.utils import logging

    import ehd_hf
    from ehd_hf.present.picture import save_figure

    logging.disable_progress_bar()  # loading takes a blink
    explainer = ehd_hf.EHDDistiller.from_pretrained(arguments.model)
    names = ("future", "history", "epsilon", "share", "size", "delta", "refine")
    question = {name: getattr(arguments, name) for name in names}
    if arguments.out is not None:
        return explain_all(arguments, explainer, question)
    if arguments.events is None:
        events = ehd_hf.load_example("incidents")
    else:
        config = explainer.mtpp.config
        events = ehd_hf.load_events(
            arguments.events,
            sequence=arguments.sequence_column,
            time=arguments.time_column,
            mark=arguments.mark_column,
            id2label=config.id2label,
            time_unit=config.time_unit,
        )
    answers = explainer.explain(events, **question, intensities=arguments.figure is not None)
    if arguments.figure is not None:
        if isinstance(answers, list):
            raise ValueError(f"--figure draws one sequence; the events are {len(answers)}. Give it one of them.")
        save_figure(answers.plot(), arguments.figure)
    for answer in answers if isinstance(answers, list) else [answers]:
        if arguments.json:
            print(json.dumps(answer.to_dict(), default=str))
            continue
        curve = answer.tradeoff() if arguments.curve else None  # before a line is printed: there may be none
        print(answer)
        if arguments.table:
            print(answer.to_frame().to_string(index=False))
        if curve is not None:
            print(curve.to_string(index=False, float_format="{:.3f}".format))


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)  # before the imports, so that --help does not wait for torch
    try:
        explain(arguments)
    except (ValueError, OSError) as error:
        print(f"explain: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
