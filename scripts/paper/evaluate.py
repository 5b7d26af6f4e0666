"""Score trained models beside their baselines on the same events; print tables, keep the rows.

tasks: data (what a data set is made of); mtpp (likelihood and calibration of point processes); distiller, ehed, emhd,
case_study, losses (the paper's tables and figures); explain (smallest sets that meet a target), causes (against the
true causes of simulated events), trust (other seeds, shuffled weights), curves (deletion and insertion); why (the
probable causes of single events, against the true ones); influence (which kinds drive which, against known graphs).
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

EXAMPLE = """examples:
  python scripts/paper/evaluate.py --model runs/seed0 runs/seed1 --data simulated:delayed --out rows.jsonl
  python scripts/paper/evaluate.py --tasks ehed emhd --solvers greedy_search random_distillation --model runs/ehd \\
      --data data/stackoverflow --split test_sampled --limit 1000 --out rows.jsonl
  python scripts/paper/evaluate.py --task explain --model stackoverflow-15-40 --data data/stackoverflow \\
      --split test_sampled --first 1000 --share 0.7 --solvers distiller+prune greedy_search+drop
Rows that --out already has for the same weights, events, windows and code are not computed again, and each row is
written as soon as it is computed: a run that was stopped continues. A row of earlier code gives way to the new one."""
# Module of scripts/paper/tasks that finds the rows of each task; tasks of different modules do not mix.
TASKS = {
    "data": "data_set",
    "mtpp": "mtpp",
    **dict.fromkeys(("distiller", "ehed", "emhd", "case_study"), "windows"),
    "losses": "losses",
    "why": "why",
    "influence": "influence",
    **dict.fromkeys(("explain", "causes", "trust", "curves"), "explanations"),
}


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", type=Path, nargs="+", default=[], help="checkpoint folder(s) or bundled models, one per seed")
    add("--data", required=True, help="folder or file of events, folder of windows, or simulated:<process>")
    add("--tasks", "--task", nargs="+", default=["mtpp"], choices=TASKS, help="what to measure (default mtpp)")
    add("--solvers", nargs="+", default=[], metavar="NAME", help="beside recency and the distiller")
    add("--mtpp", type=Path, nargs="+", default=[], help="point processes of other seeds (trust)")
    add("--pair", metavar="K-L", help="windows: also score their futures (mtpp); not the model's own")
    add("--split", default="test", help="default test; test_sampled is 5,000 windows of it")
    add("--limit", type=int, help="fixed-seed subset of so many windows (case_study: of whole sequences)")
    add("--first", type=int, help="the first so many windows")
    add("--epsilon", type=float, help="target of explain; not the distiller's own")
    add("--share", type=float, help="target of explain and trust; not the distiller's own")
    add("--delta", type=float, help="besides, dppl_distilled at least -DELTA (explain)")
    add("--conditioning", choices=("paper", "survival"), help="not the distiller's own")
    add("--seed", type=int, default=0, help="of the solvers' randomness (default 0)")
    add("--batch-size", type=int, default=250, help="windows searched at once (default 250; 1 for the paper's time)")
    add("--jitter-seed", type=int, help="spread whole-number times over their unit")
    add("--threads", type=int, help="CPU threads (default: torch's own)")
    add("--out", type=Path, help="JSON Lines file to which rows are added")
    arguments = parser.parse_args(argv)
    if len({TASKS[task] for task in arguments.tasks}) > 1:
        parser.error("these tasks need models of different kinds: evaluate mtpp, the paper's, and the others apart")
    counts = (arguments.limit, arguments.first, arguments.threads, arguments.batch_size)
    if min(1 if count is None else count for count in counts) < 1:
        parser.error("--limit, --first, --threads and --batch-size must be at least 1")
    if not arguments.model and arguments.tasks not in (["data"], ["influence"]):
        parser.error("--model names what is measured; only --task data and influence do without")
    if arguments.limit and arguments.first:
        parser.error("--limit draws windows and --first takes the first: give one of them")
    return arguments


def evaluate(arguments: argparse.Namespace, command: str) -> None:
    import importlib

    import torch

    from ehd_hf.files import append_row, locked, read_rows, write_text
    from ehd_hf.hub.fetch import resolve
    from page import plain_table, with_recalls
    from tasks import KEY
    from tasks.code import code_stamp
    from tasks.mtpp import add_gaps

    out = arguments.out
    if out and not out.resolve().parent.is_dir():
        raise ValueError(f"{out} must lie in a folder that exists; make {out.parent} first.")
    arguments.model = [Path(resolve(folder)) for folder in arguments.model]
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    is_mtpp = arguments.tasks == ["mtpp"]
    # A point process is scored on all events: how many windows they make is a result, not a question.
    key = [part for part in KEY if not (is_mtpp and part == "num_windows")]

    def identity(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(part) for part in key)

    module = TASKS[arguments.tasks[0]]
    find_rows = importlib.import_module(f"tasks.{module}").find_rows
    rows, has_old = [], False
    with locked(out) if out else nullcontext():
        known = {identity(row): row for row in (read_rows(out) if out else ())}

        def cached(asked: Mapping[str, Any]) -> dict[str, Any] | None:
            row = known.get(identity(asked))
            code = code_stamp(module, arguments.model, asked.get("solver"))["code"]
            return row if row is not None and row.get("code") == code else None

        for row in find_rows(arguments, cached):
            if "command" not in row:  # it is new
                row |= code_stamp(module, arguments.model, row.get("solver")) | {"command": command}
                has_old |= identity(row) in known
                known[identity(row)] = row
                if out:
                    append_row(out, row)
            rows.append(row)
    if out and has_old:  # of two rows for one question the new one stays
        write_text(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in known.values()))
    for task in arguments.tasks:
        shown = [with_recalls(row) for row in add_gaps([row for row in rows if row["task"] == task])]
        print(plain_table(task, shown), end="\n\n")
    if is_mtpp and rows[0]["num_tied"] > 0.01 * rows[0]["num_events"]:
        print(f"note: {rows[0]['num_tied']:,} intervals are 0, where densities are unbounded; pass --jitter-seed 0.")


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)  # before the imports, so that --help does not wait for torch
    command = shlex.join(["python", "scripts/paper/evaluate.py", *(sys.argv[1:] if argv is None else argv)])
    try:
        evaluate(arguments, command)
    except (ValueError, OSError) as error:
        print(f"evaluate: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
