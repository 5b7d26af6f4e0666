"""Training a distiller: a step against the sum of its bare parts, the share of data, the paper's looped rebuild."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ehd_hf.data.synthetic import delayed_hawkes
from ehd_hf.data.windows import WindowStore, make_windows
from ehd_hf.models.distiller import DistillerModel
from ehd_hf.models.ehd import EHDDistillerModel, sample_masks
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.models.perplexity import keep_gradient, log_perplexity, log_perplexity_of_masks
from ehd_hf.models.ranking import RankingDistillerModel
from ehd_hf.models.rebuild import select
from ehd_hf.models.window import Window
from groups import Row, summarize, time_interleaved

HISTORY, FUTURE = 40, 15
Batch = dict[str, Tensor]


def make_distiller(kind: type[Any] = EHDDistillerModel, **options: Any) -> Any:
    """An untrained distiller of 6 marks."""
    torch.manual_seed(0)
    mtpp = FullyNNModel(FullyNNConfig(num_marks=6))
    return kind.from_mtpp(mtpp, history=HISTORY, future=FUTURE, **options)


def make_store() -> WindowStore:
    sequences = delayed_hawkes().simulate(120.0, 50, np.random.default_rng(0)).sequences
    return make_windows(sequences, future=FUTURE, history=HISTORY)


def make_batch(size: int) -> Batch:
    windows = make_store()
    return windows.__getitems__(np.linspace(0, len(windows) - 1, size).astype(int))


def window_of(batch: Batch) -> Window:
    return Window(batch["times"], batch["marks"], batch["mask"], FUTURE)


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


def rebuilt_windows(model: DistillerModel, window: Window, keep: Tensor) -> Iterator[Window]:
    """One window with the events of each mask (S, 1, L) alone, by `looped_rebuild`."""
    history = [each[:, : window.num_history] for each in (window.times, window.marks)]
    embeddings = model.mtpp.encoder.mark_embedding(history[1])
    intervals, marks, _ = looped_rebuild(*history, embeddings, keep)
    for sample, gate in enumerate(keep[:, 0]):
        count = int((gate > 0.5).sum())
        times = torch.cat([intervals[sample, :, :count].cumsum(-1), window.times[:, window.num_history :]], 1)
        kept = torch.cat([marks[sample, :, :count], window.marks[:, window.num_history :]], 1)
        yield Window(times, kept, torch.ones_like(kept, dtype=torch.bool), window.num_future)


def one_at_a_time_step(model: EHDDistillerModel, batch: Batch) -> float:
    """A training step the plain way: one window after the other, its masks rebuilt in a loop, each then scored."""
    config, total, windows = model.config, 0.0, window_of(batch)
    for row in range(len(windows.times)):
        window = windows.rows(torch.tensor([row]))
        samples = sample_masks(model.history_logits(window), config.num_mask_samples, config.tau)  # (S, 1, L)
        full = log_perplexity(model.mtpp, window)
        left = [log_perplexity(model.mtpp, rebuilt) for rebuilt in rebuilt_windows(model, window, 1 - samples)]
        losses = [(full - each - np.log(config.epsilon)).clamp(min=0) for each in left]
        loss = torch.stack(losses).mean() + config.alpha * samples.mean()
        loss.backward()
        total += float(loss.detach()) / len(windows.times)
    return total


def training_step(model: DistillerModel, fetch: Callable[[], Batch]) -> Callable[[], None]:
    """A whole step, as `Trainer` makes it."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters)

    def step() -> None:
        model(**fetch()).loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


# --- the bare parts of a step, each on tensors that lie ready


def bare_network(model: DistillerModel, batch: Batch) -> Callable[[], DistillerModel]:
    """The distiller's own network, forward and backward, with cached inputs from the MTPP. Returns the network."""
    network: Any = copy.deepcopy(model)
    window = window_of(batch)
    if isinstance(network, RankingDistillerModel):
        levels = torch.tensor(network.config.gate_levels)[:, None, None].expand(-1, *window.history.shape)
        slopes = network._slopes(window, levels)
        network._slopes = lambda *_: slopes  # as many prefixes as levels, so it serves both passes

    def step() -> DistillerModel:
        network.zero_grad(set_to_none=True)
        if isinstance(network, RankingDistillerModel):
            torch.stack(network._scores_of_passes(window)).square().sum().backward()
        else:
            network.history_logits(window).square().sum().backward()
        return network

    return step


def bare_mtpp(model: EHDDistillerModel, batch: Batch) -> Callable[[], None]:
    """Likelihood of the N rebuilt histories of every window, forward and backward to the masks."""
    samples = model.config.num_mask_samples
    keep = (torch.rand(samples * len(batch["times"]), HISTORY) > 0.5).float()
    times, marks, mask = (batch[name].repeat(samples, 1) for name in ("times", "marks", "mask"))
    if model.config.rebuilder == "gate":
        inputs: Any = (times, marks, mask)
        leaves, options = {"keep": keep}, {"num_last": FUTURE}
    else:
        rebuilt, weights = select(times, marks, mask, torch.cat([keep, torch.ones(len(keep), FUTURE)], dim=1))
        inputs = (rebuilt.times.requires_grad_(), rebuilt.marks, rebuilt.mask)
        leaves, options = (
            {"mark_weights": weights},
            {"positions": keep.sum(1, keepdim=True).long() + torch.arange(FUTURE)},
        )

    def step() -> None:
        fresh = {name: leaf.clone().requires_grad_() for name, leaf in leaves.items()}
        model.mtpp.event_log_prob(*inputs, **fresh, **options).log_prob.sum().backward()

    return step


def bare_slopes(model: RankingDistillerModel, batch: Batch) -> Callable[[], None]:
    """The slopes of dppl that a step reads: as many settings of the gates, forward and backward."""
    gates = torch.rand(model.num_evaluations, len(batch["times"]), HISTORY)
    return lambda: keep_gradient(model.mtpp, window_of(batch), gates, conditioning=model.config.conditioning)


def bare_masks(model: RankingDistillerModel, batch: Batch) -> Callable[[], None]:
    """The likelihoods of the masks that a step evaluates."""
    masks: list[Tensor] = []
    watched: Any = copy.deepcopy(model)

    def watch(window: Window, kept: Tensor) -> Tensor:
        masks.extend([window.history[None], kept])  # the whole history too: dppl compares with it
        return model._drops(window, kept)

    watched._drops = watch
    watched(**batch)
    kept = torch.cat(masks).flatten(0, 1)  # (P B, L)
    rows = torch.arange(len(batch["times"])).repeat(len(kept) // len(batch["times"]))
    options = {"conditioning": model.config.conditioning}
    return lambda: log_perplexity_of_masks(model.mtpp, window_of(batch), kept, rows, **options)


def measure(repeats: int, size: int = 128) -> Iterator[Row]:
    store, batch = make_store(), make_batch(size)
    generator = torch.Generator().manual_seed(0)
    few = {name: value[:4] for name, value in batch.items()}

    def fetch() -> Batch:
        return store.__getitems__(torch.randint(len(store), (size,), generator=generator))

    for name, model in (
        ("the paper's distiller, select", make_distiller()),
        ("the paper's distiller, gate", make_distiller(rebuilder="gate")),
        ("the ranking distiller", make_distiller(RankingDistillerModel)),
    ):
        model.train()
        parts = [bare_network(model, batch)]
        if isinstance(model, RankingDistillerModel):
            parts += [bare_slopes(model, batch), bare_masks(model, batch)]
        else:
            parts.append(bare_mtpp(model, batch))
        seconds = time_interleaved([training_step(model, lambda: batch), fetch, *parts], repeats).T
        step, fetching, network, bare = seconds[0], seconds[1], seconds[2], seconds[2:].sum(0)
        yield summarize(f"training step, {name} / the sum of its bare parts", step / bare, "<= 1.25")
        yield summarize(f"training step, {name}: share of its network in the bare parts", network / bare)
        yield summarize(f"training step, {name}: share of data", fetching / (fetching + step), "< 0.03")
        yield summarize(f"windows per second in training, {name} (batch {size})", size / (fetching + step))
    model = make_distiller().train()
    calls = [lambda: one_at_a_time_step(model, few), training_step(model, lambda: batch)]
    plain, ours = time_interleaved(calls, repeats).T
    yield summarize(
        "a window's training, the paper's distiller: looped rebuild, batch 1 / ours", plain / 4 * size / ours
    )
