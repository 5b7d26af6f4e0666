"""The paper's distiller: training and explanation, against the bare MTPP and against the paper's looped rebuild."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from benchmarks import Row, summarize, time_interleaved
from ehd_hf.distillers.ehd import EHDDistillerModel, sample_masks
from ehd_hf.mtpp.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.perplexity import dppl, log_perplexity
from ehd_hf.synthetic import delayed_hawkes
from ehd_hf.windows import make_windows

HISTORY, FUTURE = 40, 15
Batch = dict[str, Tensor]


def make_distiller(num_marks: int, rebuilder: str = "select") -> EHDDistillerModel:
    torch.manual_seed(0)
    mtpp = FullyNNModel(FullyNNConfig(num_marks=num_marks))
    return EHDDistillerModel.from_mtpp(mtpp, history=HISTORY, future=FUTURE, rebuilder=rebuilder)


def make_batch(size: int) -> Batch:
    sequences = delayed_hawkes().simulate(120.0, 50, np.random.default_rng(0)).sequences
    windows = make_windows(sequences, future=FUTURE, history=HISTORY)
    return windows.__getitems__(np.linspace(0, len(windows) - 1, size).astype(int))


def looped_rebuild(times: Tensor, marks: Tensor, embeddings: Tensor, keep: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The paper's rebuilder (appendix A), as it describes it: for every sample and window, select the kept events of
    the multiplied times and embeddings one after the other, then pad and take differences.

    times, marks (B, L), embeddings (B, L, D), keep (S, B, L) -> intervals (S, B, N), marks, embeddings (S, B, N, D).
    """
    all_times, all_marks, all_embeddings = [], [], []
    for sample in keep:
        sample_times, sample_marks, sample_embeddings = [], [], []
        for row, gate in enumerate(sample):
            kept = gate.detach() > 0.5
            sample_times.append((times[row] * gate)[kept])
            sample_marks.append(marks[row][kept])
            sample_embeddings.append((embeddings[row] * gate[:, None])[kept])
        all_times.append(pad_sequence(sample_times, batch_first=True))
        all_marks.append(pad_sequence(sample_marks, batch_first=True))
        all_embeddings.append(pad_sequence(sample_embeddings, batch_first=True))
    length = max(piece.shape[1] for piece in all_times)

    def stacked(pieces: list[Tensor]) -> Tensor:
        return torch.stack([torch.cat([p, p.new_zeros(len(p), length - p.shape[1], *p.shape[2:])], 1) for p in pieces])

    absolute = stacked(all_times)
    return (
        absolute.diff(dim=-1, prepend=absolute.new_zeros(*absolute.shape[:2], 1)),
        stacked(all_marks),
        stacked(all_embeddings),
    )


def one_at_a_time_step(model: EHDDistillerModel, batch: Batch) -> float:
    """A training step the plain way: one window after the other, its masks rebuilt in a loop, each then scored."""
    config, total = model.config, 0.0
    for row in range(len(batch["times"])):
        times, marks, mask = (batch[name][row : row + 1] for name in ("times", "marks", "mask"))
        samples = sample_masks(model.history_logits(times, marks, mask, FUTURE), config.num_mask_samples, config.tau)
        keep = 1 - samples  # (S, 1, L)
        embeddings = model.mtpp.encoder.mark_embedding(marks[:, :HISTORY])
        intervals, kept_marks, _ = looped_rebuild(times[:, :HISTORY], marks[:, :HISTORY], embeddings, keep)
        full = log_perplexity(model.mtpp, times, marks, mask, FUTURE)
        losses = []
        for sample in range(len(keep)):
            count = int((keep[sample, 0] > 0.5).sum())
            history = intervals[sample, :, :count].cumsum(-1)
            whole = (
                torch.cat([history, times[:, HISTORY:]], 1),
                torch.cat([kept_marks[sample, :, :count], marks[:, HISTORY:]], 1),
            )
            left = log_perplexity(model.mtpp, *whole, torch.ones_like(whole[1], dtype=torch.bool), FUTURE)
            losses.append((full - left - np.log(config.epsilon)).clamp(min=0))
        loss = torch.stack(losses).mean() + config.alpha * samples.mean()
        loss.backward()
        total += float(loss.detach()) / len(batch["times"])
    return total


def training_step(model: EHDDistillerModel, batch: Batch) -> Callable[[], None]:
    def step() -> None:
        model.zero_grad(set_to_none=True)
        model(**batch).loss.backward()

    return step


def bare_mtpp(model: EHDDistillerModel, batch: Batch) -> Callable[[], None]:
    """Likelihood of the N rebuilt histories of every window, forward and backward to the masks, and nothing else."""
    keep = (torch.rand(model.config.num_mask_samples, len(batch["times"]), HISTORY) > 0.5).float()

    def step() -> None:
        leaf = keep.clone().requires_grad_()
        window = (batch["times"], batch["marks"], batch["mask"], FUTURE)
        dppl(model.mtpp, *window, leaf, rebuilder=model.config.rebuilder).sum().backward()

    return step


def measure(repeats: int, size: int = 128) -> Iterator[Row]:
    batch = make_batch(size)
    few = {name: value[:4] for name, value in batch.items()}
    for rebuilder in ("select", "gate"):
        model = make_distiller(6, rebuilder).train()
        ours, bare = time_interleaved([training_step(model, batch), bare_mtpp(model, batch)], repeats).T
        yield summarize(f"training step ({rebuilder}) / its MTPP forward and backward alone", ours / bare)
        yield summarize(f"windows per second in training ({rebuilder}, batch {size})", size / ours)
    model = make_distiller(6).train()
    plain, ours = time_interleaved([lambda: one_at_a_time_step(model, few), training_step(model, batch)], repeats).T
    yield summarize("a window's training: looped rebuild, batch 1 / ours", (plain / 4) / (ours / size))
    model.eval()
    window = (batch["times"], batch["marks"], batch["mask"], FUTURE)

    def explain() -> None:
        model.distill(*window)

    @torch.no_grad()
    def score() -> None:
        log_perplexity(model.mtpp, *window)

    @torch.no_grad()
    def explain_one_by_one() -> None:
        for row in range(4):
            model.distill(*(value[row : row + 1] for value in window[:3]), FUTURE)

    answer, scored, single = time_interleaved([explain, score, explain_one_by_one], repeats).T
    yield summarize("explanation (argmax) / one MTPP forward of the same batch", answer / scored)
    yield summarize(f"windows explained per second (batch {size})", size / answer)
    yield summarize("a window's explanation: batch 1 / batched", (single / 4) / (answer / size))
