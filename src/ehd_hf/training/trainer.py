"""One accelerate loop for every stage: it trains whatever returns `outputs.loss`, and knows no model.

A model may also return `num_items` (what its loss is a mean over; batches and processes are then weighted by it) and
`metrics` (a dict of scalars to log). Everything random in step s is a pure function of (seed, s, process), so a run
that is interrupted or killed, at any moment, and resumed ends with the very same weights.

A run's folder: `config.json` + `model.safetensors` (the best model, written when training ends), `log.jsonl` (one row
per evaluation), `training.json` (arguments and outcome), `checkpoints/step-*` (to resume), `best/` (best so far).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from math import cos, inf, isfinite, pi
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from .. import __version__
from ..files import (
    append_row,
    folder_replaced_when_done,
    holds_nothing,
    locked,
    make_folder,
    put_files,
    read_rows,
    remove_folder,
    write_text,
)

# Arguments that change how a run looks or how fast it is, not what it computes: they may differ when resuming.
_FREE_TO_CHANGE = {"out", "num_threads", "progress", "keep_checkpoints", "save_every"}
Schedule = Literal["cosine", "linear", "constant"]
# The least value of an argument, where it is not 0; what each kind of argument is called in a message.
_LEAST = dict.fromkeys(("steps", "batch_size", "eval_every", "eval_batch_size", "save_every", "keep_checkpoints"), 1)
_KINDS: dict[str, tuple[Any, str]] = {
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "str": (str, "a text"),
    "Schedule": (str, "a text"),
    "bool": (bool, "true or false"),
}


@dataclass(frozen=True)
class TrainingArguments:
    """How to train. Unknown keys fail; see `from_dict`.

    Args:
        out: folder of the run.
        steps, warmup_steps: optimiser steps in all, and those of the linear warm-up.
        batch_size: items per step, over all processes together.
        schedule: learning rate after the warm-up: "cosine" or "linear" to 0, or "constant".
        max_grad_norm: gradients are clipped to this norm.
        eval_every: steps between evaluations; the best model by `metric` is kept.
        patience: stop after this many evaluations without improvement; 0 never stops early.
        save_every: steps between checkpoints to resume from.
        seed: of the data order and of everything a model draws.
        num_threads: CPU threads of this process; 0 shares all cores among the processes of this machine.
    """

    out: str
    steps: int = 2000
    warmup_steps: int = 200
    batch_size: int = 64
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    schedule: Schedule = "cosine"
    max_grad_norm: float = 1.0
    eval_every: int = 500
    eval_batch_size: int = 512
    metric: str = "loss"
    patience: int = 0
    save_every: int = 500
    keep_checkpoints: int = 2
    seed: int = 0
    num_threads: int = 0
    progress: bool = True

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainingArguments:
        names = {field.name for field in fields(cls)}
        if not isinstance(values, Mapping) or "out" not in values:
            raise ValueError(f"training arguments are named values, one of them out (a folder); got {values!r:.80}.")
        if unknown := sorted(set(values) - names):
            raise ValueError(
                f"Training arguments are {', '.join(sorted(names))}; got unknown {', '.join(unknown)}. "
                "Check the spelling."
            )
        return cls(**values)

    def __post_init__(self) -> None:
        for field in fields(self):
            value, least = getattr(self, field.name), _LEAST.get(field.name, 0)
            kinds, words = _KINDS[str(field.type)]
            if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool) or value == "":
                raise ValueError(f"{field.name} must be {words}; got {value!r}.")
            if isinstance(value, int | float) and not least <= value < inf:
                raise ValueError(f"{field.name} must be {words} of at least {least}; got {value!r}.")
            if field.name in ("learning_rate", "max_grad_norm") and value == 0:
                raise ValueError(f"{field.name} must be a number above 0; got {value!r}.")
        if self.schedule not in get_args(Schedule):
            raise ValueError(f"schedule must be one of {', '.join(get_args(Schedule))}; got {self.schedule!r}.")

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of step 0, 1, ...: linear warm-up, then `schedule`."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        factor = {"cosine": 0.5 * (1 + cos(pi * done)), "linear": 1 - done, "constant": 1.0}[self.schedule]
        return self.learning_rate * factor


class StepBatches(Sampler[Tensor]):
    """This process's share of each step's batch: shuffled epochs, as a pure function of (seed, step)."""

    def __init__(self, size: int, batch_size: int, seed: int, steps: range, rank: int, world: int) -> None:
        self.size, self.batch_size, self.seed, self.steps = size, batch_size, seed, steps
        self.rank, self.world = rank, world

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Tensor]:
        per_epoch = max(1, self.size // self.batch_size)
        shuffled, order = -1, torch.empty(0, dtype=torch.long)
        for step in self.steps:
            epoch, batch = divmod(step, per_epoch)
            if epoch != shuffled:
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
                shuffled, order = epoch, torch.randperm(self.size, generator=generator)
            yield order[batch * self.batch_size : (batch + 1) * self.batch_size][self.rank :: self.world]


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    best: float | None = None
    best_step: int = 0
    evaluations_since_best: int = 0
    train_loss: float | None = None  # running mean


class Trainer:
    """Train a model, evaluating as it goes, and keep the best.

    Args:
        model: returns `outputs.loss` when called with a batch's items as keywords.
        args: how.
        train_dataset: map-style; `__getitems__(indices)` may return a whole batch at once (see `WindowStore`).
        eval_dataset: the same, for the metric; without it the training loss is the metric.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        train_dataset: Dataset[Any],
        eval_dataset: Dataset[Any] | None = None,
    ) -> None:
        if not isinstance(args, TrainingArguments) or not isinstance(model, torch.nn.Module):
            raise ValueError(
                f"Trainer takes a model and TrainingArguments; got {type(model).__name__} and {type(args).__name__}."
            )
        if not hasattr(train_dataset, "__len__") or len(train_dataset) == 0:
            raise ValueError(f"There must be data to train on; got {type(train_dataset).__name__} without any.")
        self.model, self.args, self.train_dataset, self.eval_dataset = model, args, train_dataset, eval_dataset
        self.out = Path(args.out)
        self.progress = Progress()
        # Without cpu=True accelerate takes no notice of torchrun where there is no GPU: every process would be alone.
        self.accelerator = Accelerator(cpu=not torch.accelerator.is_available())
        if self.accelerator.device.type == "cpu":
            if self.accelerator.mixed_precision != "no":
                raise ValueError(
                    f"On a CPU train in float32; got mixed precision {self.accelerator.mixed_precision!r}, which is "
                    "slower there or fails. Launch with --mixed_precision no."
                )
            self._use_all_cores()

    def train(self, *, resume: bool = False) -> dict[str, float]:
        """Run to the end (or on from the last checkpoint, if `resume`); returns the best model's metrics."""
        is_main = self.accelerator.is_main_process
        if is_main and not resume and not self.out.is_file():
            make_folder(self.out)
        with locked(self.out) if is_main and self.out.is_dir() else nullcontext():
            if resume and (self.out / "training.json").is_file():
                return self._finish_again()
            return self._run(resume)

    def _run(self, resume: bool) -> dict[str, float]:
        args, accelerator = self.args, self.accelerator
        optimizer = torch.optim.AdamW(
            [parameter for parameter in self.model.parameters() if parameter.requires_grad],
            lr=args.learning_rate,
            weight_decay=args.weight_decay,
        )
        checkpoint = self._open_run(resume)
        model, optimizer = accelerator.prepare(self.model, optimizer)
        if checkpoint is not None:
            self._load_checkpoint(checkpoint, optimizer)
        else:
            self._save_checkpoint(optimizer)  # from here on a run can be resumed
        model.train()
        steps = range(self.progress.step, args.steps)
        bar = tqdm(
            total=args.steps,
            initial=self.progress.step,
            disable=not (args.progress and accelerator.is_main_process),
            desc="training",
            unit="step",
            dynamic_ncols=True,
        )
        for step, batch in zip(steps, self._batches(steps), strict=True):
            # One line makes every draw of this step repeatable, whatever was drawn before.
            torch.manual_seed((args.seed * 1_000_003 + step) * 1_009 + accelerator.process_index)
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate_at(step)
            outputs = model(**batch)
            loss, share = self._globally_weighted(outputs)
            value = self._global_loss(outputs, share)
            if isfinite(value):
                accelerator.backward(loss * share)
                norm = accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            if not isfinite(value) or not isfinite(norm):
                what = f"loss became {value}" if not isfinite(value) else f"gradient became {float(norm)}"
                raise ValueError(
                    f"The {what} at step {step}{self._culprits(step)}. Lower the learning rate ({args.learning_rate}) "
                    "or look for extreme intervals in the data; the last checkpoint is intact."
                )
            optimizer.step()
            optimizer.zero_grad()
            self.progress.step = step + 1
            before = self.progress.train_loss
            self.progress.train_loss = value if before is None else 0.98 * before + 0.02 * value
            bar.update()
            if step % 10 == 0:
                bar.set_postfix(loss=f"{self.progress.train_loss:.4f}", refresh=False)
            last = step + 1 == args.steps
            stop = False
            if (step + 1) % args.eval_every == 0 or last:
                stop = self._evaluate_and_keep_best(self.progress.train_loss)
                model.train()
            if (step + 1) % args.save_every == 0 and not (last or stop):
                self._save_checkpoint(optimizer)
            if stop:
                break
        bar.close()
        return self._finish()

    # --- parts of the loop

    def _batches(self, steps: range) -> Iterator[dict[str, Tensor]]:
        sampler = StepBatches(
            len(self.train_dataset),
            self.args.batch_size,
            self.args.seed,
            steps,
            self.accelerator.process_index,
            self.accelerator.num_processes,
        )
        for batch in DataLoader(self.train_dataset, batch_sampler=sampler, collate_fn=_collate(self.train_dataset)):  # type: ignore[arg-type]
            yield self._on_device(batch)

    def _culprits(self, step: int) -> str:
        """The sequences of this process's batch that have no finite loss by themselves; of all, if none stands out."""
        data: Any = self.train_dataset
        if not hasattr(data, "sequence_index"):
            return ""
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        order = StepBatches(len(data), self.args.batch_size, self.args.seed, range(step, step + 1), rank, world)
        indices = next(iter(order)).tolist()
        with torch.no_grad():
            alone = [self.model(**self._on_device(data.__getitems__([index]))).loss for index in indices]
        bad = [index for index, loss in zip(indices, alone, strict=True) if not loss.isfinite()]
        names = dict.fromkeys(str(data.sequences.seq_ids[data.sequence_index[index]]) for index in bad or indices)
        return f", with sequence {', '.join(list(names)[:5])}{', ...' if len(names) > 5 else ''} in the batch"

    def _on_device(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.to(self.accelerator.device) for name, value in batch.items()}

    def _globally_weighted(self, outputs: Any) -> tuple[Tensor, Tensor | float]:
        """The loss and this process's weight, so that the averaged gradient is that of the global batch."""
        items = getattr(outputs, "num_items", None)
        if self.accelerator.num_processes == 1 or items is None:
            return outputs.loss, 1.0
        in_all = self.accelerator.reduce(items.detach().float().clone(), "sum")
        return outputs.loss, items * self.accelerator.num_processes / in_all

    def _global_loss(self, outputs: Any, share: Tensor | float) -> float:
        """Loss of the global batch: the same number in every process, so that all decide alike."""
        return float(self.accelerator.reduce((outputs.loss * share).detach(), "mean"))

    def _evaluate_and_keep_best(self, train_loss: float) -> bool:
        """Evaluate, log, keep the model if it is the best so far; True if patience has run out."""
        progress, args = self.progress, self.args
        metrics = self.evaluate()
        if args.metric not in metrics and args.metric != "loss":
            raise ValueError(f"metric must be one of {', '.join(sorted(metrics))}; got {args.metric!r}.")
        value = metrics.get(args.metric, train_loss)
        if progress.best is None or not isfinite(progress.best) or value < progress.best:
            progress.best, progress.best_step, progress.evaluations_since_best = value, progress.step, 0
            if self.accelerator.is_main_process:
                self._save_model(self.out / "best")
        else:
            progress.evaluations_since_best += 1
        row = {"step": progress.step, "train_loss": train_loss, **{f"eval_{k}": v for k, v in metrics.items()}}
        if self.accelerator.is_main_process:
            append_row(self.out / "log.jsonl", row, allow_nan=True)
            if args.progress:
                shown = "  ".join(f"{name} {number:.4f}" for name, number in row.items() if name != "step")
                tqdm.write(f"step {progress.step}: {shown}")
        return bool(args.patience) and progress.evaluations_since_best >= args.patience

    def evaluate(self) -> dict[str, float]:
        """Mean of `loss` and of every metric over the evaluation data, weighted by items."""
        if self.eval_dataset is None:
            return {}
        size, step = len(self.eval_dataset), self.args.eval_batch_size  # type: ignore[arg-type]
        collate = _collate(self.eval_dataset)
        totals: dict[str, float] = {}
        self.model.eval()
        with torch.no_grad():
            for first in list(range(0, size, step))[self.accelerator.process_index :: self.accelerator.num_processes]:
                indices = torch.arange(first, min(first + step, size))
                batch = collate(_fetch(self.eval_dataset, indices))
                outputs = self.model(**self._on_device(batch))
                items = getattr(outputs, "num_items", None)
                weight = float(items) if items is not None else float(len(indices))
                values = {"loss": outputs.loss, **(getattr(outputs, "metrics", None) or {})}
                for name, value in values.items():
                    totals[name] = totals.get(name, 0.0) + weight * float(value)
                totals[""] = totals.get("", 0.0) + weight
        self.model.train()
        names = sorted(set(gather_object(list(totals))))  # a process without a batch knows none
        sums = torch.tensor([totals.get(name, 0.0) for name in names], dtype=torch.float64)
        summed = self.accelerator.reduce(sums.to(self.accelerator.device), "sum")
        reduced = dict(zip(names, summed.tolist(), strict=True))
        weight = reduced.pop("") or 1.0  # every batch may say that nothing in it counts
        return {name: value / weight for name, value in reduced.items()}

    def _use_all_cores(self) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
        local = int(os.environ.get("LOCAL_WORLD_SIZE", self.accelerator.num_processes))
        threads = self.args.num_threads or max(1, cores // local)
        if threads != torch.get_num_threads():
            self.accelerator.print(
                f"Using {threads} CPU threads (was {torch.get_num_threads()}; `accelerate launch` sets 1 by default)."
            )
            torch.set_num_threads(threads)

    # --- the run's folder

    def _open_run(self, resume: bool) -> Path | None:
        """The checkpoint to go on from; None for a new run, whose folder must be empty."""
        if resume:
            whole = sorted(self.out.glob("checkpoints/step-*[0-9]"))
            if not whole:
                raise ValueError(
                    f"To resume, out must hold checkpoints/step-*; got {str(self.out)!r}, which has none. "
                    "Start without resuming, or name the folder of an interrupted run."
                )
            return whole[-1]
        if self.accelerator.is_main_process and not holds_nothing(self.out):
            raise ValueError(
                f"out must be new or empty, so that no earlier run is lost; {str(self.out)!r} is not. "
                "Resume the run in it, or choose another folder."
            )
        self.accelerator.wait_for_everyone()
        return None

    def _save_checkpoint(self, optimizer: torch.optim.Optimizer) -> None:
        if self.accelerator.is_main_process:
            tensors = {f"model.{name}": value.contiguous() for name, value in self._state().items()}
            for index, values in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in values.items()}
            folder = self.out / "checkpoints" / f"step-{self.progress.step:08d}"
            with folder_replaced_when_done(folder) as partial:
                save_file(
                    {name: value.detach().cpu().clone() for name, value in tensors.items()},
                    partial / "state.safetensors",
                )
                state = {"progress": asdict(self.progress), "args": asdict(self.args), "version": __version__}
                (partial / "progress.json").write_text(json.dumps(state, indent=1))
            for old in sorted(self.out.glob("checkpoints/step-*[0-9]"))[: -self.args.keep_checkpoints]:
                remove_folder(old)
        self.accelerator.wait_for_everyone()

    def _load_checkpoint(self, folder: Path, optimizer: torch.optim.Optimizer) -> None:
        try:
            saved = json.loads((folder / "progress.json").read_text())
            tensors = load_file(folder / "state.safetensors")
            progress, arguments = Progress(**saved["progress"]), saved["args"]
        except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
            raise ValueError(
                f"A checkpoint holds progress.json and state.safetensors; {str(folder)!r} cannot be read ({error}). "
                "Delete it to resume from the one before."
            ) from error
        self._check_unchanged(arguments)
        self.progress = progress
        weights = {name[6:]: value for name, value in tensors.items() if name.startswith("model.")}
        try:
            self.accelerator.unwrap_model(self.model).load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(
                f"A run resumes with the model it began with; the weights in {str(folder)!r} do not fit ({error})."
            ) from error
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                state.setdefault(int(index), {})[key] = value
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        if self.accelerator.is_main_process and (log := self.out / "log.jsonl").exists():
            # Rows written after the checkpoint will be written again.
            rows = [row for row in read_rows(log) if row.get("step", inf) <= self.progress.step]
            write_text(log, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def _check_unchanged(self, arguments: Mapping[str, Any]) -> None:
        changed = {
            name: (arguments.get(name), value)
            for name, value in asdict(self.args).items()
            if name not in _FREE_TO_CHANGE and arguments.get(name) != value
        }
        if changed:
            changes = ", ".join(f"{name}: {before!r} -> {now!r}" for name, (before, now) in changed.items())
            raise ValueError(f"A run resumes with the arguments it began with; got changes: {changes}. Undo them.")

    def _state(self) -> dict[str, Tensor]:
        return self.accelerator.unwrap_model(self.model).state_dict()

    def _save_model(self, folder: Path) -> None:
        shown = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()  # one bar at a time, and a small model writes in a blink
        try:
            with folder_replaced_when_done(folder) as partial:
                self.accelerator.unwrap_model(self.model).save_pretrained(partial)
        finally:
            if shown:
                transformers_logging.enable_progress_bar()

    def _finish(self) -> dict[str, float]:
        """Put the best model into `out` itself and say how the run ended."""
        self.accelerator.wait_for_everyone()
        self._load_weights(self.out / "best")
        best = next(row for row in read_rows(self.out / "log.jsonl") if row["step"] == self.progress.best_step)
        self.accelerator.wait_for_everyone()  # before `best/` goes
        if self.accelerator.is_main_process:
            put_files(self.out / "best", self.out)
            summary = {
                "args": asdict(self.args),
                "version": __version__,
                "steps_run": self.progress.step,
                "best": best,
            }
            write_text(self.out / "training.json", json.dumps(summary, indent=1))
            self._clean_up()
        self.accelerator.wait_for_everyone()
        return best

    def _finish_again(self) -> dict[str, float]:
        """The outcome of a run that has ended, or was killed while it cleaned up."""
        summary = json.loads((self.out / "training.json").read_text(encoding="utf-8"))
        self._check_unchanged(summary["args"])
        if self.accelerator.is_main_process:
            self._clean_up()
        self._load_weights(self.out)
        return summary["best"]

    def _clean_up(self) -> None:
        for name in ("checkpoints", "best"):
            remove_folder(self.out / name)

    def _load_weights(self, folder: Path) -> None:
        self.accelerator.unwrap_model(self.model).load_state_dict(load_file(folder / "model.safetensors"))
        self.model.eval()


def _collate(dataset: Dataset[Any]) -> Callable[[Any], dict[str, Tensor]]:
    """Stores that return whole batches from `__getitems__` need no collating; others get torch's default."""
    return getattr(dataset, "collate", torch.utils.data.default_collate)


def _fetch(dataset: Any, indices: Tensor) -> Any:
    return dataset.__getitems__(indices) if hasattr(dataset, "__getitems__") else [dataset[int(i)] for i in indices]
