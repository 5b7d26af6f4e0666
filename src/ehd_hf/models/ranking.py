# No `from __future__ import annotations` here: it would disable the type checks of the config fields.
"""The ranking distiller: a score per history event, trained so that the first k of the order explain most, for any k.

It reads the window, and the slopes of dppl in the gates of the history (`perplexity.keep_gradient`): first with all
gates at a few common levels, then, knowing its own first order, with that order's first quarter, half and three
quarters taken out. One model answers any size, epsilon or share: rank, evaluate the prefixes, take the smallest that
meets the target.

Training minimises the dppl_left expected when events are distilled independently, with probabilities that rise with
their scores and add up to a size drawn anew for every window. The derivative of that expectation in one probability
is the expected effect of distilling that event, given the others: it is evaluated, for every event, at one drawn set.
That is unbiased, needs forward passes of the MTPP only, and says about each event by itself what one reward per set
says about all of them together.
"""

from typing import Any, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from .distiller import DistillerModel, DistillerOutput
from .perplexity import keep_gradient, log_perplexity_of_masks
from .window import Window, places_of
from .window_encoder import Layer, WindowEncoder, WindowEncoderConfig

# A window whose history explains next to nothing must not drown the others when effects are compared.
_SMALLEST_SCALE = 0.1
_LARGEST_FEATURE = 8.0


@strict
class RankingDistillerConfig(WindowEncoderConfig):
    """Config of `RankingDistillerModel`.

    Args:
        gate_levels: where the first slopes are taken: the gates of all events at each of these values.
        prefix_shares: where the second slopes are taken: with this share of the events, the first of the first order,
            taken out. Empty: one pass only, faster and less precise.
        score_spread: standard deviation of the scores of a window; the larger, the less random the sets of training.
        largest_share: sizes drawn in training go up to this share of the history.
    """

    model_type = "ranking_distiller"

    epsilon: float | int | None = None
    share: float | int | None = 0.7
    conditioning: Literal["paper", "survival"] = "survival"
    gate_levels: tuple[float, ...] | list[float] = (0.9, 0.5, 0.1)
    prefix_shares: tuple[float, ...] | list[float] = (0.25, 0.5, 0.75)
    score_spread: float | int = 3.0
    largest_share: float | int = 0.75

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        for name in ("gate_levels", "prefix_shares"):
            if not all(0 < value < 1 for value in getattr(self, name)):
                raise ValueError(f"{name} must lie between 0 and 1, both excluded; got {list(getattr(self, name))}.")
        if not self.gate_levels:
            raise ValueError("gate_levels must name one value at least; got none. [0.5] is the cheapest.")
        if not (self.score_spread > 0 and 0 < self.largest_share <= 1):
            values = f"{self.score_spread} and {self.largest_share}"
            raise ValueError(f"score_spread must be above 0 and largest_share in (0, 1]; got {values}.")


class RankingDistillerModel(DistillerModel):
    """Orders the events of a history by what they explain of the future."""

    config_class = RankingDistillerConfig

    def __init__(self, config: RankingDistillerConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.window_encoder = WindowEncoder(config)
        self.slope_input = _feature_network(2 * len(config.gate_levels), width)
        self.slope_weight = nn.Linear(2 * len(config.gate_levels), 1, bias=False)
        self.score_head = nn.Linear(width, 1)
        if config.prefix_shares:
            self.second_input = _feature_network(2 * len(config.prefix_shares) + 2, width)
            self.second_layer = Layer(config, cross=False)
            self.second_norm = nn.LayerNorm(width)
            self.second_weight = nn.Linear(2 * len(config.prefix_shares), 1, bias=False)
            self.second_head = nn.Linear(width, 1)
        self.post_init()

    @property
    def num_evaluations(self) -> int:
        return len(self.config.gate_levels) + len(self.config.prefix_shares)

    # --- the order

    def history_scores(self, window: Window) -> Tensor:
        return self._scores_of_passes(window)[-1]

    def _scores_of_passes(self, window: Window) -> list[Tensor]:
        """Scores (B, L) after the first pass and, if there is one, the second."""
        config, history, times = self.config, window.history, window.times
        levels = times.new_tensor(config.gate_levels)[:, None, None]
        slopes = self._slopes(window, levels * history)
        encoded = self.window_encoder(window, self.mtpp.mean_interval.to(times.dtype), self.slope_input(slopes))
        first = self._spread((self.score_head(encoded) + self.slope_weight(slopes))[..., 0], history)
        if not config.prefix_shares:
            return [first]
        place = places_of(first.detach(), history) / history.sum(1, keepdim=True).clamp(min=1)  # (B, L) in [0, 1)
        shares = times.new_tensor(config.prefix_shares)[:, None, None]
        slopes = self._slopes(window, ((place >= shares) & history).to(times.dtype))
        order = torch.stack([place - 0.5, first.detach() / config.score_spread], dim=-1)
        encoded = encoded + self.second_input(torch.cat([slopes, order], dim=-1))
        everywhere = None if bool(history.all()) else history
        encoded = self.second_norm(self.second_layer(encoded, everywhere))
        change = (self.second_head(encoded) + self.second_weight(slopes))[..., 0]
        return [first, self._spread(first.detach() + change, history)]

    def _slopes(self, window: Window, gates: Tensor) -> Tensor:
        """Features (B, L, 2 P) of the slopes of dppl at P settings of the gates (P, B, L): relative to their mean
        size in the window, as they are and by their logarithm."""
        slopes = keep_gradient(self.mtpp, window, gates, conditioning=self.config.conditioning)
        scale = slopes.abs().sum(-1, keepdim=True) / window.history.sum(-1, keepdim=True).clamp(min=1)
        relative = (slopes / scale.clamp(min=1e-6)).permute(1, 2, 0)
        compressed = relative.sign() * torch.log1p(4 * relative.abs())
        return torch.cat([relative.clamp(-_LARGEST_FEATURE, _LARGEST_FEATURE), compressed], dim=-1)

    def _spread(self, scores: Tensor, history: Tensor) -> Tensor:
        """Scores with mean 0 and standard deviation `score_spread` over the events of each window (0 where all are
        equal); 0 on padding."""
        number = history.sum(1, keepdim=True).clamp(min=1)
        mean = scores.masked_fill(~history, 0.0).sum(1, keepdim=True) / number
        centred = (scores - mean).masked_fill(~history, 0.0)
        deviation = (centred.square().sum(1, keepdim=True) / number + 1e-6).sqrt()
        return self.config.score_spread * centred / deviation

    # --- training

    def forward(self, times: Tensor, marks: Tensor, mask: Tensor, num_future: int | None = None) -> DistillerOutput:
        """The training loss of windows (B, T) whose last `num_future` events are the future, the config's `future` if
        not given. When not training, dppl_left over all prefixes relative to the empty history's, with metrics, over
        the windows whose history explains something (`num_items` of them)."""
        window = Window(times, marks, mask, self.config.future if num_future is None else num_future)
        passes = self._scores_of_passes(window)
        logits = torch.stack([-passes[-1], passes[-1]], dim=-1) / 2
        if self.training:
            number = torch.tensor(len(times), device=times.device)
            return DistillerOutput(loss=self._expected_drop(window, passes), logits=logits, num_items=number)
        metrics, number = self._prefix_metrics(window, passes[-1])
        return DistillerOutput(logits=logits, num_items=number, **metrics)

    def _drops(self, window: Window, kept: Tensor) -> Tensor:
        """dppl (eq. 4) of what `kept` (P, B, L) keeps: (P, B)."""
        history = window.history
        masks = torch.cat([history[None], kept & history])
        rows = torch.arange(len(history), device=kept.device).repeat(len(masks))
        log_ppl = log_perplexity_of_masks(
            self.mtpp, window, masks.flatten(0, 1), rows, conditioning=self.config.conditioning
        ).view(len(masks), -1)
        return log_ppl[0] - log_ppl[1:]

    def _expected_drop(self, window: Window, passes: list[Tensor]) -> Tensor:
        """dppl_left of a drawn set relative to what the whole history explains, with the gradient of its expectation.

        The set is drawn by the last pass. The first is judged by it too: its gradient is that of its probabilities,
        given the effects that events have among the last pass's sets.
        """
        times, history = window.times, window.history
        number = history.sum(1)
        size = 1 + torch.rand(len(times), device=times.device) * (self.config.largest_share * number - 1).clamp(min=0)
        chances = [inclusion_probability(scores, history, size) for scores in passes]
        drawn = torch.rand_like(chances[-1]) < chances[-1].detach()
        position = torch.arange(history.shape[1], device=times.device)
        flipped = drawn ^ (position[:, None, None] == position)  # (L, B, L)
        sets = torch.cat([drawn[None], flipped, history[None]])
        left = self._drops(window, ~sets)
        effect = _effects(left[1:-1], left[0], drawn)
        scale = left[-1].abs().clamp(min=_SMALLEST_SCALE)
        surrogate = torch.stack([((chance * effect).sum(1) / scale).mean() for chance in chances]).sum()
        return (left[0] / scale).mean() + (surrogate - surrogate.detach())

    @torch.no_grad()
    def _prefix_metrics(self, window: Window, scores: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Means over the windows whose history explains something, and how many they are: `size` of the smallest
        prefix that meets the config's target (L where none does), the share of windows where one does, and as loss
        dppl_left over all prefixes relative to the empty history's."""
        number = window.history.sum(1)
        curve, met, smallest = self._certify(window, places_of(scores, window.history))
        sizes = torch.arange(len(curve), device=curve.device)[:, None]
        mean = curve.masked_fill(sizes > number, 0.0).sum(0) / (number + 1)
        relative = mean / curve[-1].abs().clamp(min=_SMALLEST_SCALE)
        explains = curve[-1] < 0
        count = explains.sum()
        values = {"size": smallest.to(curve.dtype), "constraint_met": met.to(curve.dtype), "loss": relative}
        return {name: value[explains].sum() / count.clamp(min=1) for name, value in values.items()}, count

    def _certify(self, window: Window, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dppl_left (L + 1, B) of all prefixes of an order, `places` (B, L); whether one meets the config's target,
        and the size of the smallest that does, the history's where none does: (B,) each."""
        sizes = torch.arange(1, places.shape[1] + 1, device=places.device)[:, None, None]
        drops = self._drops(window, places >= sizes)
        curve = torch.cat([drops.new_zeros(1, len(places)), drops])  # the whole history drops by 0
        met = self.config.question.met(curve, None, curve[-1])
        return curve, met.any(0), torch.where(met.any(0), met.to(torch.uint8).argmax(0), window.history.sum(1))

    # --- answers

    @torch.no_grad()
    def distill(self, window: Window) -> tuple[Tensor, Tensor]:
        """`distill_mask` (B, L): the smallest prefix of the order that meets the config's target, the whole history
        where none does; and the scores (B, L)."""
        scores = self.history_scores(window)
        places = places_of(scores, window.history)
        _, _, smallest = self._certify(window, places)
        return (places < smallest[:, None]) & window.history, scores


def _feature_network(num_features: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(num_features, width), nn.GELU(), nn.Linear(width, width))


def _effects(flipped: Tensor, drawn_value: Tensor, drawn: Tensor) -> Tensor:
    """What distilling each event changes, given the rest of the `drawn` set (B, L): (B, L).

    `flipped` (L, B) are the values with one event moved to the other side, `drawn_value` (B,) that of the set itself.
    """
    change = flipped.t() - drawn_value[:, None]
    return torch.where(drawn, -change, change)


def inclusion_probability(scores: Tensor, history: Tensor, size: Tensor, steps: int = 40) -> Tensor:
    """sigmoid(score - threshold) of every event, the threshold such that they add up to `size` (B,): (B, L).

    Differentiable; the threshold moves with the scores, so that the size stays.
    """
    with torch.no_grad():
        low, high = scores.amin(1) - 20, scores.amax(1) + 20
        for _ in range(steps):
            middle = 0.5 * (low + high)
            above = (torch.sigmoid(scores - middle[:, None]) * history).sum(1) > size
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        threshold = 0.5 * (low + high)
        chance = torch.sigmoid(scores - threshold[:, None]) * history
        weight = chance * (1 - chance)
        weight = weight / weight.sum(1, keepdim=True).clamp(min=1e-6)
    # The bisection has no gradient: this term is 0 in value and has that of the threshold.
    moved = (weight * (scores - scores.detach())).sum(1)
    return torch.sigmoid(scores - (threshold + moved)[:, None]) * history


AutoConfig.register("ranking_distiller", RankingDistillerConfig)
AutoModel.register(RankingDistillerConfig, RankingDistillerModel)
