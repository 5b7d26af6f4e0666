# No `from __future__ import annotations` here: it would disable the type checks of the config fields.
"""Attention over the past, with the decoder of LogNormMix: what users of transformers expect of an event model.

Events know each other by how long ago they happened and by how many kept events lie between, never by their index, so
that deleting one leaves no trace. Each attends to those before it; then, for every position, learnt queries attend to
the events before it, seen from the last kept one, and what they gather is the state of the history. A start token that
is always kept stands for an empty past.

A gate multiplies exp(score): log keep is added to the scores. A deleted event weighs nothing, in every layer, and what
it attends to itself nobody reads: at 0 and 1 this is deletion.
"""

from typing import Any, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .gated_lstm import gate_padding, last_kept_times
from .lognormmix import LogNormMixConfig, LogNormMixModel

# Added to gates before the logarithm: a deleted event weighs nothing, but has a slope.
_TINY = 1e-30
# Longest memory whose attention weights are simply written out: the same to the bit with gradients and without.
_LONGEST_PLAIN_MEMORY = 512


@strict
class AttentionConfig(LogNormMixConfig):
    """Config of `AttentionModel`: `num_layers` in which events attend to each other before they are read."""

    model_type = "attention"
    attribute_map = LogNormMixConfig.attribute_map | {
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "num_layers",
    }

    mark_mode: Literal["history", "interval"] = "interval"
    hidden_size: int = 64
    num_heads: int = 8
    num_layers: int = 1

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.hidden_size % self.num_heads:
            sizes = f"{self.hidden_size} and {self.num_heads}"
            raise ValueError(f"hidden_size must be a multiple of num_heads; got {sizes}.")


class RelativeAttention(nn.Module):
    """Attention whose scores also depend on lags in time and in kept events, then a feed-forward layer."""

    def __init__(self, config: AttentionConfig, num_features: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.config, self.num_heads = config, config.num_heads
        self.query_norm, self.memory_norm, self.feed_norm = (nn.LayerNorm(width) for _ in range(3))
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, width)
        self.lag_scores = nn.Linear(num_features, config.num_heads, bias=False)
        self.feed_forward = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, inputs: Tensor, memory: Tensor, lags: Tensor, log_gates: Tensor) -> Tensor:
        """inputs (B, Q, D) attend to memory (B, M, D), given features of lags (B, Q, M, F) and log_gates (B, Q, M)."""
        query = self.query(self.query_norm(inputs)).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        pair = self.key_value(self.memory_norm(memory)).unflatten(-1, (2, self.num_heads, -1))
        key, value = pair.permute(2, 0, 3, 1, 4)  # (B, H, M, D / H) each
        scores = self.lag_scores(lags).permute(0, 3, 1, 2) + log_gates[:, None]  # (B, H, Q, M)
        implementation = self.config._attn_implementation or "sdpa"
        if implementation == "eager" or (memory.shape[1] <= _LONGEST_PLAIN_MEMORY and memory.device.type == "cpu"):
            weights = (query @ key.transpose(2, 3) * query.shape[-1] ** -0.5 + scores).softmax(-1)
            gathered = (weights @ value).transpose(1, 2)
        else:
            attend = ALL_ATTENTION_FUNCTIONS[implementation]
            gathered = attend(self, query, key, value, scores, dropout=0.0, is_causal=False)[0]
        hidden = inputs + self.output(gathered.flatten(2))
        return hidden + self.feed_forward(self.feed_norm(hidden))


class AttentionEncoder(nn.Module):
    """Events -> the state of the kept history before each of them, and after all: (B, T + 1, D)."""

    def __init__(self, config: AttentionConfig, num_time_features: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.mark_embedding = nn.Embedding(config.num_marks, width)
        self.time_input = nn.Linear(num_time_features, width)
        self.start, self.reader = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        num_features = num_time_features + 1  # and the number of events between
        self.layers = nn.ModuleList(RelativeAttention(config, num_features) for _ in range(config.num_layers))
        self.readout = RelativeAttention(config, num_features)
        self.norm = nn.LayerNorm(width)

    def forward(
        self,
        marks: Tensor,
        mark_weights: Tensor | None,
        intervals: Tensor,
        lags: Tensor,
        read_lags: Tensor,
        log_gates: Tensor,
    ) -> Tensor:
        """Of marks (B, T) and features of the intervals before them (B, T, F). Features of lags: `lags` (B, T + 1,
        T + 1, F) between the start and the events, `read_lags` from the last kept event before each position.
        log_gates: (B, T + 1), of the start first."""
        embedded = self.mark_embedding(marks)
        if mark_weights is not None:
            embedded = embedded * mark_weights[..., None]
        events = embedded + self.time_input(intervals)
        size = events.shape[1] + 1
        memory = torch.cat([self.start.expand(len(events), 1, -1), events], dim=1)
        earlier = torch.ones(size, size, dtype=torch.bool, device=events.device).tril()
        # An event hears itself whatever its gate: without one, its score is what it would have been.
        itself = torch.eye(size, dtype=torch.bool, device=events.device)
        lowest = torch.finfo(events.dtype).min
        read = log_gates[:, None].masked_fill(~earlier, lowest)
        heard = read.masked_fill(itself, 0.0)
        for layer in self.layers:
            memory = layer(memory, memory, lags, heard)
        readers = self.reader.expand(len(events), size, -1)
        return self.norm(self.readout(readers, memory, read_lags, read))


class AttentionModel(LogNormMixModel):
    """Attention over the kept past on the MTPP contract; likelihood and survival are those of `LogNormMixModel`."""

    config_class = AttentionConfig
    _supports_sdpa = True

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__(config)
        self.encoder = AttentionEncoder(config, len(self.time_scales))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RelativeAttention):
            # Heads look back over spans from the last event to all of the past.
            weight = module.lag_scores.weight
            with torch.no_grad():
                weight.zero_()
                weight[:, -1] = -torch.logspace(1, -2, len(weight), dtype=weight.dtype)
        elif isinstance(module, AttentionEncoder):
            nn.init.normal_(module.start, std=0.1)
            nn.init.normal_(module.reader, std=0.1)

    def encode_history(
        self, times: Tensor, marks: Tensor, mask: Tensor, keep: Tensor | None, mark_weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        gates = gate_padding(keep, mask, times.dtype)
        last_times = last_kept_times(times, gates)
        intervals = self.time_features((times - last_times[:, :-1]).clamp(min=0))
        weights = torch.ones_like(times)
        if gates is not None:
            weights = torch.cat([gates, weights[:, gates.shape[1] :]], dim=1)
        weights = F.pad(weights, (1, 0), value=1.0)  # (B, T + 1), the start first
        origin = F.pad(times, (1, 0))
        counts = weights.cumsum(1)
        before = counts - weights  # kept events before each, for its own view
        lags = self._lag_features(origin, before, origin, counts)
        read_lags = self._lag_features(last_times, counts, origin, counts)
        padding = F.pad(~mask, (1, 0))
        log_gates = torch.log(weights + _TINY).masked_fill(padding, torch.finfo(times.dtype).min)
        return self.encoder(marks, mark_weights, intervals, lags, read_lags, log_gates), last_times

    def _lag_features(self, since: Tensor, count: Tensor, times: Tensor, counts: Tensor) -> Tensor:
        """Features (B, Q, M, F) of how long before `since` (B, Q) each of `times` (B, M) was, and how many kept events
        lie between, of `count` (B, Q) and `counts` (B, M) from the start."""
        lag = (since[:, :, None] - times[:, None, :]).clamp(min=0)
        between = (count[:, :, None] - counts[:, None, :]).clamp(min=0)
        return torch.cat([self.time_features(lag), torch.log1p(between)[..., None]], dim=-1)


AutoConfig.register("attention", AttentionConfig)
AutoModel.register(AttentionConfig, AttentionModel)
