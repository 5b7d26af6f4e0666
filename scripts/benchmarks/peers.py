"""Our point processes beside those of EasyTPP: the same windows, the same seconds of training, one run.

EasyTPP is not a dependency. Give it an environment of its own and name its interpreter:

    python3 -m venv peers && peers/bin/pip install torch easy-tpp==0.3.0
    python scripts/benchmarks/peers.py --data data/stackoverflow --seconds 60 --python peers/bin/python \\
        --out results/peers.jsonl

Each model is trained with Adam on batches of 64 windows, its learning rate falling to 0 with the time that is left.
With the first seed it is trained once for each of the learning rates; validation decides which the others take. A
window is up to 75 events of a sequence, its first event not scored, so that nobody needs more than the window shows.
The trivial models see the same windows. `--auto-minutes N` adds what `ehd-hf train` makes of the sequences in N
minutes by the clock, scored on these windows too. NLL is in nats per event.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

LENGTH, BATCH = 75, 64
LEARNING_RATES, OF_HAWKES = (0.002, 0.01), (0.02, 0.1)  # a Hawkes process has no deep layers to upset
OURS = {
    "fullynn": {"model_type": "fullynn"},
    "fullynn, recent marks": {"model_type": "fullynn", "hidden_size": 64, "recent_marks": True},
    "lognormmix, recent marks": {"model_type": "lognormmix", "hidden_size": 64, "recent_marks": True},
    "hawkes": {"model_type": "hawkes"},
    "attention": {"model_type": "attention"},
}
PEERS = {
    "FullyNN": {"num_mlp_layers": 3, "proper_marked_intensities": True},
    "THP": {},
    "IntensityFree": {"num_mix_components": 16},
    "NHP": {},
}
Row = dict[str, Any]
Batch = dict[str, Tensor]  # times, marks, mask: (B, T) each
Loss = Callable[[Batch], tuple[Tensor, Any]]  # the sum of negative log-likelihoods, and of how many events


def cut(sequences: Any) -> dict[str, np.ndarray]:
    """The windows of all sequences, end to end, each beginning with the last event of the one before: (N, T) each."""
    spans = [
        (first, min(first + LENGTH, last))
        for start, last in zip(sequences.offsets[:-1], sequences.offsets[1:], strict=True)
        for first in range(int(start), int(last) - 1, LENGTH - 1)
    ]
    first, last = np.array(spans).T
    position = np.arange(LENGTH)
    mask = position < (last - first)[:, None]
    index = np.minimum(first[:, None] + position, (last - 1)[:, None])
    return {
        "times": sequences.times[index] - sequences.times[first, None],
        "marks": sequences.marks[index],
        "mask": mask,
    }


def batch_of(windows: dict[str, np.ndarray], rows: np.ndarray) -> Batch:
    length = int(windows["mask"][rows].sum(1).max())
    batch = {name: torch.from_numpy(values[rows, :length]) for name, values in windows.items()}
    return batch | {"times": batch["times"].float()}


def fit(model: torch.nn.Module, loss_of: Loss, windows: dict[str, np.ndarray], seconds: float, rate: float) -> int:
    """Train for so many seconds of one core, whatever else runs beside it; the number of steps."""
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    draw, number = np.random.default_rng(0), len(windows["mask"])
    began, steps = time.process_time(), 0
    model.train()
    while (left := 1 - (time.process_time() - began) / seconds) > 0:
        for group in optimizer.param_groups:
            group["lr"] = rate * left
        total, count = loss_of(batch_of(windows, draw.integers(number, size=BATCH)))
        optimizer.zero_grad()
        (total / count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        steps += 1
    return steps


def score(model: torch.nn.Module, loss_of: Loss, windows: dict[str, np.ndarray]) -> float:
    """NLL per event. Not under no_grad: EasyTPP's FullyNN takes its intensities by autograd."""
    model.eval()
    totals = np.zeros(2)
    for first in range(0, len(windows["mask"]), BATCH):
        total, count = loss_of(batch_of(windows, np.arange(first, min(first + BATCH, len(windows["mask"])))))
        totals += float(total.detach()), float(count)
    return float(totals[0] / totals[1])


def rows_of(
    make: Callable[[], tuple[Any, Loss]],
    splits: dict[str, Any],
    seconds: float,
    seeds: list[int],
    rates: tuple[float, ...] = LEARNING_RATES,
) -> list[Row]:
    """A row for each seed, all of the learning rate that validation prefers with the first of them."""

    def trained(seed: int, rate: float) -> tuple[Row, Any, Loss]:
        torch.manual_seed(seed)
        model, loss_of = make()
        steps = fit(model, loss_of, splits["train"], seconds, rate)
        row = {"seed": seed, "learning_rate": rate, "steps": steps}
        row |= {"parameters": sum(p.numel() for p in model.parameters())}
        return row | {"validation_nll": score(model, loss_of, splits["validation"])}, model, loss_of

    first, *others = seeds
    best = min((trained(first, rate) for rate in rates), key=lambda run: run[0]["validation_nll"])
    runs = itertools.chain([best], (trained(seed, best[0]["learning_rate"]) for seed in others))
    return [row | {"test_nll": score(model, loss_of, splits["test"])} for row, model, loss_of in runs]


def our_model(config: dict[str, Any], splits: dict[str, Any], num_marks: int) -> tuple[Any, Loss]:
    from transformers import AutoConfig, AutoModel

    settings = dict(config)
    model = AutoModel.from_config(AutoConfig.for_model(settings.pop("model_type"), num_marks=num_marks, **settings))
    gaps = np.diff(splits["train"]["times"])[splits["train"]["mask"][:, 1:]]
    model.fit_time_scale(torch.from_numpy(gaps))

    def loss_of(batch: Batch) -> tuple[Tensor, Any]:
        scored = torch.ones_like(batch["mask"])
        scored[:, 0] = False
        output = model(**batch, loss_mask=scored)
        return output.loss * output.num_items, output.num_items

    return model, loss_of


def peer_model(name: str, splits: dict[str, Any], num_marks: int) -> tuple[Any, Loss]:
    from easy_tpp.config_factory.model_config import ModelConfig
    from easy_tpp.model.basemodel import BaseModel

    gaps = np.diff(splits["train"]["times"])[splits["train"]["mask"][:, 1:]]
    logs = np.log(gaps[gaps > 0])
    config = ModelConfig(
        model_id=name,
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        num_event_types=num_marks,
        num_event_types_pad=num_marks + 1,
        pad_token_id=num_marks,
        event_pad_index=num_marks,
        model_specs=PEERS[name],
    )
    config.mean_log_inter_time, config.std_log_inter_time = float(logs.mean()), float(logs.std())
    model = BaseModel.generate_model_from_config(config)

    def loss_of(batch: Batch) -> tuple[Tensor, Any]:
        times, mask = batch["times"], batch["mask"]
        gaps = torch.diff(times, dim=1, prepend=times[:, :1]).clamp(min=1e-6)  # a logarithm of 0 ends in NaN
        length = times.shape[1]
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1) | ~mask[:, None, :]
        return model.loglike_loss(
            time_seqs=times,
            time_delta_seqs=gaps,
            type_seqs=batch["marks"].masked_fill(~mask, num_marks),
            seq_non_pad_mask=mask,
            attention_mask=hidden,
        )[:2]

    return model, loss_of


def peer_rows(folder: Path, name: str, seconds: float, seeds: list[int]) -> list[Row]:
    """In EasyTPP's environment, which has nothing of ours."""
    splits = {split: dict(np.load(folder / f"{split}.npz")) for split in ("train", "validation", "test")}
    num_marks = 1 + max(int(windows["marks"].max()) for windows in splits.values())
    return rows_of(lambda: peer_model(name, splits, num_marks), splits, seconds, seeds)


def trivial_rows(splits: dict[str, Any], id2label: dict[int, str]) -> Iterator[Row]:
    """The trivial models, fitted to the windows of train and scored on those of test; the best pair by validation."""
    from ehd_hf.data.sequences import EventSequences
    from ehd_hf.evaluation.scores import evaluate_mtpp, trivial_baselines

    def sequences(windows: dict[str, np.ndarray]) -> EventSequences:
        mask, names = windows["mask"], tuple(range(len(windows["mask"])))
        offsets = np.append(0, mask.sum(1).cumsum())
        unknown = np.full(len(mask), np.nan)
        return EventSequences(windows["times"][mask], windows["marks"][mask], offsets, names, id2label, unknown)

    test, train, validation = (sequences(splits[name]) for name in ("test", "train", "validation"))
    for row in evaluate_mtpp(trivial_baselines(test, train, validation), test):
        yield {"model": row["model"], "test_nll": row["nll"], "is_best": "chosen_from" in row}


def auto_row(events: dict[str, Any], splits: dict[str, Any], minutes: float, seed: int) -> Row:
    """What `ehd-hf train` makes of the splits, with its defaults but for a distiller."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from transformers import AutoModel

    with TemporaryDirectory() as folder:
        for name in splits:
            part = events[name]
            owners = np.repeat(np.arange(len(part)), part.lengths)
            columns = {"sequence": [f"{name} {owner}" for owner in owners], "time": part.times}
            table = pa.table(columns | {"mark": [f"mark {mark}" for mark in part.marks]})
            pq.write_table(table, Path(folder, f"{name}.parquet"))
        words = ["train", folder, "--out", f"{folder}/model", "--minutes", str(minutes), "--seed", str(seed)]
        words += ["--distiller", "none", "--threads", "1", "--max-marks", "1000", "--yes"]
        began = time.perf_counter()
        ended = subprocess.run([sys.executable, "-m", "ehd_hf.cli", *words], capture_output=True, text=True)
        took = time.perf_counter() - began
        if ended.returncode not in (0, 1):  # 1: no better than a trivial model
            raise ValueError(f"ehd-hf train failed: {ended.stderr.strip()[-400:]}")
        model = AutoModel.from_pretrained(f"{folder}/model").eval()
    number = {label: mark for mark, label in model.config.id2label.items()}
    places = torch.tensor([number.get(f"mark {mark}", 0) for mark in range(events["train"].num_marks)])

    def loss_of(batch: Batch) -> tuple[Tensor, Any]:
        scored = torch.ones_like(batch["mask"])
        scored[:, 0] = False
        with torch.no_grad():
            output = model(**batch | {"marks": places[batch["marks"]]}, loss_mask=scored)
        return output.loss * output.num_items, output.num_items

    nlls = {f"{split}_nll": score(model, loss_of, splits[split]) for split in ("validation", "test")}
    kind = "" if ended.returncode == 0 else ", told to be no better than a trivial model"
    return {"model": "auto", "kind": model.config.model_type + kind, "seed": seed, "seconds": round(took), **nlls}


def splits_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Sequences of train, validation and test."""
    from ehd_hf.data.reading import read_events
    from ehd_hf.data.sources import load_source, with_jitter
    from ehd_hf.data.splits import split_events
    from ehd_hf.data.synthetic import simulated_splits

    kind, _, process = arguments.data.partition(":")
    if kind == "simulated":
        return simulated_splits(process)
    if Path(arguments.data).is_file():
        sequences = read_events(arguments.data, mark=arguments.mark, sequence=arguments.sequence)[0]
        return split_events(sequences, LENGTH)[0]
    events = load_source(arguments.data)
    if arguments.jitter_seed is not None:
        events = {name: with_jitter(part, seed=arguments.jitter_seed) for name, part in events.items()}
    return events


def compare(arguments: argparse.Namespace) -> None:
    from transformers import CONFIG_MAPPING

    import ehd_hf.models
    from ehd_hf.files import append_row

    events = splits_of(arguments)
    splits = {name: cut(events[name]) for name in ("train", "validation", "test")}
    num_marks, path = events["train"].num_marks, Path(arguments.data).resolve()
    data = (
        arguments.data if arguments.data.startswith("simulated:") else (path.parent if path.is_file() else path).name
    )
    stamp = {"task": "peers", "data": data, "seconds": arguments.seconds, "threads": torch.get_num_threads()}
    stamp |= {"version": ehd_hf.__version__, "command": arguments.command}

    def keep(package: str, rows: Iterable[Row]) -> None:
        for row in rows:
            print(f"{data}  {package:14}  {row['model']:24}  {row['test_nll']:.3f}", flush=True)
            if arguments.out:
                append_row(arguments.out, stamp | {"package": package} | row)

    with TemporaryDirectory() as folder:
        for name, windows in splits.items():
            np.savez(Path(folder, name), **windows)
        if "trivial" in arguments.who:
            keep("ehd_hf", trivial_rows(splits, events["train"].id2label))
        for name, config in OURS.items() if "ehd_hf" in arguments.who else ():
            if config["model_type"] in CONFIG_MAPPING:
                made = functools.partial(our_model, config, splits, num_marks)
                rates = OF_HAWKES if name == "hawkes" else LEARNING_RATES
                rows = rows_of(made, splits, arguments.seconds, arguments.seeds, rates)
                keep("ehd_hf", [{"model": name} | row for row in rows])
        for name in PEERS if "easy_tpp" in arguments.who else ():
            words = [arguments.python, __file__, "--peer", name, "--windows", folder]
            words += ["--seconds", str(arguments.seconds), "--seeds", *map(str, arguments.seeds)]
            ended = subprocess.run(words, capture_output=True, text=True)
            if ended.returncode:
                raise ValueError(f"{arguments.python} could not train {name}: {ended.stderr.strip()[-400:]}")
            keep("easy_tpp 0.3.0", [{"model": name} | row for row in json.loads(ended.stdout.splitlines()[-1])])
    if arguments.auto_minutes:
        keep("ehd_hf", (auto_row(events, splits, arguments.auto_minutes, seed) for seed in arguments.seeds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of events with splits, or simulated:<process>")
    parser.add_argument("--python", default="peers/bin/python", help="interpreter of an environment with EasyTPP")
    parser.add_argument("--seconds", type=float, default=60, help="of training, for each model and learning rate")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument(
        "--who", nargs="*", choices=["trivial", "ehd_hf", "easy_tpp"], default=["trivial", "ehd_hf", "easy_tpp"]
    )
    parser.add_argument("--auto-minutes", type=float, help="minutes of ehd-hf train, in a row of its own")
    parser.add_argument("--mark", help="column of marks, where --data is a table")
    parser.add_argument("--sequence", help="column of sequences, where --data is a table")
    parser.add_argument("--jitter-seed", type=int, help="spread whole-number times over their unit")
    parser.add_argument("--out", type=Path, help="JSON Lines file to which rows are added")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--windows", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.command = " ".join(["python", "scripts/benchmarks/peers.py", *sys.argv[1:]])
    torch.set_num_threads(1)
    try:
        if arguments.peer:
            print(json.dumps(peer_rows(arguments.windows, arguments.peer, arguments.seconds, arguments.seeds)))
        elif arguments.data:
            compare(arguments)
        else:
            parser.error("--data names the events")
    except (ValueError, OSError) as error:
        print(f"peers: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
