"""Explain what just happened: print which past events are responsible.

python scripts/explain.py                                            # the bundled example, nothing to download
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
    parser.add_argument("--table", action="store_true", help="also print every event with its role and probability")
    parser.add_argument("--json", action="store_true", help="print JSON Lines instead of text")
    return parser.parse_args(argv)


def explain(arguments: argparse.Namespace) -> None:
    from transformers.utils import logging

    import ehd_hf

    logging.disable_progress_bar()  # loading takes a blink
    explainer = ehd_hf.EHDDistiller.from_pretrained(arguments.model)
    if arguments.events is None:
        events = ehd_hf.load_example("incidents")
    else:
        config = explainer.model.config.mtpp_config
        events = ehd_hf.load_events(
            arguments.events,
            sequence=arguments.sequence_column,
            time=arguments.time_column,
            mark=arguments.mark_column,
            id2label=config.id2label,
            time_unit=config.time_unit,
        )
    answers = explainer.explain(events, future=arguments.future, history=arguments.history)
    for answer in answers if isinstance(answers, list) else [answers]:
        if arguments.json:
            print(json.dumps(answer.to_dict(), default=str))
            continue
        print(answer)
        if arguments.table:
            print(answer.to_frame().to_string(index=False))


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
