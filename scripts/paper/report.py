"""Rows in, results page out: Markdown and LaTeX tables shaped like the paper's, and the figures. Computes nothing."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from pathlib import Path

EXAMPLE = """examples:
  python scripts/paper/report.py results/solvers.jsonl                                  # to the terminal
  python scripts/paper/report.py results/*.jsonl --out docs/results.md --latex docs/tables.tex --figures docs/figures
  python scripts/paper/report.py --logs runs/l_c runs/l_n runs/both --figure docs/figures/left_share.png"""


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", nargs="*", type=Path, help="row files of scripts/paper/evaluate.py")
    parser.add_argument("--out", type=Path, help="Markdown page to write (default: printed)")
    parser.add_argument("--latex", type=Path, help="LaTeX tables to write")
    parser.add_argument("--figures", type=Path, help="folder for the figures of the rows")
    parser.add_argument("--benchmarks", type=Path, help="JSON of scripts/benchmarks/benchmark.py, for the page")
    parser.add_argument("--logs", nargs="+", type=Path, help="training runs: share of left events along training")
    parser.add_argument("--names", nargs="+", help="of these runs, in the legend (default: their folders')")
    parser.add_argument("--figure", type=Path, help="picture of --logs")
    arguments = parser.parse_args(argv)
    if bool(arguments.logs) != bool(arguments.figure):
        parser.error("--logs and --figure go together")
    if not arguments.rows and not arguments.logs:
        parser.error("give row files, or --logs and --figure")
    if arguments.names and len(arguments.names) != len(arguments.logs or ()):
        parser.error("--names must be as many as --logs")
    return arguments


def draw_logs(arguments: argparse.Namespace) -> None:
    from ehd_hf.files import read_rows
    from ehd_hf.present.picture import save_figure
    from figures import left_share_plot

    curves = {}
    for folder, name in zip(arguments.logs, arguments.names or arguments.logs, strict=True):
        log = read_rows(folder / "log.jsonl")
        points = [(row["step"], row["eval_left_share"]) for row in log if "eval_left_share" in row]
        if not points:
            raise ValueError(f"{folder} must hold a log.jsonl with eval_left_share; train a distiller there first.")
        curves[str(name).rstrip("/").rpartition("/")[2]] = points
    save_figure(left_share_plot(curves), arguments.figure)


def report(arguments: argparse.Namespace, command: str) -> None:
    from ehd_hf.files import read_rows, write_text
    from figures import draw
    from page import latex_tables, results_page

    for file in filter(None, (arguments.out, arguments.latex, arguments.figure)):
        if not file.resolve().parent.is_dir():
            raise ValueError(f"{file} must lie in a folder that exists; make {file.parent} first.")
    for file in arguments.rows:
        if not file.is_file():
            raise ValueError(f"{file} must be a file of rows; there is none. Make it with scripts/paper/evaluate.py.")
    if arguments.logs:
        draw_logs(arguments)
    rows = [row for file in arguments.rows for row in read_rows(file)]
    if not rows:
        return
    page = arguments.out or Path("page.md")
    figures = {}
    if arguments.figures:
        arguments.figures.mkdir(parents=True, exist_ok=True)
        figures = draw(rows, arguments.figures, page)
    if arguments.figure:
        figures[""] = [("Share of left events along training", os.path.relpath(arguments.figure, page.parent))]
    benchmarks = json.loads(arguments.benchmarks.read_text()) if arguments.benchmarks else []
    text = results_page(rows, command=command, benchmarks=benchmarks, figures=figures)
    if arguments.latex:
        write_text(arguments.latex, latex_tables(rows))
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
