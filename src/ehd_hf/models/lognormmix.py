# No `from __future__ import annotations` here: it would disable the type checks of the config fields.
"""LogNormMix: the interval is drawn from a mixture of log-normals (after Shchur et al., "Intensity-free learning").

With x(tau) the standardised logarithm of the silence tau since the last event, weights w_k, means mu_k and scales s_k
come from the history, and density and survival are sums of normal ones, with z_k = (x(tau) - mu_k) / s_k:

    density f(tau)  = sum_k w_k phi(z_k) x'(tau) / s_k           survival S(tau) = sum_k w_k Phi(-z_k)
    compensator     = log S(0) - log S(tau) + rate tau           intensity       = f(tau) / S(tau) + rate
    intensity_m     = intensity * p(m | history)                 or p(m | history, tau), see `mark_mode`

All of it is done in log space, so that it stays exact far in the tail. Two choices keep it proper at both ends:
x(tau) = log(tau + shift) takes a tiny shift, so that tied times have a density, and S(0), the mass the shift cuts off,
normalises it. A small constant `rate` competes with the mixture, whose own intensity fades: as in FullyNN, events
remain possible after any silence, and the expected interval is finite.
"""

import math
from typing import Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from .gated_lstm import GatedLSTMConfig, GatedLSTMModel

# In mean intervals: what is added to every silence before its logarithm is taken.
_SHIFT = 1e-5
# Events per mean interval that remain after any silence.
_TAIL_RATE = 1e-4
# Bounds of log s_k: a narrower component could single out one interval, a wider one is flat on any data.
_LOG_SCALE_RANGE = (-4.0, 3.0)
# Lower bound of the standard deviation of log intervals: a metronome's is 0.
_SMALLEST_LOG_STD = 0.1


@strict
class LogNormMixConfig(GatedLSTMConfig):
    """Config of `LogNormMixModel`. `mark_mode`: "history" (given the history, mark and interval are independent: the
    classic model) or "interval" (which marks are likely also depends on how long the silence has lasted)."""

    model_type = "lognormmix"

    mark_mode: Literal["history", "interval"] = "history"
    num_components: int = 16


class LogNormMixModel(GatedLSTMModel):
    """Log-normal mixture on the MTPP contract: likelihood and survival in closed form, nothing integrated."""

    config_class = LogNormMixConfig
    log_mean: Tensor
    log_std: Tensor

    def __init__(self, config: LogNormMixConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        # Of the logarithm of intervals in units of `mean_interval`.
        self.register_buffer("log_mean", torch.tensor(0.0))
        self.register_buffer("log_std", torch.tensor(1.0))
        self.mixture = nn.Linear(width, 3 * config.num_components)
        self.mark_logits = nn.Linear(width, config.num_marks)
        if config.mark_mode == "interval":
            self.mark_interval = nn.Linear(width + len(self.time_scales), width)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if module is self.mixture:
            # Components spread over the bulk of the intervals, so that they differ from the start.
            _, means, log_scales = module.bias.detach().chunk(3)
            means.copy_(torch.linspace(-1.5, 1.5, len(means) + 2)[1:-1])
            log_scales.fill_(math.log(0.7))

    def fit_time_scale(self, intervals: Tensor) -> None:
        super().fit_time_scale(intervals)
        positive = intervals[intervals > 0].double()
        logs = torch.log(positive / positive.mean() + _SHIFT)
        self.log_mean.copy_(logs.mean())
        self.log_std.copy_(logs.std(correction=0).clamp(min=_SMALLEST_LOG_STD))

    def score_state(self, states: Tensor, intervals: Tensor, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total, compensator = self._log_intensity_and_compensator(states, intervals)
        mark_log_prob = self._mark_log_probs(states, intervals).gather(-1, marks[..., None])[..., 0]
        return total, total + mark_log_prob, compensator

    def state_compensator(self, states: Tensor, intervals: Tensor) -> Tensor:
        return self._log_intensity_and_compensator(states, intervals)[1]

    def state_intensities(self, states: Tensor, intervals: Tensor) -> Tensor:
        total, _ = self._log_intensity_and_compensator(states, intervals)
        return torch.exp(total[..., None] + self._mark_log_probs(states, intervals))

    def _mark_log_probs(self, states: Tensor, intervals: Tensor) -> Tensor:
        """log p(m | history), or log p(m | history, tau), of every mark: (..., C)."""
        if self.config.mark_mode == "interval":
            inputs = torch.cat([states, self.time_features(intervals)], dim=-1)
            states = states + torch.tanh(self.mark_interval(inputs))
        context, logits = self.context, self.mark_logits(states)
        return (logits if context is None else logits.masked_fill(context, -torch.inf)).log_softmax(-1)

    def _log_intensity_and_compensator(self, states: Tensor, intervals: Tensor) -> tuple[Tensor, Tensor]:
        """log intensity of all marks after a silence, and its integral over the silence: (...) each."""
        logits, means, log_scales = self.mixture(states).chunk(3, dim=-1)  # (..., components) each
        log_weights, log_scales = logits.log_softmax(-1), log_scales.clamp(*_LOG_SCALE_RANGE)
        mean_interval, log_std = self.mean_interval.to(intervals.dtype), self.log_std.to(intervals.dtype)

        def standardised(log_silence: Tensor) -> Tensor:  # z_k
            return ((log_silence[..., None] - self.log_mean) / log_std - means) * torch.exp(-log_scales)

        def log_survival(z: Tensor) -> Tensor:
            return torch.logsumexp(log_weights + torch.special.log_ndtr(-z), dim=-1)

        silence = intervals / mean_interval
        log_silence = torch.log(silence + _SHIFT)
        z = standardised(log_silence)
        survived = log_survival(z)
        start = log_survival(standardised(torch.log(torch.zeros_like(silence) + _SHIFT)))
        log_density = torch.logsumexp(log_weights - log_scales - 0.5 * z * z, dim=-1) - log_silence - log_std.log()
        hazard = log_density - 0.5 * math.log(2 * math.pi) - survived
        tail = hazard.new_tensor(math.log(_TAIL_RATE))
        return torch.logaddexp(hazard, tail) - mean_interval.log(), start - survived + _TAIL_RATE * silence


AutoConfig.register("lognormmix", LogNormMixConfig)
AutoModel.register(LogNormMixConfig, LogNormMixModel)
