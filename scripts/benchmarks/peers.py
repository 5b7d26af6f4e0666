"""Our point processes beside those of EasyTPP: the same windows, the same seconds of training, one run.

EasyTPP is not a dependency. Give it an environment of its own and name its interpreter:

    python3 -m venv peers && peers/bin/pip install torch easy-tpp==0.3.0
    python scripts/benchmarks/peers.py --data data/stackoverflow --seconds 60 --python peers/bin/python \\
        --out results/peers.jsonl

Each model is trained with Adam on batches of 64 windows, its learning rate falling to 0 with the time that is left,
once for each of the learning rates; the one with the lower validation NLL is scored on test. A window is up to 75
events of a sequence, its first event not scored, so that nobody needs more than the window shows. NLL is in nats per
event.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

LENGTH, BATCH, LEARNING_RATES = 75, 64, (0.002, 0.01)
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


def best_row(
    make: Callable[[], tuple[Any, Loss]], splits: dict[str, Any], seconds: float, seed: int
) -> dict[str, Any]:
    """The learning rate with the lower validation NLL."""
    rows = []
    for rate in LEARNING_RATES:
        torch.manual_seed(seed)
        model, loss_of = make()
        steps = fit(model, loss_of, splits["train"], seconds, rate)
        row = {"learning_rate": rate, "steps": steps, "parameters": sum(p.numel() for p in model.parameters())}
        rows.append(row | {f"{split}_nll": score(model, loss_of, splits[split]) for split in ("validation", "test")})
    return min(rows, key=lambda row: row["validation_nll"])


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


def peer_row(folder: Path, name: str, seconds: float, seed: int) -> dict[str, Any]:
    """In EasyTPP's environment, which has nothing of ours."""
    splits = {split: dict(np.load(folder / f"{split}.npz")) for split in ("train", "validation", "test")}
    num_marks = 1 + max(int(windows["marks"].max()) for windows in splits.values())
    return best_row(lambda: peer_model(name, splits, num_marks), splits, seconds, seed)


def compare(arguments: argparse.Namespace) -> None:
    from transformers import CONFIG_MAPPING

    import ehd_hf.models
    from ehd_hf.data.sources import load_source, with_jitter
    from ehd_hf.data.synthetic import simulated_splits
    from ehd_hf.files import append_row

    kind, _, process = arguments.data.partition(":")
    events = simulated_splits(process) if kind == "simulated" else load_source(arguments.data)
    if arguments.jitter_seed is not None:
        events = {name: with_jitter(part, seed=arguments.jitter_seed) for name, part in events.items()}
    splits = {name: cut(events[name]) for name in ("train", "validation", "test")}
    known = {name: config for name, config in OURS.items() if config["model_type"] in CONFIG_MAPPING}
    with TemporaryDirectory() as folder:
        for name, windows in splits.items():
            np.savez(Path(folder, name), **windows)
        for who, name in [*(("ehd_hf", name) for name in known), *(("easy_tpp 0.3.0", name) for name in PEERS)]:
            if who == "ehd_hf":
                number = events["train"].num_marks
                row = best_row(lambda n=name, c=number: our_model(known[n], splits, c), splits, arguments.seconds, arguments.seed)  # fmt: skip  # noqa: E501
            else:
                words = [arguments.python, __file__, "--peer", name, "--windows", folder]
                words += ["--seconds", str(arguments.seconds), "--seed", str(arguments.seed)]
                ended = subprocess.run(words, capture_output=True, text=True)
                if ended.returncode:
                    raise ValueError(f"{arguments.python} could not train {name}: {ended.stderr.strip()[-400:]}")
                row = json.loads(ended.stdout.splitlines()[-1])
            data = arguments.data if kind == "simulated" else Path(arguments.data).resolve().stem
            stamp = {"task": "peers", "data": data, "package": who, "model": name, "seconds": arguments.seconds}
            stamp |= {"seed": arguments.seed, "threads": torch.get_num_threads(), "version": ehd_hf.__version__}
            print(f"{data}  {who:14}  {name:14}  {row['test_nll']:.3f}  {row['steps']:,} steps", flush=True)
            if arguments.out:
                append_row(arguments.out, stamp | row | {"command": arguments.command})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of events with splits, or simulated:<process>")
    parser.add_argument("--python", default="peers/bin/python", help="interpreter of an environment with EasyTPP")
    parser.add_argument("--seconds", type=float, default=60, help="of training, for each model and learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jitter-seed", type=int, help="spread whole-number times over their unit")
    parser.add_argument("--out", type=Path, help="JSON Lines file to which rows are added")
    parser.add_argument("--peer", choices=PEERS, help=argparse.SUPPRESS)
    parser.add_argument("--windows", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.command = " ".join(["python", "scripts/benchmarks/peers.py", *sys.argv[1:]])
    torch.set_num_threads(1)
    try:
        if arguments.peer:
            print(json.dumps(peer_row(arguments.windows, arguments.peer, arguments.seconds, arguments.seed)))
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
