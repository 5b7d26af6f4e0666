"""Score trained models beside their baselines on the same events; print a table, keep the rows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLE = """examples:
  python scripts/evaluate.py --model runs/so --data data/stackoverflow --pair 15-40 --out rows.jsonl --figure qq.png
  python scripts/evaluate.py --task distiller --model runs/ehd --data data/stackoverflow --split test_sampled
  python scripts/evaluate.py --model runs/seed0 runs/seed1 runs/seed2 --data simulated:delayed --out rows.jsonl
Rows that --out already has for the same weights, events and window are not computed again."""
KEY = ("task", "data", "data_digest", "split", "jitter_seed", "pair", "model", "checkpoint", "version")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, nargs="+", required=True, help="checkpoint folder(s), one per seed")
    parser.add_argument("--data", required=True, help="folder or file of events, or simulated:<process>")
    parser.add_argument("--task", default="mtpp", choices=TASKS, help="what to measure (default mtpp)")
    parser.add_argument("--pair", metavar="K-L", help="windows: also score their futures (mtpp); not the model's own")
    parser.add_argument("--split", default="test", help="default test; test_sampled is 5,000 windows of it")
    parser.add_argument("--jitter-seed", type=int, help="spread whole-number times over their unit")
    parser.add_argument("--out", type=Path, help="JSON Lines file to which rows are added")
    parser.add_argument("--figure", type=Path, help="picture of the calibration (.png, .pdf, .svg)")
    return parser.parse_args(argv)


def load_data(arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Event sequences by split, and what identifies them in a row."""
    from ehd_hf.evaluation import events_digest
    from ehd_hf.sources import load_source, with_jitter
    from ehd_hf.synthetic import simulated_splits

    kind, _, process = arguments.data.partition(":")
    splits = simulated_splits(process) if kind == "simulated" else load_source(arguments.data)
    asked = "test" if arguments.split == "test_sampled" and arguments.task != "mtpp" else arguments.split
    for split in ("train", asked):
        if split not in splits:
            raise ValueError(f"the data must have the split {split!r}; got {', '.join(splits)}. Check --split.")
    if arguments.jitter_seed is not None:
        splits = {split: with_jitter(sequences, seed=arguments.jitter_seed) for split, sequences in splits.items()}
    digest = events_digest(splits["train"], splits[asked])  # baselines are fitted on the first
    name = arguments.data if kind == "simulated" else Path(arguments.data).resolve().stem
    stamp = {"data": name, "data_digest": digest, "split": arguments.split, "jitter_seed": arguments.jitter_seed}
    return splits, stamp


def mtpp_rows(arguments: argparse.Namespace, done: dict[tuple[Any, ...], Any]) -> Iterator[dict[str, Any]]:
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


def distiller_rows(arguments: argparse.Namespace, done: dict[tuple[Any, ...], Any]) -> Iterator[dict[str, Any]]:
    """A row per distiller, on windows of its own (K, L) unless --pair says otherwise."""
    from ehd_hf import EHDDistiller, __version__
    from ehd_hf.evaluation import checkpoint_stamp, evaluate_distiller
    from ehd_hf.report import PAPER_DS
    from ehd_hf.windows import load_windows

    splits, stamp = load_data(arguments)
    for folder in arguments.model:
        distiller = EHDDistiller.from_pretrained(folder).model
        pair = arguments.pair or f"{distiller.config.future}-{distiller.config.history}"
        identity = stamp | checkpoint_stamp(folder) | {"model": folder.name, "pair": pair}
        key = identity | {"task": "distiller", "version": __version__}
        row = done.get(tuple(key[part] for part in KEY))
        if row is None:
            windows = load_windows(splits, pair, split=arguments.split)
            row = evaluate_distiller(distiller, windows, progress=True, **identity)
        yield row | {"paper_ds": PAPER_DS.get((row["data"], pair)) if arguments.split == "test_sampled" else None}


TASKS = {
    "mtpp": mtpp_rows,
    "distiller": distiller_rows,
}  # a further task is a further entry; its columns are in report.TASK_COLUMNS


def evaluate(arguments: argparse.Namespace) -> None:
    from ehd_hf.evaluation import add_gaps
    from ehd_hf.plotting import qq_plot
    from ehd_hf.report import append_row, read_rows, task_table

    for file in filter(None, (arguments.out, arguments.figure)):
        if not file.resolve().parent.is_dir():
            raise ValueError(f"{file} must lie in a folder that exists; make {file.parent} first.")
    done = {tuple(row.get(part) for part in KEY): row for row in (read_rows(arguments.out) if arguments.out else ())}
    rows = []
    for row in TASKS[arguments.task](arguments, done):
        rows.append(row)
        if arguments.out and tuple(row[part] for part in KEY) not in done:
            append_row(arguments.out, row)
    if arguments.task != "mtpp":
        print(task_table(arguments.task, rows))
        return
    if arguments.figure:
        qq_plot(rows, title=f"{rows[0]['data']}, {arguments.split}").savefig(arguments.figure)
    print(task_table(arguments.task, add_gaps(rows)))
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
