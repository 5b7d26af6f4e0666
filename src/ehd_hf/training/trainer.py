# No `from __future__ import annotations` here: it would disable the type checks of the arguments.
"""One accelerate loop for every stage: it trains whatever returns `outputs.loss`, and knows no model.

A model may also return `num_items` (what its loss is a mean over; batches and processes are then weighted by it) and
other scalars, which are logged. Everything random in step s is a pure function of (seed, s, process), so a run that is
interrupted or killed at any time and then resumed ends with the very same weights.

With `minutes` a clock decides instead of a number of steps: learning rate, evaluations and the end follow the time
spent training, which checkpoints carry. Such a run resumes with what is left of its time, and can be given more; how
many steps it takes depends on the machine, so its weights are not repeated to the bit.

A run's folder: `config.json` + `model.safetensors` (the best model, written when training ends), `log.jsonl` (one row
per evaluation), `training.json` (arguments and outcome), `checkpoints/step-*` (to resume), `best/` (best so far). Each
of these folders has a manifest of digests, which is checked before anything is taken from it.
"""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import chain
from math import cos, inf, isfinite, pi
from pathlib import Path
from typing import Any, Literal

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import gather_object, send_to_device
from huggingface_hub.dataclasses import strict, validated_field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import BatchSampler, DataLoader, Sampler, default_collate
from tqdm.auto import tqdm
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from .. import __version__, files
from ..data.windows import DatasetWindows, StreamedWindows

# Arguments that change how a run looks or how fast it is, not what it computes: they may differ when resuming.
_FREE_TO_CHANGE = {"out", "num_threads", "progress", "save_every"}
# By the clock: the share of the time that is warm-up, the time between evaluations, and what they may take of it.
_WARMUP_SHARE, _EVALUATION_EVERY, _EVALUATION_SHARE = 0.05, 1 / 20, 0.1
_SECONDS_BETWEEN_LINES = 60  # in a log file
_MODEL = ("model.safetensors", "config.json")
_FINISHED = (*_MODEL, "training.json")


def _number(default: float, *, least: float = 0, above: float = -inf) -> Any:
    """A field for finite numbers of at least `least` and above `above`."""

    def check(value: float) -> None:
        if not (least <= value < inf and value > above):
            bound = f"at least {least}" if above == -inf else f"above {above}"
            raise ValueError(f"it must be a finite number of {bound}; got {value}.")

    return validated_field(check, default=default)


@strict
@dataclass
class TrainingArguments:
    """How to train. With `minutes` the warm-up is 5 % of the time; after every 5 % (or more, should evaluations take
    more than 10 % of the time) the model is evaluated and a checkpoint written."""

    out: str  # folder of the run
    steps: int = _number(2000, least=1)
    minutes: float | int = _number(0)  # train for so long, evaluations included, instead of `steps`; 0: by steps
    warmup_steps: int = _number(200)
    batch_size: int = _number(64, least=1)  # over all processes together
    learning_rate: float | int = _number(1e-3, above=0)
    weight_decay: float | int = _number(0.01)
    schedule: Literal["cosine", "linear", "constant"] = "cosine"  # after the warm-up: to 0, to 0, or as it is
    max_grad_norm: float | int = _number(1.0, above=0)  # to which gradients are clipped
    eval_every: int = _number(500, least=1)  # steps
    eval_batch_size: int = _number(512, least=1)
    metric: str = "loss"  # of the evaluation; the model with the smallest is kept
    patience: int = _number(0)  # evaluations without improvement after which to stop; 0 never stops early
    save_every: int = _number(500, least=1)  # steps between checkpoints to resume from
    seed: int = _number(0)  # of the data order and of everything a model draws
    # CPU threads of this process; 0: OMP_NUM_THREADS, which `accelerate launch` sets to 1, or this process's share.
    num_threads: int = _number(0)
    progress: bool = True  # show a bar

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "TrainingArguments":
        names = [field.name for field in fields(cls)]
        unknown = sorted(set(values) - set(names))
        if "out" not in values or unknown:
            wrong = f"unknown {', '.join(unknown)}" if "out" in values else "no out (a folder)"
            raise ValueError(f"training arguments are {', '.join(names)}; got {wrong}. Check the spelling.")
        return cls(**values)

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of step 0, 1, ...: linear warm-up, then `schedule`."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        return self._scheduled((step - self.warmup_steps) / max(1, self.steps - self.warmup_steps))

    def learning_rate_after(self, seconds: float) -> float:
        """Learning rate when so much of `minutes` has passed: the same curve."""
        passed = min(1.0, seconds / (60 * self.minutes))
        if passed < _WARMUP_SHARE:
            return self.learning_rate * max(passed / _WARMUP_SHARE, 0.01)
        return self._scheduled((passed - _WARMUP_SHARE) / (1 - _WARMUP_SHARE))

    def _scheduled(self, done: float) -> float:
        factor = {"cosine": 0.5 * (1 + cos(pi * done)), "linear": 1 - done, "constant": 1.0}[self.schedule]
        return self.learning_rate * factor


class StepBatches(Sampler[Tensor]):
    """The batch of each step, over all processes: shuffled epochs, as a pure function of (seed, step)."""

    drop_last = False  # what accelerate asks of a sampler of batches

    def __init__(self, size: int, batch_size: int, seed: int, steps: range) -> None:
        self.size, self.batch_size, self.seed, self.steps = size, min(batch_size, size), seed, steps

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Tensor]:
        per_epoch = self.size // self.batch_size
        shuffled, order = -1, torch.empty(0, dtype=torch.long)
        for step in self.steps:
            epoch, batch = divmod(step, per_epoch)
            if epoch != shuffled:
                generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
                shuffled, order = epoch, torch.randperm(self.size, generator=generator)
            yield order[batch * self.batch_size : (batch + 1) * self.batch_size]


@dataclass
class Progress:
    """Where a run stands."""

    step: int = 0
    best: float | None = None
    best_step: int = 0
    evaluations_since_best: int = 0
    train_loss: float | None = None  # running mean
    seconds: float = 0.0  # spent training, evaluations included, in all sessions


@dataclass(frozen=True)
class Watch:
    """What a run tells on its way, and how it is told to end; the best model is kept then too."""

    title: str = "training"  # what is trained
    metric: str = "validation loss"  # what it is judged by, in words
    log: Path | None = None  # text file that gets a line a minute
    on_best: Callable[[Path, float], None] = lambda folder, metric: None  # called with every new best model
    should_end: Callable[[], bool] = lambda: False  # asked after every step


@contextmanager
def interrupts_held() -> Iterator[list[int]]:
    """Hold back Ctrl-C while work is done that must not be torn: the list fills, and it is raised at the end. A second
    one is raised at once. Where signals are ignored, or in other threads than the main one, nothing changes."""
    asked: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def hold(number: int, frame: Any) -> None:
        asked.append(number)
        if len(asked) > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield asked
        return
    signal.signal(signal.SIGINT, hold)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt


def log_line(file: Path, text: str) -> None:
    """Add a line, with the time of day, to a log for people."""
    with file.open("a", encoding="utf-8") as lines:
        lines.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")


def seconds_spent(out: Path) -> float:
    """How long the run in a folder has trained, as its last checkpoint says."""
    states = sorted(out.glob("checkpoints/step-*[0-9]/progress.json"))
    return float(files.read_json(states[-1])["progress"].get("seconds", 0.0)) if states else 0.0


def outcome(out: Path) -> dict[str, Any]:
    """What `training.json` of a run that has ended says; it and the model must be as they were written."""
    files.check_manifest(out, _FINISHED)
    return files.read_json(out / "training.json")


def reopen(out: Path) -> None:
    """Let a run by the clock that has ended go on from there, with more minutes."""
    if (out / "training.json").is_file():
        outcome(out)
        with files.folder_replaced_when_done(out / "best") as partial:
            for name in _MODEL:
                shutil.copyfile(out / name, partial / name)
            files.write_manifest(partial)
        files.write_manifest(out, _MODEL)
        (out / "training.json").unlink()


def _items(data: Any) -> Any:
    """Windows of `datasets` as a model takes them; anything else as it is."""
    from datasets import Dataset, IterableDataset

    if isinstance(data, IterableDataset):
        return StreamedWindows(data)
    return DatasetWindows(data) if isinstance(data, Dataset) else data


class _Clock:
    """When to evaluate and when to end: by steps, or by the time that passes."""

    def __init__(self, args: TrainingArguments, progress: Progress, accelerator: Accelerator) -> None:
        self.args, self.progress, self.accelerator = args, progress, accelerator
        self.began = time.monotonic() - progress.seconds
        self.step_seconds = self.evaluation_seconds = 0.0  # of the last ones
        self.every = 60 * args.minutes * _EVALUATION_EVERY
        self.next_evaluation = progress.seconds + self.every

    def read(self) -> float:
        """Note the time; seconds since the last note. Processes agree on it, so that all decide alike."""
        seconds, before = time.monotonic() - self.began, self.progress.seconds
        if self.args.minutes and self.accelerator.num_processes > 1:
            passed = torch.tensor(seconds, dtype=torch.float32, device=self.accelerator.device)
            seconds = float(self.accelerator.reduce(passed, "mean"))
        self.progress.seconds = seconds
        return seconds - before

    def is_time_to_evaluate(self) -> bool:
        if self.args.minutes:
            return self.progress.seconds >= self.next_evaluation
        return self.progress.step % self.args.eval_every == 0

    def evaluated(self) -> None:
        """Note how long it took, and when the next is due."""
        self.evaluation_seconds = self.read()
        pause = max(self.every, self.evaluation_seconds * (1 / _EVALUATION_SHARE - 1))
        self.next_evaluation = self.progress.seconds + pause

    def is_over(self) -> bool:
        """Whether nothing is left but the last evaluation."""
        if self.args.minutes:
            return self.progress.seconds + self.evaluation_seconds + self.step_seconds >= 60 * self.args.minutes
        return self.progress.step >= self.args.steps


class Trainer:
    """Train a model, which returns `outputs.loss` of a batch's items, evaluating as it goes, and keep the best.

    The data are windows of `datasets`, such as `load_dataset(folder, "15-40")["train"]`, whole or streamed; or a
    map-style data set, whose `__getitems__(indices)` may return a whole batch at once (see `WindowStore`). Without
    those to evaluate on, the training loss is the metric.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        args: TrainingArguments,
        train_dataset: Any,
        eval_dataset: Any = None,
        watch: Watch | None = None,
    ) -> None:
        self.model, self.args, self.watch = model, args, watch or Watch()
        self.train_dataset, self.eval_dataset = _items(train_dataset), _items(eval_dataset)
        if hasattr(train_dataset, "__len__") and not len(train_dataset):
            raise ValueError(f"there must be data to train on; got an empty {type(train_dataset).__name__}.")
        self.out = Path(args.out)
        self.progress = Progress()
        self.latest: float | None = None  # metric of the last evaluation
        self.log: list[dict[str, Any]] = []  # the rows of `log.jsonl`
        self.next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
        # Without cpu=True accelerate takes no notice of torchrun where there is no GPU: every process would be alone.
        self.accelerator = Accelerator(
            cpu=not torch.accelerator.is_available(),
            # Processes share each step's batch: any number of them takes the same steps.
            dataloader_config=DataLoaderConfiguration(split_batches=True, even_batches=False),
        )
        if self.accelerator.device.type == "cpu":
            if (precision := self.accelerator.mixed_precision) != "no":
                got = f"got mixed precision {precision!r}, which is slower there or fails"
                raise ValueError(f"On a CPU train in float32; {got}. Launch with --mixed_precision no.")
            self._set_threads()
        number = self.accelerator.num_processes
        for name, size in (("batch_size", args.batch_size), ("eval_batch_size", args.eval_batch_size)):
            if size % number:
                raise ValueError(f"{number} processes share {name}: it must be a multiple; got {size}.")

    def train(self, *, resume: bool = False) -> dict[str, float]:
        """Run to the end (or on from the last checkpoint, if `resume`); returns the best model's metrics."""
        is_main = self.accelerator.is_main_process
        if is_main and not resume and not self.out.is_file():
            files.make_folder(self.out)
        with files.locked(self.out) if is_main and self.out.is_dir() else nullcontext():
            if not (resume and (self.out / "training.json").is_file()):
                self._run(resume)
            return self._finish()

    def _run(self, resume: bool) -> None:
        """Train; write the best model and `training.json`."""
        args, accelerator = self.args, self.accelerator
        learning = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        groups = [{"params": learning, "initial_lr": args.learning_rate}]
        optimizer: Any = torch.optim.AdamW(groups, lr=args.learning_rate, weight_decay=args.weight_decay)
        if (checkpoint := self._open_run(resume)) is not None:
            self._load_checkpoint(checkpoint, optimizer)
        progress = self.progress
        if args.minutes and progress.evaluations_since_best >= args.patience:
            progress.evaluations_since_best = 0  # it had ended, and was given more time
        steps = range(progress.step, sys.maxsize if args.minutes else args.steps)

        def rate(step: int) -> float:
            now = args.learning_rate_after(progress.seconds) if args.minutes else args.learning_rate_at(step)
            return now / args.learning_rate

        schedule: Any = LambdaLR(optimizer, rate, last_epoch=steps.start - 1)
        model, optimizer, schedule = accelerator.prepare(self.model, optimizer, schedule)
        if checkpoint is None:
            self._save_checkpoint(optimizer)  # from here on a run can be resumed
        model.train()
        clock = _Clock(args, progress, accelerator)
        # Several processes would not agree on the step at which a signal came.
        held: Any = interrupts_held() if accelerator.num_processes == 1 else nullcontext([])
        with held as interrupts, self._bar() as bar:
            for step, batch in zip(steps, self._batches(self.train_dataset, steps), strict=True):
                if progress.best is not None and (clock.is_over() or self.watch.should_end()):
                    break
                self._step(model, optimizer, batch, step)
                clock.step_seconds = clock.read()
                schedule.step()
                optimizer.zero_grad()
                self._tell(bar)
                ends = clock.is_over() or self.watch.should_end()
                if clock.is_time_to_evaluate() or ends:
                    ends |= self._evaluate_and_keep_best(progress.train_loss or 0.0)
                    clock.evaluated()
                    model.train()
                    if args.minutes:
                        self._save_checkpoint(optimizer)
                if ends:
                    break
                if interrupts or (not args.minutes and (step + 1) % args.save_every == 0):
                    self._save_checkpoint(optimizer)
                if interrupts:
                    raise KeyboardInterrupt
        if accelerator.is_main_process:
            files.check_manifest(self.out / "best", remedy="Train anew in another folder")
            files.put_files(self.out / "best", self.out)
            best = next(row for row in self.log if row["step"] == progress.best_step)
            summary = {"args": asdict(args), "version": __version__, "steps_run": progress.step, "best": best}
            summary |= {"seconds": progress.seconds} if args.minutes else {}
            files.write_text(self.out / "training.json", json.dumps(summary, indent=1))

    def _step(self, model: Any, optimizer: Any, batch: Any, step: int) -> None:
        """One step of the optimiser."""
        args, accelerator, progress = self.args, self.accelerator, self.progress
        # One line makes every draw of this step repeatable, whatever was drawn before.
        torch.manual_seed((args.seed * 1_000_003 + step) * 1_009 + accelerator.process_index)
        outputs = model(**batch)
        loss = outputs.loss * self._share(outputs)
        # The loss of the global batch: the same number in every process, so that all decide alike.
        value = float(accelerator.reduce(loss.detach(), "mean"))
        norm: Any = inf
        if isfinite(value):
            accelerator.backward(loss)
            norm = accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
        # In half precision the scaler skips such a step and tries a smaller scale at the next.
        if not isfinite(value) or not (isfinite(norm) or accelerator.scaler):
            what = f"loss became {value}" if not isfinite(value) else f"gradient became {float(norm)}"
            fix = f"Lower the learning rate ({args.learning_rate}) or look for extreme intervals in the data"
            raise ValueError(f"The {what} at step {step}{self._culprits(step)}. {fix}; the last checkpoint is intact.")
        optimizer.step()
        progress.step = step + 1
        before = progress.train_loss
        progress.train_loss = value if before is None else 0.98 * before + 0.02 * value

    def _bar(self) -> Any:
        """A bar over the steps, or over the seconds."""
        args, shown = self.args, self.args.progress and self.accelerator.is_main_process
        look = "{desc} {percentage:3.0f}% |{bar}| {remaining} left{postfix}"
        options: Any = {"desc": self.watch.title, "bar_format": look, "dynamic_ncols": True, "disable": not shown}
        return tqdm(total=60 * args.minutes or args.steps, initial=self._passed(), **options)

    def _passed(self) -> float:
        return self.progress.seconds if self.args.minutes else self.progress.step

    def _tell(self, bar: Any) -> None:
        """Move the bar; once a minute, add a line to the log."""
        args, progress = self.args, self.progress
        bar.update(self._passed() - bar.n)
        standing = f"{self.watch.metric} not known yet"
        if progress.best is not None and isfinite(progress.best):
            latest = progress.best if self.latest is None else self.latest
            standing = f"{self.watch.metric} {latest:.3f}, at best {progress.best:.3f}"
        if progress.step % 10 == 0:
            bar.set_postfix_str(standing, refresh=False)
        if self.watch.log is not None and time.monotonic() >= self.next_line:
            self.next_line += _SECONDS_BETWEEN_LINES
            left = max(0.0, args.minutes - progress.seconds / 60)
            end = f", {left:.1f} of {args.minutes:.1f} min left" if args.minutes else f" of {args.steps:,}"
            log_line(self.watch.log, f"{self.watch.title}: step {progress.step:,}{end}; {standing}")

    def _finish(self) -> dict[str, float]:
        """Take the best model of a run that has ended, clean up (it may have been killed at that), return its row."""
        self.accelerator.wait_for_everyone()
        summary = outcome(self.out)
        self._check_unchanged(summary["args"])
        if self.accelerator.is_main_process:
            if "training.json" not in files.check_manifest(self.out, _FINISHED):
                files.write_manifest(self.out, [*_FINISHED, "log.jsonl"])
            # By the clock, the last checkpoint is where more minutes go on from.
            over = self._checkpoints[:-1] if self.args.minutes else [self.out / "checkpoints"]
            for folder in (self.out / "best", *over):
                files.remove_folder(folder)
        self._plain_model.load_state_dict(load_file(self.out / "model.safetensors"))
        self.model.eval()
        return summary["best"]

    def push_to_hub(self, repo_id: str, **options: Any) -> Any:
        """Push the trained model; `options` as in `hub.push.push_folder`. Call it in every process."""
        from ..hub.push import push_folder

        return push_folder(self.out, repo_id, **options) if self.accelerator.is_main_process else None

    def _batches(self, data: Any, steps: range | None = None) -> Any:
        """This process's share of the batch of each step, or of all items once, on the device."""
        args, accelerator = self.args, self.accelerator
        if isinstance(data, StreamedWindows):
            size, seed = args.batch_size, args.seed
            whole = data.batches(args.eval_batch_size) if steps is None else data.step_batches(size, seed, steps)
            share = slice(accelerator.process_index, None, accelerator.num_processes)
            return ({name: value[share].to(accelerator.device) for name, value in batch.items()} for batch in whole)
        batches: Any = BatchSampler(range(len(data)), args.eval_batch_size, drop_last=False)
        if steps is not None:
            batches = StepBatches(len(data), args.batch_size, args.seed, steps)
        collate = getattr(data, "collate", default_collate)
        # With a generator of its own the loader leaves torch's alone.
        loader = DataLoader(data, batch_sampler=batches, collate_fn=collate, generator=torch.Generator())
        return accelerator.prepare(loader)

    @cached_property
    def _eval_loader(self) -> Any:
        return self._batches(self.eval_dataset)

    def _culprits(self, step: int) -> str:
        """The sequences of the batch that have no finite loss by themselves; of all, if none stands out."""
        data: Any = self.train_dataset
        if not hasattr(data, "sequence_index"):
            return ""
        indices = next(iter(StepBatches(len(data), self.args.batch_size, self.args.seed, range(step, step + 1))))
        with torch.no_grad():
            batches = (send_to_device(data.__getitems__([index]), self.accelerator.device) for index in indices)
            bad = [bool(self.model(**batch).loss.isfinite().logical_not()) for batch in batches]
        where = data.sequence_index[indices.numpy()[bad] if any(bad) else indices.numpy()]
        names = list(dict.fromkeys(str(data.sequences.seq_ids[index]) for index in where))
        return f", with sequence {', '.join(names[:5])}{', ...' if len(names) > 5 else ''} in the batch"

    def _share(self, outputs: Any) -> Tensor | float:
        """This process's weight, so that the averaged gradient is that of the global batch."""
        items = outputs.get("num_items")
        if self.accelerator.num_processes == 1 or items is None:
            return 1.0
        in_all = self.accelerator.reduce(items.detach().float().clone(), "sum")
        return items * self.accelerator.num_processes / in_all

    def _evaluate_and_keep_best(self, train_loss: float) -> bool:
        """Evaluate, log, keep the model if it is the best so far; True if patience has run out."""
        progress, args = self.progress, self.args
        metrics = self.evaluate()
        if args.metric not in metrics and args.metric != "loss":
            raise ValueError(f"metric must be one of {', '.join(sorted(metrics))}; got {args.metric!r}.")
        value = self.latest = metrics.get(args.metric, train_loss)
        if progress.best is None or not isfinite(progress.best) or value < progress.best:
            progress.best, progress.best_step, progress.evaluations_since_best = value, progress.step, 0
            if self.accelerator.is_main_process:
                self._save_model(self.out / "best")
                self.watch.on_best(self.out / "best", value)
        else:
            progress.evaluations_since_best += 1
        row = {"step": progress.step, "train_loss": train_loss, **{f"eval_{k}": v for k, v in metrics.items()}}
        self.log.append(row)
        if self.accelerator.is_main_process:
            files.append_row(self.out / "log.jsonl", row, allow_nan=True)
            if args.progress:
                shown = "  ".join(f"{name} {number:.4f}" for name, number in row.items() if name != "step")
                tqdm.write(f"step {progress.step}: {shown}")
        return bool(args.patience) and progress.evaluations_since_best >= args.patience

    def evaluate(self) -> dict[str, float]:
        """Mean of `loss` and of every metric over the evaluation data, weighted by items."""
        if self.eval_dataset is None:
            return {}
        totals: defaultdict[str, float] = defaultdict(float)
        self.model.eval()
        streamed = isinstance(self.eval_dataset, StreamedWindows)
        with torch.no_grad():
            for batch in self._batches(self.eval_dataset) if streamed else self._eval_loader:
                outputs = self.model(**batch)
                items = outputs.get("num_items")
                weight = float(items) if items is not None else float(len(next(iter(batch.values()))))
                totals["num_items"] += weight
                for name, value in outputs.items():
                    if value.dim() == 0 and name != "num_items":
                        totals[name] += weight * float(value)
        self.model.train()
        shares = gather_object([totals])  # of each process; one without a batch has none
        sums = {name: sum(share[name] for share in shares) for name in sorted({*chain(*shares)})}
        weight = sums.pop("num_items", 0.0) or 1.0  # nothing may count in any batch
        return {name: value / weight for name, value in sums.items()}

    def _set_threads(self) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)
        local = int(os.environ.get("LOCAL_WORLD_SIZE", self.accelerator.num_processes))
        given = os.environ.get("OMP_NUM_THREADS", "")
        threads = self.args.num_threads or (int(given) if given.isdigit() else cores // local)
        torch.set_num_threads(max(1, threads))

    @property
    def _checkpoints(self) -> list[Path]:
        return sorted(self.out.glob("checkpoints/step-*[0-9]"))

    def _open_run(self, resume: bool) -> Path | None:
        """The checkpoint to go on from; None for a new run, whose folder must be empty."""
        if resume and not self._checkpoints:
            got = f"got {str(self.out)!r}, which has none. Start without resuming, or name an interrupted run's folder"
            raise ValueError(f"To resume, out must hold checkpoints/step-*; {got}.")
        if not resume and self.accelerator.is_main_process and not files.holds_nothing(self.out):
            got = f"{str(self.out)!r} is not. Resume the run in it, or choose another folder"
            raise ValueError(f"out must be new or empty, so that no earlier run is lost; {got}.")
        self.accelerator.wait_for_everyone()
        return self._checkpoints[-1] if resume else None

    def _save_checkpoint(self, optimizer: torch.optim.Optimizer) -> None:
        if self.accelerator.is_main_process:
            tensors = {f"model.{name}": value.contiguous() for name, value in self._plain_model.state_dict().items()}
            for index, values in optimizer.state_dict()["state"].items():
                tensors |= {f"optimizer.{index}.{name}": torch.as_tensor(value) for name, value in values.items()}
            tensors = {name: value.detach().cpu().clone() for name, value in tensors.items()}
            state = {
                "progress": asdict(self.progress),
                "args": asdict(self.args),
                "version": __version__,
                "log": self.log,
            }
            folder = self.out / "checkpoints" / f"step-{self.progress.step:08d}"
            with files.folder_replaced_when_done(folder) as partial:
                save_file(tensors, partial / "state.safetensors")
                (partial / "progress.json").write_text(json.dumps(state, indent=1))
                files.write_manifest(partial)
            for old in self._checkpoints[:-2]:
                files.remove_folder(old)
        self.accelerator.wait_for_everyone()

    def _load_checkpoint(self, folder: Path, optimizer: torch.optim.Optimizer) -> None:
        try:
            files.check_manifest(folder)
            saved = files.read_json(folder / "progress.json")
            tensors = load_file(folder / "state.safetensors")
            progress, arguments = Progress(**saved["progress"]), saved["args"]
            self.log = list(saved["log"])
            if folder.name != f"step-{progress.step:08d}":
                raise ValueError(f"it is of step {progress.step}")
        except (OSError, ValueError, TypeError, KeyError, SafetensorError) as error:
            reason = f"{str(folder)!r} cannot be read ({error}). Delete it to resume from the one before."
            raise ValueError(f"A checkpoint holds progress.json and state.safetensors; {reason}") from error
        self._check_unchanged(arguments)
        self.progress = progress
        weights: dict[str, Tensor] = {}
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            owner, _, name = name.partition(".")
            if owner == "model":
                weights[name] = value
            else:
                index, _, name = name.partition(".")
                state.setdefault(int(index), {})[name] = value
        try:
            self._plain_model.load_state_dict(weights)
        except RuntimeError as error:
            reason = f"the weights in {str(folder)!r} do not fit ({error})"
            raise ValueError(f"A run resumes with the model it began with; {reason}.") from error
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
        if self.accelerator.is_main_process:  # rows written after the checkpoint will be written again
            lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in self.log)
            files.write_text(self.out / "log.jsonl", "".join(lines))

    def _check_unchanged(self, before: Mapping[str, Any]) -> None:
        may_change = _FREE_TO_CHANGE | ({"minutes"} if self.args.minutes and before.get("minutes") else set())
        changes = [
            f"{name}: {before.get(name)!r} -> {value!r}"
            for name, value in asdict(self.args).items()
            if name not in may_change and before.get(name, 0) != value
        ]
        if changes:
            got = ", ".join(changes)
            raise ValueError(f"A run resumes with the arguments it began with; got changes: {got}. Undo them.")

    @property
    def _plain_model(self) -> Any:
        """The model without what accelerate wrapped around it."""
        return self.accelerator.unwrap_model(self.model)

    def _save_model(self, folder: Path) -> None:
        shown = transformers_logging.is_progress_bar_enabled()
        transformers_logging.disable_progress_bar()  # one bar at a time, and a small model is written in a blink
        try:
            with files.folder_replaced_when_done(folder) as partial:
                self._plain_model.save_pretrained(partial)
                files.write_manifest(partial)
        finally:
            if shown:
                transformers_logging.enable_progress_bar()
