# No `from __future__ import annotations` here: it would disable the type checks of the config fields.
"""The network all distillers share: an encoder over the future, a decoder over the history that attends to it."""

from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .distiller import DistillerConfig
from .window import Window

# Time features bend at these multiples of the mean interval, from seconds to seasons of it.
_SCALE_FACTORS = (0.01, 0.1, 1.0)
# Longest memory whose attention weights are simply written out.
_LONGEST_PLAIN_MEMORY = 128
# Without gradients, so many windows are read at a time: their activations stay in the caches.
_WINDOWS_AT_ONCE = 128


@strict
class WindowEncoderConfig(DistillerConfig):
    """What the configs of all distillers with a window encoder say: widths of event embedding, model, query/key/value
    and feed-forward layers, and numbers of heads and layers."""

    input_size: int = 32
    hidden_size: int = 64
    attention_size: int = 32
    num_heads: int = 4
    feed_forward_size: int = 128
    num_encoder_layers: int = 2
    num_decoder_layers: int = 2

    attribute_map = DistillerConfig.attribute_map | {
        "num_attention_heads": "num_heads",
        "intermediate_size": "feed_forward_size",
        "num_hidden_layers": "num_decoder_layers",
    }

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size must be even, for pairs of sine and cosine; got {self.hidden_size}.")
        if self.attention_size % self.num_heads:
            sizes = f"{self.attention_size} and {self.num_heads}"
            raise ValueError(f"attention_size must be a multiple of num_heads; got {sizes}.")


class Attention(nn.Module):
    """Multi-head attention whose query, key and value width may differ from the model's."""

    def __init__(self, config: WindowEncoderConfig) -> None:
        super().__init__()
        width, attention_width = config.hidden_size, config.attention_size
        self.config, self.num_heads = config, config.num_heads
        self.query = nn.Linear(width, attention_width)
        self.key_value = nn.Linear(width, 2 * attention_width)
        self.output = nn.Linear(attention_width, width)

    def forward(self, inputs: Tensor, memory: Tensor, memory_mask: Tensor | None) -> Tensor:
        """inputs (B, N, D) attend to memory (B, M, D) where memory_mask (B, M) is True; everywhere if it is None."""
        scale = (self.query.out_features // self.num_heads) ** -0.5
        query = F.linear(inputs, self.query.weight * scale, self.query.bias * scale)
        query = query.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        key, value = self.key_value(memory).unflatten(-1, (2, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        allowed = None if memory_mask is None else memory_mask[:, None, None, :]
        return self.output(self.attend(query, key, value, allowed).flatten(2))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
        """Scaled heads (B, H, N, D) attend to (B, H, M, D) where `allowed` (B, 1, 1, M) is True: (B, N, H, D)."""
        how = self.config._attn_implementation
        # For short memories and narrow heads, two plain products take less time on a CPU than sdpa's tiled kernel.
        if how == "eager" or (key.shape[2] <= _LONGEST_PLAIN_MEMORY and key.device.type == "cpu"):
            return _plain_attention(query, key, value, allowed)
        attend = ALL_ATTENTION_FUNCTIONS[how]
        return attend(self, query, key, value, allowed, dropout=0.0, scaling=1.0, is_causal=False)[0]


def _plain_attention(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor | None) -> Tensor:
    # A softmax is fast over whole vectors only, so the memory is filled up to one.
    missing = -key.shape[2] % 8
    if missing:
        key, value = (F.pad(each, (0, 0, 0, missing)) for each in (key, value))
    scores = query @ key.transpose(2, 3)
    lowest = torch.finfo(scores.dtype).min  # finite: a row may have no memory at all
    if allowed is not None:
        scores[..., : allowed.shape[3]].masked_fill_(~allowed, lowest)
    if missing:
        scores[..., -missing:] = lowest
    # The product with the narrow side first: a third of the time of the other order.
    return (value.transpose(2, 3) @ scores.softmax(-1).transpose(2, 3)).permute(0, 3, 1, 2)


class Layer(GradientCheckpointingLayer):
    """Self-attention, cross-attention if there is a context, feed-forward; each normalised first."""

    def __init__(self, config: WindowEncoderConfig, cross: bool) -> None:
        super().__init__()
        width, inner_width = config.hidden_size, config.feed_forward_size
        self.self_norm, self.self_attention = nn.LayerNorm(width), Attention(config)
        if cross:
            self.cross_norm, self.cross_attention = nn.LayerNorm(width), Attention(config)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, inner_width), nn.GELU(), nn.Linear(inner_width, width))

    def forward(
        self, inputs: Tensor, mask: Tensor | None, context: Tensor | None = None, context_mask: Tensor | None = None
    ) -> Tensor:
        normed = self.self_norm(inputs)
        inputs = inputs + self.self_attention(normed, normed, mask)
        if context is not None:
            inputs = inputs + self.cross_attention(self.cross_norm(inputs), context, context_mask)
        return inputs + self.feed_forward(self.feed_norm(inputs))


class WindowEncoder(nn.Module):
    """Reads a window: (B, L, width) for its history, each event seen in the light of the future.

    No causal masks. Positions count from the split (history ..., -2, -1, future 0, 1, ...), so that one model serves
    histories of any length; times enter as the interval before an event and its distance from the split.
    """

    def __init__(self, config: WindowEncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.mark_input = nn.Embedding(config.mtpp_config.num_marks, config.input_size)
        self.time_input = nn.Linear(2 * len(_SCALE_FACTORS), config.input_size)
        self.input = nn.Linear(config.input_size, width)
        self.encoder_layers = nn.ModuleList(Layer(config, cross=False) for _ in range(config.num_encoder_layers))
        self.decoder_layers = nn.ModuleList(Layer(config, cross=True) for _ in range(config.num_decoder_layers))
        self.future_norm, self.history_norm = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, window: Window, mean_interval: Tensor, history_features: Tensor | None = None) -> Tensor:
        """States (B, L, width) of the history's events, to whose embeddings `history_features` are added."""
        if len(window.times) > _WINDOWS_AT_ONCE and not torch.is_grad_enabled():
            pieces = torch.arange(len(window.times), device=window.times.device).split(_WINDOWS_AT_ONCE)
            features = (None if history_features is None else history_features[piece] for piece in pieces)
            return torch.cat(
                [self(window.rows(piece), mean_interval, part) for piece, part in zip(pieces, features, strict=True)]
            )
        mask, num_history = window.mask, window.num_history
        embedded = self._embed(window.times, window.marks, mask, num_history, mean_interval)
        history, future = embedded[:, :num_history], embedded[:, num_history:]
        if history_features is not None:
            history = history + history_features
        # Attention without a mask is faster; padded batches are the exception.
        is_full = bool(mask.all())
        history_mask, future_mask = (None, None) if is_full else (mask[:, :num_history], mask[:, num_history:])
        for layer in self.encoder_layers:
            future = layer(future, future_mask)
        future = self.future_norm(future)
        for layer in self.decoder_layers:
            history = layer(history, history_mask, future, future_mask)
        return self.history_norm(history)

    def _embed(self, times: Tensor, marks: Tensor, mask: Tensor, num_history: int, mean_interval: Tensor) -> Tensor:
        scales = mean_interval * times.new_tensor(_SCALE_FACTORS)
        # Padding repeats the time before it, so that it neither hides nor makes an interval.
        filled = times.masked_fill(~mask, 0.0).cummax(dim=1).values
        split = filled[:, num_history - 1 : num_history] if num_history else torch.zeros_like(filled[:, :1])
        interval = filled.diff(dim=1, prepend=torch.zeros_like(filled[:, :1])).clamp(min=0)
        distance = (filled - split).abs()
        features = torch.log1p(torch.stack([interval, distance], dim=-1)[..., None] / scales).flatten(-2)
        # Fold the two linear layers into one; a mark then contributes one table row. Clone the weights: results must
        # not depend on memory alignment.
        weight = self.input.weight.clone()
        by_mark = F.linear(self.mark_input.weight.clone(), weight)
        by_time = weight @ self.time_input.weight.clone()
        bias = F.linear(self.time_input.bias.clone(), weight, self.input.bias)
        inputs = F.linear(features, by_time, bias) + F.embedding(marks, by_mark)
        counted = mask[:1] if bool(mask.all()) else mask  # without padding, every row counts alike
        position = counted.cumsum(1) - counted[:, :num_history].sum(1, keepdim=True) - 1
        return inputs + sinusoids(position, inputs.shape[-1], inputs.dtype)


def sinusoids(position: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """Sinusoidal encoding (..., width) of whole positions, negative ones included."""
    frequency = torch.exp(
        torch.arange(0, width, 2, device=position.device, dtype=dtype)
        * (-torch.log(torch.tensor(1e4)) / width).to(dtype)
    )
    angle = position[..., None].to(dtype) * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)
