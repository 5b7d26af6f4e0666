"""Rows in, results page out: tables shaped like the paper's, and the figures. Computes nothing."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from ehd_hf.files import read_rows, write_text
from figures import draw
from headlines import put_headlines
from page import PAGE_TASKS, results_page

RESULTS = Path(__file__).resolve().parents[2] / "results"
EXAMPLE = """examples:
  python scripts/paper/report.py results/solvers_one_at_a_time.jsonl                    # to the terminal
  python scripts/paper/report.py --out docs/results.md --figures docs/figures           # all rows of results/
  python scripts/paper/report.py --readme README.md                                     # its table of figures"""


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", type=Path, help="row files of evaluate.py (default: results/)")
    parser.add_argument("--out", type=Path, help="Markdown page to write (default: printed)")
    parser.add_argument("--readme", type=Path, help="page whose table of figures is made anew; nothing else is made")
    parser.add_argument("--figures", type=Path, help="folder for the figures of the rows")
    return parser.parse_args(argv)


def report(arguments: argparse.Namespace, command: str) -> None:
    files = arguments.rows or sorted(RESULTS.glob("*.jsonl"))
    for file in files:
        if not file.is_file():
            raise ValueError(f"{file} must be a file of rows; there is none. Make it with scripts/paper/evaluate.py.")
    rows = [row for file in files for row in read_rows(file) if row.get("task") in PAGE_TASKS]
    if arguments.readme:
        write_text(arguments.readme, put_headlines(arguments.readme.read_text(encoding="utf-8"), rows))
        return
    figures: Mapping[str, list[tuple[str, str]]] = {}
    if arguments.figures:
        arguments.figures.mkdir(parents=True, exist_ok=True)
        figures = draw(rows, arguments.figures, arguments.out or Path("page.md"))
    text = results_page(rows, command=command, figures=figures)
    if arguments.out:
        write_text(arguments.out, text)
    else:
        print(text)


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)
    command = shlex.join(["python", "scripts/paper/report.py", *(sys.argv[1:] if argv is None else argv)])
    try:
        report(arguments, command)
    except (ValueError, OSError) as error:
        print(f"report: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
