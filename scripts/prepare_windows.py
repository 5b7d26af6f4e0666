"""Cut event sequences into windows and write them as a data set (Parquet + card) for datasets.load_dataset."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

EXAMPLE = """example:
  python scripts/prepare_windows.py --source data/stackoverflow --pairs 15-40 25-50 --out runs/stackoverflow-windows
  python scripts/prepare_windows.py --source log.csv --sequence user --time when --pairs 5-20 --out runs/log

then, in Python:
  datasets.load_dataset("runs/stackoverflow-windows", "15-40")     # K future events after L history events
"""
CARDS = Path(__file__).resolve().parent.parent / "dataset_cards"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--source", type=Path, required=True, help="file of events, or folder with train, ..., test")
    parser.add_argument("--pairs", nargs="+", default=["15-40"], metavar="K-L", help="future-history (default 15-40)")
    parser.add_argument("--out", type=Path, required=True, help="folder to write; replaced if it is such a data set")
    parser.add_argument("--name", help="name of the data set (default: name of the source)")
    parser.add_argument("--card", type=Path, help="YAML with the card's texts (default: dataset_cards/<source>.yaml)")
    parser.add_argument("--overwrite", action="store_true", help="replace --out whatever it holds")
    columns = parser.add_argument_group("columns of the source, where they differ from the defaults")
    columns.add_argument("--sequence", metavar="COLUMN", help="sequence id (default seq_id)")
    columns.add_argument("--time", metavar="COLUMN", help="time of an event (default times or time)")
    columns.add_argument("--mark", metavar="COLUMN", help="mark of an event (default marks or mark)")
    columns.add_argument("--start", metavar="COLUMN", help="start of the observation")
    columns.add_argument("--num-marks", type=int, help="number of integer marks, if larger than those seen")
    columns.add_argument("--time-unit", help="unit of the times; timestamps are converted to it (s, min, h, D, ...)")
    columns.add_argument("--sort", action="store_true", help="sort the events of each sequence by time")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    # After the arguments, so that --help does not wait for torch.
    from ehd_hf.data.export import export_windows
    from ehd_hf.data.sources import load_source
    from ehd_hf.data.windows import parse_pair

    keywords = ("sequence", "time", "mark", "start", "num_marks", "time_unit", "sort")
    given = {key: value for key in keywords if (value := getattr(arguments, key))}
    name = arguments.name or arguments.source.resolve().stem
    card_file = arguments.card or CARDS / f"{arguments.source.resolve().stem}.yaml"
    try:
        card = yaml.safe_load(card_file.read_text("utf-8")) if arguments.card or card_file.is_file() else None
        pairs = [parse_pair(pair) for pair in arguments.pairs]
        splits = load_source(arguments.source, **given)
        out = export_windows(splits, arguments.out, pairs, name=name, card=card, overwrite=arguments.overwrite)
    except (ValueError, OSError, yaml.YAMLError) as error:
        print(f"prepare_windows: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"wrote {', '.join(arguments.pairs)} and the sequences to {out}")


if __name__ == "__main__":
    main()
