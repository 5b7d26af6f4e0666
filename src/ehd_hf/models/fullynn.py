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

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel

from .gated_lstm import GatedLSTMConfig, GatedLSTMModel

sigmoid_backward = torch.ops.aten.sigmoid_backward

# Lower bound of the straight component's amplitude: events remain possible after any silence.
_SMALLEST_TAIL = 1e-3
_LARGEST_LOG_AMPLITUDE = 8.0


@strict
class FullyNNConfig(GatedLSTMConfig):
    """Config of `FullyNNModel`; the defaults are the paper's for StackOverflow. `num_components` is the width of the
    monotone network (the paper's "intensity vector"), `num_layers` its depth."""

    model_type = "fullynn"

    num_layers: int = 2


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


class FullyNNModel(GatedLSTMModel):
    """Marked FullyNN on the MTPP contract. Values and derivatives go through the monotone network together: one pass
    for all marks, no autograd in the likelihood, so it works under `no_grad` and trains without a double backward."""

    config_class = FullyNNConfig

    def __init__(self, config: FullyNNConfig) -> None:
        super().__init__(config)
        width = config.num_components
        widths = [len(self.time_scales)] + [width] * config.num_layers
        self.time_layers = nn.ModuleList(MonotoneLinear(inputs, width) for inputs in widths[:-1])
        self.history_layers = nn.ModuleList(nn.Linear(config.hidden_size, width) for _ in range(config.num_layers))
        self.amplitude = nn.Linear(config.hidden_size, width + 1)
        self.emission_logits = nn.Parameter(torch.empty(config.num_marks, width + 1))
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self.amplitude:
            # Amplitudes that sum to about 1, whatever the width.
            nn.init.constant_(module.bias, -math.log(self.config.num_components))
        elif module is self:
            # Components that differ in their marks from the start learn several times faster.
            nn.init.normal_(self.emission_logits, std=2.0)

    def score_state(self, states: Tensor, intervals: Tensor, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rise, slope = self._components(states, intervals)
        amplitudes, tail = self._amplitudes(states)
        compensator = (amplitudes * rise).sum(-1) + tail * intervals
        intensities = amplitudes * slope  # (..., components)
        total = (intensities.sum(-1) + tail).log()
        emission, of_tail = self._emission()
        observed = (F.embedding(marks, emission) * intensities).sum(-1) + of_tail[marks] * tail
        return total, observed.log(), compensator

    def state_compensator(self, states: Tensor, intervals: Tensor) -> Tensor:
        rise, _ = self._components(states, intervals)
        amplitudes, tail = self._amplitudes(states)
        return (amplitudes * rise).sum(-1) + tail * intervals

    def state_intensities(self, states: Tensor, intervals: Tensor) -> Tensor:
        _, slope = self._components(states, intervals)
        amplitudes, tail = self._amplitudes(states)
        intensities, tail = amplitudes * slope, tail[..., None]
        emission, of_tail = self._emission()
        return F.linear(intensities, emission) + tail * of_tail

    # --- its parts

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
        context, logits = self.context, self.emission_logits
        emission = (logits if context is None else logits.masked_fill(context[:, None], -torch.inf)).softmax(dim=0)
        return emission[:, :-1].contiguous(), emission[:, -1]

    def _components(self, states: Tensor, intervals: Tensor) -> tuple[Tensor, Tensor]:
        """z(tau) - z(0) and z'(tau) of every bounded component: (..., components) each.

        tanh(x) is 1 - 2 s with s = sigmoid(-2x), in a fifth of the time on a CPU. What goes from layer to layer is s;
        the constants around it are part of the weights.
        """
        shape = (*intervals.shape, self.config.num_components)
        states = states.reshape(-1, states.shape[-1])
        intervals = intervals.reshape(-1)
        value, slope = self.time_features(intervals), 1.0 / (self.time_scales.to(intervals.dtype) + intervals[:, None])
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
