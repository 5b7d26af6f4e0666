"""`ehd-hf data windows` by older options: prepare_windows.py --source DATA --pairs 15-40 25-50 --out OUT."""

import argparse

from ehd_hf.cli import app

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", required=True, help="file of events, or folder with train, ..., test")
    parser.add_argument("--pairs", nargs="+", default=["15-40"], metavar="K-L", help="future-history (default 15-40)")
    arguments, rest = parser.parse_known_args()
    app(["data", "windows", arguments.source, *(word for pair in arguments.pairs for word in ("--pair", pair)), *rest])
