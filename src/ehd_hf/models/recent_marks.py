"""A path for "this sequence's own recent marks": decaying counts of the kept events, mixed into the mark distribution.

With c_r[m] the number of kept events of mark m, each worth decay_r per kept event since, and weights w from the state,

    p(m) = w_0 p_state(m) + sum_r w_r (c_r[m] + prior_r / C) / (sum_m c_r[m] + prior_r)

A deleted event adds no count and makes no other count older, so deletion stays exact.

Shapes: B batch, T events, C marks, R decays, D width of the backbone's own state.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Decays to begin with: counts that remember about 2 and about 20 events.
_DECAYS = (0.5, 0.95)
# Positions whose mutual weights are held at once, so that memory grows with the length and not with its square.
_BLOCK = 128


class RecentMarks(nn.Module):
    """Counts of recent marks as a part of the history state, and what they say of the next mark."""

    def __init__(self, num_marks: int, state_size: int) -> None:
        super().__init__()
        self.num_marks, self.state_size = num_marks, state_size
        self.decay_logits = nn.Parameter(torch.empty(len(_DECAYS)))
        self.log_prior = nn.Parameter(torch.empty(len(_DECAYS)))
        self.mixing = nn.Linear(state_size, 1 + len(_DECAYS))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        decays = self.decay_logits.new_tensor(_DECAYS)
        with torch.no_grad():
            self.decay_logits.copy_(decays.logit())
            self.log_prior.zero_()

    def forward(self, marks: Tensor, gates: Tensor, mark_weights: Tensor | None) -> Tensor:
        """Counts before each event and after all, (B, T + 1, R * C). `gates` (B, T) in [0, 1]: how far each event is
        kept; `mark_weights` as in `MTPPModel.event_log_prob`."""
        once = F.one_hot(marks, self.num_marks).to(gates.dtype)  # (B, T, C)
        weighted = gates if mark_weights is None else gates * mark_weights
        fresh = once * weighted[..., None]
        # Each kept event makes those before it older: log of the share that a count keeps.
        aging = torch.log1p(gates[..., None] * (torch.sigmoid(self.decay_logits).to(gates.dtype) - 1))  # (B, T, R)
        carried = fresh.new_zeros(len(marks), len(_DECAYS), self.num_marks)
        counts = [carried[:, None]]
        for start in range(0, marks.shape[1], _BLOCK):
            block = slice(start, start + _BLOCK)
            age = aging[:, block].cumsum(1).transpose(1, 2)  # (B, R, t)
            since = (age[..., :, None] - age[..., None, :]).tril()  # of event j, after event i >= j
            kept = since.exp().tril()
            inside = kept @ fresh[:, None, block]  # (B, R, t, C)
            inside = inside + age.exp()[..., None] * carried[:, :, None]
            carried = inside[:, :, -1]
            counts.append(inside.transpose(1, 2))
        return torch.cat(counts, dim=1).flatten(2)

    def step(self, counts: Tensor, marks: Tensor) -> Tensor:
        """Counts (B, R * C) after one more event of `marks` (B,)."""
        decays = torch.sigmoid(self.decay_logits).to(counts.dtype)
        aged = counts.unflatten(-1, (-1, self.num_marks)) * decays[:, None]
        return (aged + F.one_hot(marks, self.num_marks)[:, None]).flatten(1)

    def without_each(self, marks: Tensor, mask: Tensor, dtype: torch.dtype) -> Tensor:
        """Counts after all events, then after all but each one: (1 + T, B, R * C)."""
        gates, decays = mask.to(dtype), torch.sigmoid(self.decay_logits).to(dtype)
        since = gates.flip(1).cumsum(1).flip(1) - gates  # kept events after each
        weights = decays ** since[..., None] * gates[..., None]  # (B, T, R)
        counts = F.one_hot(marks, self.num_marks).to(dtype)[:, :, None] * weights[..., None]  # (B, T, R, C)
        total, earlier = counts.sum(1), counts.cumsum(1) - counts
        # Deleting an event makes those before it one kept event younger.
        without = total[:, None] - counts + earlier * (1 / decays - 1)[:, None]
        return torch.cat([total[:, None], without], dim=1).transpose(0, 1).flatten(2)

    def log_probs(
        self, states: Tensor, own: Tensor, counts: Tensor, marks: Tensor | None, context: Tensor | None = None
    ) -> Tensor:
        """log p(m) of `marks` (...), or of every mark (..., C): `own` is what the backbone says of the same,
        given `states` (..., D); `counts` (..., R * C). Marks of `context` (C,) have none."""
        counts = counts.unflatten(-1, (len(_DECAYS), self.num_marks))
        prior, number = self.log_prior.to(counts.dtype).exp(), self.num_marks  # (R,)
        if context is not None:
            counts, number = counts.masked_fill(context, 0.0), int((~context).sum())
        log_total = torch.log(counts.sum(-1) + prior)
        if marks is not None:
            index = marks[..., None, None].expand(*marks.shape, len(_DECAYS), 1)
            counts = counts.gather(-1, index)
        recent = torch.log(counts + (prior / number)[:, None]) - log_total[..., None]  # (..., R, 1 or C)
        if context is not None and marks is None:
            recent = recent.masked_fill(context, -torch.inf)
        weights = self.mixing(states).log_softmax(-1)[..., None]  # (..., 1 + R, 1)
        own = own[..., None, None] if marks is not None else own[..., None, :]
        mixed = torch.logsumexp(torch.cat([own, recent], dim=-2) + weights, dim=-2)
        return mixed[..., 0] if marks is not None else mixed


def gates_of(keep: Tensor | None, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """How far each event is kept, (B, T): 0 on padding, `keep` (B, G) for the first G positions, 1 behind them."""
    gates = mask.to(dtype)
    if keep is None:
        return gates
    length = keep.shape[1]
    return torch.cat([keep.to(dtype) * gates[:, :length], gates[:, length:]], dim=1)
