"""Point processes that can be checked by hand, small random batches, slow references as plain loops, a full disk."""

import dataclasses
import json
import math
import resource
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from ehd_hf.data.sequences import load_events
from ehd_hf.data.sources import load_source
from ehd_hf.data.synthetic import HawkesProcess
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.models.point_process import MTPPConfig, MTPPModel
from ehd_hf.models.window import Window

# Sizes of a distiller that trains in an instant.
TINY = {"input_size": 10, "hidden_size": 16, "attention_size": 8, "num_heads": 2, "feed_forward_size": 12}
TINY |= {"num_encoder_layers": 1, "num_decoder_layers": 1}


def from_lists(times, marks, *, seq_ids=None, starts=None, **keywords):
    """Events of one list of times and one of marks per sequence, perhaps their ids and starts."""
    columns = {"times": list(map(list, times)), "marks": list(map(list, marks))}
    columns |= {} if seq_ids is None else {"seq_id": list(seq_ids)}
    columns |= {} if starts is None else {"start": np.asarray(starts, dtype=np.float64)}
    return load_events(columns, start=None if starts is None else "start", **keywords)


def easytpp_events(rows):
    """EasyTPP rows, as a file of them is read."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        file.write_text(json.dumps(list(rows), default=np.ndarray.tolist))
        return load_source(file)["train"]


def mixed_process():
    """Three marks, a different delay for every pair: nothing is symmetric by accident."""
    branching = [[0.3, 0.5, 0.0], [0.0, 0.2, 0.4], [0.25, 0.0, 0.1]]
    scale = np.array([[0.5, 1.0, 1.0], [1.0, 2.0, 0.3], [0.7, 1.0, 0.5]])
    shape = np.array([[1, 3, 1], [1, 2, 5], [4, 1, 1]])
    return HawkesProcess([0.3, 0.2, 0.1], branching, scale, shape)


def tiny_fullynn(num_marks=6, seed=0, scale=0.0, **config):
    """A small point process; with `scale`, its parameters are far from initialisation, in float64."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = {"embedding_size": 5, "hidden_size": 8, "num_components": 9, "num_layers": 1, **config}
        model = FullyNNModel(FullyNNConfig(num_marks=num_marks, **config))
    return wild(model, scale, seed) if scale else model


def watched(output):
    """What people watch of a distiller's output."""
    return {name: value for name, value in output.items() if name not in ("loss", "logits", "num_items")}


class _Memoryless(MTPPModel):
    """A process whose rates are constant between events: state = the rates (C,), in events per `mean_interval`."""

    def __init__(self, num_marks):
        super().__init__(MTPPConfig(num_marks=num_marks))
        self.register_buffer("mean_interval", torch.tensor(1.0))

    def _init_weights(self, module):
        pass

    def rates_after(self, rates, marks, gates):
        """Rates (B, C) after an event of `marks` (B,), entered as far as `gates` (B, 1) in [0, 1]."""
        raise TypeError("a closed form must define rates_after")

    def encode_history(self, times, marks, mask, keep, mark_weights=None):
        gates = mask.to(times.dtype)
        if keep is not None:  # for the first events; later ones are kept
            gates = torch.cat([keep * gates[:, : keep.shape[1]], gates[:, keep.shape[1] :]], 1)
        weights = torch.ones_like(times) if mark_weights is None else mark_weights
        rates, last = self.base.expand(len(times), -1), times.new_zeros(len(times))
        states, lasts = [rates], [last]
        for i in range(times.shape[1]):
            gate = gates[:, i]
            rates = self.rates_after(rates, marks[:, i], (gate * weights[:, i])[:, None])
            last = (1 - gate) * last + gate * times[:, i]
            states.append(rates)
            lasts.append(last)
        return torch.stack(states, 1), torch.stack(lasts, 1)

    def score_intervals(self, states, intervals, marks):
        rates = states / self.mean_interval
        return rates.sum(-1).log(), rates.gather(-1, marks[..., None])[..., 0].log(), rates.sum(-1) * intervals

    def total_compensator(self, states, intervals):
        return (states / self.mean_interval).sum(-1) * intervals

    def mark_intensities(self, states, intervals):
        return (states / self.mean_interval).expand(*intervals.shape, -1)


class PoissonMTPP(_Memoryless):
    """Marked Poisson process: constant rates per mark, whatever happened. log p(m, tau) = log rate_m - tau sum(rates).

    Args:
        rates: C numbers, events per unit of time (per `mean_interval` after `fit_time_scale`).
    """

    def __init__(self, rates):
        super().__init__(len(rates))
        self.base = nn.Parameter(torch.tensor(rates, dtype=torch.float64))

    def rates_after(self, rates, marks, gates):
        return rates


class AdditiveMTPP(_Memoryless):
    """Each kept event adds a row of `weight` to the rates, for good: rate_m = base_m + sum_e weight[mark_e, m].

    So the likelihood of any future given any kept subset is a line of arithmetic. With weight[e, m] = influence[e] *
    base[m] the history acts through one number, S = sum of the kept influences: rates are base * (1 + S), and with
    survival conditioning (which takes the last kept time out of it) the future's log-likelihood is

        sum_i log(base[m_i] (1 + S + S_i)) - sum_i sum(base) (1 + S + S_i) tau_i,     S_i of the future events before i

    concave in S, and rising as long as the future comes faster than the rates say. There the subset of a given size
    whose removal hurts most is the one with the largest influences: greedy search is exact.

    Args:
        base: C rates of an empty history.
        weight: (C, C) what an event of the row's mark adds to the rate of the column's mark; not negative.
    """

    def __init__(self, base, weight):
        super().__init__(len(base))
        self.base = nn.Parameter(torch.tensor(base, dtype=torch.float64))
        self.weight = nn.Parameter(torch.as_tensor(weight, dtype=torch.float64))

    def rates_after(self, rates, marks, gates):
        return rates + gates * self.weight[marks]


def random_events(num_rows, num_events, num_marks, generator, padding="end", dtype=torch.float64):
    """times, marks, mask (B, T): a quarter of the intervals is 0, and what stands on padding is nonsense.

    padding: "none", "end" (rows of different lengths), "front", or "anywhere".
    """
    gaps = -torch.log(torch.rand(num_rows, num_events, generator=generator, dtype=dtype).clamp(min=1e-6))
    gaps = gaps * (torch.rand(num_rows, num_events, generator=generator) > 0.25)
    times = gaps.cumsum(1)
    marks = torch.randint(num_marks, (num_rows, num_events), generator=generator)
    mask = torch.ones(num_rows, num_events, dtype=torch.bool)
    for row in range(num_rows):
        padded = min(row + 1, num_events)  # rows 0, 1, ... lose 1, 2, ... events; a last one may be empty
        if padding == "end":
            mask[row, num_events - padded :] = False
        elif padding == "front":
            mask[row, :padded] = False
        elif padding == "anywhere":
            mask[row, torch.randperm(num_events, generator=generator)[:padded]] = False
    nonsense = 50 * torch.rand(num_rows, num_events, generator=generator, dtype=dtype)
    return torch.where(mask, times, nonsense), marks, mask


def random_window(num_rows, num_history, num_future, num_marks, seed=0, padding="none", dtype=torch.float64):
    """Random windows; `seed` is a number or a generator."""
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    events = random_events(num_rows, num_history + num_future, num_marks, generator, padding, dtype)
    return Window(*events, num_future)


def slow_log_prob(model, times, marks, keep=None):
    """log p of each event (T,) given the kept ones before it, re-encoding every prefix from scratch.

    times, marks: (T,), no padding. keep: T booleans; everything if not given.
    """
    scores = []
    for i in range(len(times)):
        before = [j for j in range(i) if keep is None or keep[j]]
        kept_times, kept_marks = times[None, before], marks[None, before]
        states, _ = model.encode_history(kept_times, kept_marks, torch.ones_like(kept_marks, dtype=torch.bool), None)
        silence = times[i] - (times[before[-1]] if before else 0.0)
        _, log_intensity, compensator = model.score_intervals(states[0, -1], silence, marks[i])
        scores.append(log_intensity - compensator)
    return torch.stack(scores) if scores else times.new_zeros(0)


def slow_batch_log_prob(model, times, marks, mask, keep=None):
    """`slow_log_prob` of each row's real events, put back in their places: (B, T), 0 on padding."""
    scores = torch.zeros_like(times)
    for row in range(len(times)):
        real = [i for i in range(times.shape[1]) if mask[row, i]]
        kept = None if keep is None else [bool(keep[row, i]) for i in real]
        scores[row, real] = slow_log_prob(model, times[row, real], marks[row, real], kept)
    return scores


def slow_log_perplexity(model, window, row, keep, conditioning="paper", asked=None):
    """log ppl of the future events `asked` (all, if None) of one row: the deleted sequence written out and encoded
    anew; survival as a difference of logs."""
    times, marks, mask, num_history = window.times[row], window.marks[row], window.mask[row], window.num_history
    kept = [i for i in range(num_history) if mask[i] and keep[i] > 0.5]
    where = kept + [i for i in range(num_history, len(times)) if mask[i]]
    scores = slow_log_prob(model, times[where], marks[where])[len(kept) :]
    if conditioning == "survival":
        history = [times[i].item() for i in range(num_history) if mask[i]]
        split, last = max(history, default=0.0), times[kept[-1]].item() if kept else 0.0
        everything = torch.ones(1, len(kept), dtype=torch.bool)
        states, _ = model.encode_history(times[None, kept], marks[None, kept], everything, None)
        silence = times.new_tensor(split - last)
        scores[0] = scores[0] + model.total_compensator(states[0, -1], silence)  # divided by P(silence until split)
    return -scores.mean() if asked is None else -scores[asked].mean()


def wild(model, scale=1.0, seed=0):
    """The model with parameters far from initialisation, in float64 and evaluation mode."""
    generator = torch.Generator().manual_seed(seed)
    model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


# A model to train in an instant, that draws random numbers as it goes.


class RegressionConfig(PreTrainedConfig):
    model_type = "test_regression"
    width: int = 3


@dataclasses.dataclass
class RegressionOutput(ModelOutput):
    loss: torch.Tensor | None = None
    num_items: torch.Tensor | None = None
    mae: torch.Tensor | None = None


class NoisyRegression(PreTrainedModel):
    """Linear regression with dropout. `weights` (B,) are how many items each row counts for, as padding would make."""

    config_class = RegressionConfig

    def __init__(self, config):
        super().__init__(config)
        self.linear = nn.Linear(config.width, 1)
        self.dropout = nn.Dropout(0.25)
        self.post_init()

    def forward(self, inputs, targets, weights):
        errors = self.linear(self.dropout(inputs))[:, 0] - targets
        loss, mae = ((weights * each).sum() / weights.sum() for each in (errors**2, errors.detach().abs()))
        return RegressionOutput(loss=loss, num_items=weights.sum(), mae=mae)


class RegressionData(torch.utils.data.Dataset):
    """targets = inputs @ (1, 2, ..., D) + noise. `fails_at`: the how-manieth fetch raises, as a pulled plug would."""

    def __init__(self, size, width=3, seed=0, fails_at=None):
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(size, width, generator=generator)
        truth = torch.arange(1.0, width + 1)
        self.targets = self.inputs @ truth + 0.1 * torch.randn(size, generator=generator)
        self.weights = torch.randint(1, 6, (size,), generator=generator)
        self.fails_at, self.fetches = fails_at, 0

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, index):
        return {"inputs": self.inputs[index], "targets": self.targets[index], "weights": self.weights[index]}

    def __getitems__(self, indices):
        self.fetches += 1
        if self.fetches == self.fails_at:
            raise KeyboardInterrupt
        return self[torch.as_tensor(indices)]

    @staticmethod
    def collate(batch):
        return batch


def regression(seed=0, width=3):
    torch.manual_seed(seed)
    return NoisyRegression(RegressionConfig(width=width))


def log_grid(lowest, highest, num_points):
    """Points (Q,) evenly spaced in log time, and trapezoid weights for integrals over time."""
    logs = torch.linspace(math.log(lowest), math.log(highest), num_points, dtype=torch.float64)
    points = logs.exp()
    weights = points * (logs[1] - logs[0])
    weights[0] = weights[0] / 2 + points[0]  # from 0 to the first point as a rectangle
    weights[-1] = weights[-1] / 2
    return points, weights


@contextmanager
def largest_file(size):
    """Writes beyond `size` bytes fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def random_sequences(lengths, num_marks=3, seed=0, names=None):
    generator = np.random.default_rng(seed)
    times = [np.cumsum(generator.exponential(size=n)) for n in lengths]
    marks = [generator.integers(num_marks, size=n) for n in lengths]
    return from_lists(times, marks, num_marks=num_marks, seq_ids=names, time_unit="h")
