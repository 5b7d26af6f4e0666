"""Explain what just happened: print which past events are responsible.

python scripts/explain.py                                            # the bundled example, nothing to download
python scripts/explain.py --share 0.7 --curve                        # certified, and how much by how few
python scripts/explain.py --figure docs/figures/explanation.png      # the README's picture
python scripts/explain.py --model stackoverflow-15-40 --events events.csv --future 15
python scripts/explain.py --model runs/my_distiller --events events.parquet --sequence-column user --json
"""

from __future__ import annotations

import argparse
import json
import sys


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
        choices=("none", "prefix", "prune"),
        help="none: the distiller's own answer; prefix: the first of its order that meet the target; prune: of these, "
        "only those that cannot be spared (default: prune; none for the paper's distiller without a target)",
    )
    parser.add_argument("--table", action="store_true", help="also print every event with its role and score")
    parser.add_argument("--curve", action="store_true", help="also print how much is explained by how few events")
    parser.add_argument("--json", action="store_true", help="print JSON Lines instead of text")
    parser.add_argument("--figure", help="also draw it, to this PNG, SVG or PDF file; for one sequence")
    return parser.parse_args(argv)


def explain(arguments: argparse.Namespace) -> None:
    from transformers.utils import logging

    import ehd_hf

    logging.disable_progress_bar()  # loading takes a blink
    explainer = ehd_hf.EHDDistiller.from_pretrained(arguments.model)
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
    names = ("future", "history", "epsilon", "share", "size", "delta", "refine")
    question = {name: getattr(arguments, name) for name in names}
    answers = explainer.explain(events, **question, intensities=arguments.figure is not None)
    if arguments.figure is not None:
        if isinstance(answers, list):
            raise ValueError(f"--figure draws one sequence; the events are {len(answers)}. Give it one of them.")
        answers.plot().savefig(arguments.figure)
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
