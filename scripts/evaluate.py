"""Score trained models beside their baselines on the same events; print tables, keep the rows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLE = """examples:
  python scripts/evaluate.py --model runs/so --data data/stackoverflow --pair 15-40 --out rows.jsonl --figure qq.png
  python scripts/evaluate.py --model runs/seed0 runs/seed1 runs/seed2 --data simulated:delayed --out rows.jsonl
  python scripts/evaluate.py --tasks distiller --model runs/ehd --data data/stackoverflow --split test_sampled
  python scripts/evaluate.py --tasks ehed emhd --solvers greedy_search random_distillation --model runs/ehd \\
      --data data/stackoverflow --split test_sampled --limit 1000 --out rows.jsonl
  python scripts/evaluate.py --tasks case_study --model runs/ehd --data data/stackoverflow --out rows.jsonl
Rows that --out already has for the same weights, events and windows are not computed again; one is written as soon as
it is known, so a run that was stopped goes on where it was."""
KEY = ("task", "data", "data_digest", "split", "jitter_seed", "pair", "model", "checkpoint", "version")
WINDOWS_KEY = (*KEY, "conditioning", "num_windows", "solver", "generator_seed", "batch_size")
TASKS = ("mtpp", "distiller", "ehed", "emhd", "case_study")
Rows = Iterator[dict[str, Any]]


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--model", type=Path, nargs="+", required=True, help="checkpoint folder(s), one per seed")
    add("--data", required=True, help="folder or file of events, folder of windows, or simulated:<process>")
    add("--tasks", "--task", nargs="+", default=["mtpp"], choices=TASKS, help="what to measure (default mtpp)")
    add("--solvers", nargs="+", default=[], metavar="NAME", help="beside the distiller and recency (ehed, emhd)")
    add("--pair", metavar="K-L", help="windows: also score their futures (mtpp); not the model's own")
    add("--split", default="test", help="default test; test_sampled is 5,000 windows of it")
    add("--limit", type=int, help="fixed-seed subset of so many windows (case_study: of whole sequences)")
    add("--conditioning", choices=("paper", "survival"), help="not the distiller's own")
    add("--seed", type=int, default=0, help="of the solvers' randomness (default 0)")
    add(
        "--batch-size",
        type=int,
        default=250,
        help="windows searched at once (default 250; 1 to take the paper's time)",
    )
    add("--jitter-seed", type=int, help="spread whole-number times over their unit")
    add("--threads", type=int, help="CPU threads (default: torch's own)")
    add("--out", type=Path, help="JSON Lines file to which rows are added")
    add("--figure", type=Path, help="picture of the calibration (mtpp; .png, .pdf, .svg)")
    arguments = parser.parse_args(argv)
    if "mtpp" in arguments.tasks and len(arguments.tasks) > 1:
        parser.error("mtpp is evaluated by itself: its models are point processes, those of other tasks distillers")
    if min(1 if size is None else size for size in (arguments.limit, arguments.threads, arguments.batch_size)) < 1:
        parser.error("--limit, --threads and --batch-size must be at least 1")
    return arguments


def load_data(arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Event sequences by split, and what identifies them in a row."""
    from ehd_hf.evaluation import events_digest
    from ehd_hf.sources import load_source, with_jitter
    from ehd_hf.synthetic import simulated_splits
    from ehd_hf.windows import load_windows

    kind, _, process = arguments.data.partition(":")
    exported = Path(arguments.data) / "sequences"  # a folder of windows holds the events they were made of
    if kind == "simulated":
        splits: dict[str, Any] = simulated_splits(process)
    elif exported.is_dir():
        names = sorted(file.stem for file in exported.glob("*.parquet"))
        splits = {name: load_windows(arguments.data, "1-1", split=name).sequences for name in names}
    else:
        splits = load_source(arguments.data)
    is_mtpp = arguments.tasks == ["mtpp"]
    asked = "test" if arguments.split == "test_sampled" and not is_mtpp else arguments.split
    for split in ("train", asked) if is_mtpp else (asked,):
        if split not in splits:
            raise ValueError(f"the data must have the split {split!r}; got {', '.join(splits)}. Check --split.")
    if arguments.jitter_seed is not None:
        splits = {split: with_jitter(sequences, seed=arguments.jitter_seed) for split, sequences in splits.items()}
    # Baselines are fitted on the first.
    digest = events_digest(*(splits[split] for split in ("train", asked) if split in splits))
    name = arguments.data if kind == "simulated" else Path(arguments.data).resolve().stem
    stamp = {"data": name, "data_digest": digest, "split": arguments.split, "jitter_seed": arguments.jitter_seed}
    return splits, stamp


def mtpp_rows(arguments: argparse.Namespace, done: dict[tuple[Any, ...], Any]) -> Rows:
    """A row per baseline, for the true process if there is one, and per model; `done` ones are not computed again."""
    from transformers import AutoModel

    import ehd_hf.mtpp.fullynn  # noqa: F401  # registers the model type
    from ehd_hf import __version__
    from ehd_hf.evaluation import TRUE_PROCESS, check_marks, checkpoint_stamp, evaluate_mtpp, trivial_baselines
    from ehd_hf.synthetic import PROCESSES
    from ehd_hf.windows import parse_pair

    pair = None if arguments.pair is None else parse_pair(arguments.pair)
    checkpoints = {str(folder): checkpoint_stamp(folder) for folder in arguments.model}
    splits, stamp = load_data(arguments)
    models: dict[str, Any] = dict(trivial_baselines(splits["train"]))
    if arguments.data.startswith("simulated:"):
        models[TRUE_PROCESS] = PROCESSES[arguments.data.partition(":")[2]]()
    models |= {name: AutoModel.from_pretrained(name) for name in checkpoints}
    for name, model in models.items():
        check_marks(name, model, splits[arguments.split])
    for name, model in models.items():
        identity = stamp | checkpoints.get(name, {"checkpoint": None, "seed": None})
        key = identity | {"task": "mtpp", "pair": arguments.pair, "model": name, "version": __version__}
        if (row := done.get(tuple(key[part] for part in KEY))) is not None:
            yield row
        else:
            yield from evaluate_mtpp({name: model}, splits[arguments.split], pair=pair, progress=True, **identity)


def window_rows(arguments: argparse.Namespace, done: dict[tuple[Any, ...], Any]) -> Rows:
    """Rows of every distiller, on windows of its own (K, L) unless --pair says otherwise."""
    from ehd_hf import EHDDistiller
    from ehd_hf.evaluation import checkpoint_stamp, evaluate_windows, renumber_marks
    from ehd_hf.report import PAPER_DS
    from ehd_hf.solvers.base import get_solver
    from ehd_hf.windows import load_windows

    for name in arguments.solvers:
        get_solver(name)  # a wrong name ends here, before anything is loaded
    splits, stamp = load_data(arguments)
    for folder in arguments.model:
        distiller = EHDDistiller.from_pretrained(folder).model
        pair = arguments.pair or f"{distiller.config.future}-{distiller.config.history}"
        known = distiller.config.mtpp_config.id2label
        events = {split: renumber_marks(sequences, known) for split, sequences in splits.items()}
        windows = load_windows(events, pair, split=arguments.split)
        if arguments.limit:  # a case study looks at neighbouring windows
            alone = arguments.tasks == ["case_study"]
            windows = windows.sample_sequences(arguments.limit) if alone else windows.sample(arguments.limit)
        for row in evaluate_windows(
            distiller,
            windows,
            arguments.tasks,
            arguments.solvers,
            known=lambda key: done.get(tuple(key.get(part) for part in WINDOWS_KEY)),
            conditioning=arguments.conditioning,
            generator_seed=arguments.seed,
            batch_size=arguments.batch_size,
            progress=True,
            **stamp | checkpoint_stamp(folder) | {"model": folder.resolve().name, "limit": arguments.limit},
        ):
            if row["task"] == "distiller" and arguments.split == "test_sampled":
                row["paper_ds"] = PAPER_DS.get((row["data"], pair))
            yield row


def evaluate(arguments: argparse.Namespace) -> None:
    import torch

    from ehd_hf.evaluation import add_gaps
    from ehd_hf.plotting import qq_plot
    from ehd_hf.report import append_row, read_rows, task_table

    for file in filter(None, (arguments.out, arguments.figure)):
        if not file.resolve().parent.is_dir():
            raise ValueError(f"{file} must lie in a folder that exists; make {file.parent} first.")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    find_rows, key = (mtpp_rows, KEY) if arguments.tasks == ["mtpp"] else (window_rows, WINDOWS_KEY)
    done = {tuple(row.get(part) for part in key): row for row in (read_rows(arguments.out) if arguments.out else ())}
    rows = []
    for row in find_rows(arguments, done):
        rows.append(row)
        if arguments.out and tuple(row.get(part) for part in key) not in done:
            append_row(arguments.out, row)
    if arguments.tasks != ["mtpp"]:
        tables = (task_table(task, [row for row in rows if row["task"] == task]) for task in arguments.tasks)
        print("\n\n".join(tables))
        return
    if arguments.figure:
        qq_plot(rows, title=f"{rows[0]['data']}, {arguments.split}").savefig(arguments.figure)
    print(task_table("mtpp", add_gaps(rows)))
    if rows[0]["num_tied"] > 0.01 * rows[0]["num_events"]:
        print(f"note: {rows[0]['num_tied']:,} intervals are 0, where densities are unbounded; pass --jitter-seed 0.")


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)  # before the imports, so that --help does not wait for torch
    try:
        evaluate(arguments)
    except (ValueError, OSError) as error:
        print(f"evaluate: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
