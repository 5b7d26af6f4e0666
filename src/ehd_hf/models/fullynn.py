# No `from __future__ import annotations` here: it would disable the type checks of the config fields.
"""FullyNN with marks: a monotone network gives the compensators, its derivative the intensities (after Omi et al.).

The silence tau since the last event enters as log(1 + tau / scale) and rises through layers with positive weights
to `num_components` bounded, increasing curves z_j(tau); one more component is the straight line tau / mean interval.
Each component carries a positive amplitude A_j(history), and hands its events out to marks by a fixed distribution
E[m | j] (the last, linear layer with positive weights):

    compensator_m(tau) = sum_j E[m | j] A_j (z_j(tau) - z_j(0))      0 at 0, unbounded: a proper density
    intensity_m(tau)   = sum_j E[m | j] A_j z_j'(tau)

Since E sums to 1 over marks, the total compensator never touches the marks, and an observed mark needs one row of E:
the likelihood costs the same for 3 and for 5,000 marks.
"""

import math
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel

from .gated_lstm import GatedHistoryEncoder, gate_padding, last_kept_times
from .point_process import MTPPConfig, MTPPModel

sigmoid_backward = torch.ops.aten.sigmoid_backward

# Lower bound of the straight component's amplitude: events remain possible after any silence.
_SMALLEST_TAIL = 1e-3
_LARGEST_LOG_AMPLITUDE = 8.0
# Quantiles of the training intervals at which the logarithmic time features bend.
_SCALE_QUANTILES = (0.05, 0.25, 0.75)


@strict
class FullyNNConfig(MTPPConfig):
    """Config of `FullyNNModel`; the defaults are the paper's for StackOverflow.

    Args:
        embedding_size: width of the mark embedding.
        hidden_size: width of the history state (the paper's "history embedding").
        num_components: width of the monotone network (the paper's "intensity vector").
        num_layers: depth of the monotone network.
    """

    model_type = "fullynn"

    embedding_size: int = 32
    hidden_size: int = 32
    num_components: int = 32
    num_layers: int = 2

    def __post_init__(self, **kwargs: Any) -> None:
        for name in ("embedding_size", "hidden_size", "num_components", "num_layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")
        super().__post_init__(**kwargs)


class MonotoneLinear(nn.Module):
    """A linear map whose output rises with every input: weights are softplus of free parameters."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.raw_weight = nn.Parameter(torch.empty(out_features, in_features))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # About 1 / width in effect: larger positive weights saturate tanh and the model ignores its history.
        width = self.raw_weight.shape[1]
        with torch.no_grad():
            effect = (torch.rand_like(self.raw_weight) + 0.5) / width
            self.raw_weight.copy_(torch.log(torch.expm1(effect)))

    def weight(self) -> Tensor:
        """The positive weights (out_features, in_features)."""
        return F.softplus(self.raw_weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.weight())


class FullyNNModel(MTPPModel):
    """Marked FullyNN on the MTPP contract. Values and derivatives go through the monotone network together: one pass
    for all marks, no autograd in the likelihood, so it works under `no_grad` and trains without a double backward."""

    config_class = FullyNNConfig
    time_scales: Tensor

    def __init__(self, config: FullyNNConfig) -> None:
        super().__init__(config)
        num_scales, width = len(_SCALE_QUANTILES), config.num_components
        self.register_buffer("time_scales", torch.tensor([0.1, 0.3, 1.0]))
        self.register_buffer("mean_interval", torch.tensor(1.0))
        self.encoder = GatedHistoryEncoder(config.num_marks, config.embedding_size, num_scales, config.hidden_size)
        self.time_layers = nn.ModuleList(
            MonotoneLinear(num_scales if layer == 0 else width, width) for layer in range(config.num_layers)
        )
        self.history_layers = nn.ModuleList(nn.Linear(config.hidden_size, width) for _ in range(config.num_layers))
        self.amplitude = nn.Linear(config.hidden_size, width + 1)
        self.emission_logits = nn.Parameter(torch.empty(config.num_marks, width + 1))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
        if module is self.amplitude:
            # Amplitudes that sum to about 1, whatever the width.
            nn.init.constant_(module.bias, -math.log(self.config.num_components))
        elif module is self:
            # Components that differ in their marks from the start learn several times faster.
            nn.init.normal_(self.emission_logits, std=2.0)

    def fit_time_scale(self, intervals: Tensor) -> None:
        positive = intervals[intervals > 0].double()
        if len(positive) == 0:
            raise ValueError("The time scale needs positive intervals; got none. Check that times are not all tied.")
        # By sorting, since torch.quantile refuses more than 16 million values.
        position = positive.new_tensor(_SCALE_QUANTILES) * (len(positive) - 1)
        scales = positive.sort().values[position.round().long()]
        self.time_scales.copy_(scales)
        self.mean_interval.copy_(positive.mean())

    # --- the MTPP contract

    def encode_history(
        self, times: Tensor, marks: Tensor, mask: Tensor, keep: Tensor | None, mark_weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        keep = gate_padding(keep, mask, times.dtype)
        last_times = last_kept_times(times, keep)
        features, _ = self._time_features((times - last_times[:, :-1]).clamp(min=0))
        return self.encoder(features, marks, keep, mark_weights), last_times

    def score_intervals(self, states: Tensor, intervals: Tensor, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rise, slope = self._components(states, intervals)
        amplitudes, tail = self._amplitudes(states)
        compensator = (amplitudes * rise).sum(-1) + tail * intervals
        intensities = amplitudes * slope  # (..., components)
        total = (intensities.sum(-1) + tail).log()
        emission, of_tail = self._emission()
        observed = (F.embedding(marks, emission) * intensities).sum(-1) + of_tail[marks] * tail
        return total, observed.log(), compensator

    def total_compensator(self, states: Tensor, intervals: Tensor) -> Tensor:
        rise, _ = self._components(states, intervals)
        amplitudes, tail = self._amplitudes(states)
        return (amplitudes * rise).sum(-1) + tail * intervals

    def mark_intensities(self, states: Tensor, intervals: Tensor) -> Tensor:
        _, slope = self._components(states, intervals)
        amplitudes, tail = self._amplitudes(states)
        intensities, tail = amplitudes * slope, tail[..., None]
        emission, of_tail = self._emission()
        return F.linear(intensities, emission) + tail * of_tail

    # --- its parts

    def _time_features(self, intervals: Tensor) -> tuple[Tensor, Tensor]:
        """log(1 + tau / scale) for each scale, and its derivative with respect to tau: (..., F) each."""
        scales = self.time_scales.to(intervals.dtype)
        return torch.log1p(intervals[..., None] / scales), 1.0 / (scales + intervals[..., None])

    def _amplitudes(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Amplitudes of the bounded components (..., components), and the slope (...) of the straight one."""
        weight, bias = self.amplitude.weight, self.amplitude.bias
        # An exponential lets the history multiply marks in and out, as a softmax would; the cap keeps it finite.
        amplitudes, straight = (
            torch.exp(F.linear(states, weight[part], bias[part]).clamp(max=_LARGEST_LOG_AMPLITUDE))
            for part in (slice(0, -1), slice(-1, None))
        )
        return amplitudes, (straight[..., 0] + _SMALLEST_TAIL) / self.mean_interval.to(straight.dtype)

    def _emission(self) -> tuple[Tensor, Tensor]:
        """E[m | j] of the bounded components (C, components), and of the straight one (C,)."""
        emission = self.emission_logits.softmax(dim=0)
        return emission[:, :-1].contiguous(), emission[:, -1]

    def _components(self, states: Tensor, intervals: Tensor) -> tuple[Tensor, Tensor]:
        """z(tau) - z(0) and z'(tau) of every bounded component: (..., components) each.

        tanh(x) is 1 - 2 s with s = sigmoid(-2x), in a fifth of the time on a CPU. What goes from layer to layer is s;
        the constants around it are part of the weights.
        """
        shape = (*intervals.shape, self.config.num_components)
        states = states.reshape(-1, states.shape[-1])
        value, slope = self._time_features(intervals.reshape(-1))
        floor: Tensor | None = None  # the same at tau = 0, where the features are 0
        for time_layer, history_layer in zip(self.time_layers, self.history_layers, strict=True):
            assert isinstance(time_layer, MonotoneLinear) and isinstance(history_layer, nn.Linear)  # a list of modules
            weight, bias = time_layer.weight(), -2 * history_layer.bias
            rises = -2 * weight.t()
            if floor is not None:  # this layer reads 1 - 2 s
                bias, rises = bias - 2 * weight.sum(1), 4 * weight.t()
            history = F.linear(states, -2 * history_layer.weight, bias)
            value = torch.addmm(history, value, rises).sigmoid_()
            floor = torch.sigmoid(history) if floor is None else torch.addmm(history, floor, rises).sigmoid_()
            slope = sigmoid_backward(slope @ (4 * weight.t()), value)  # the derivative of tanh is 4 s (1 - s)
        assert floor is not None  # there is a layer
        return (2 * (floor - value)).view(shape), slope.view(shape)


AutoConfig.register("fullynn", FullyNNConfig)
AutoModel.register(FullyNNConfig, FullyNNModel)
