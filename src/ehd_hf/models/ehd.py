# No `from __future__ import annotations` here: it would disable the type checks of the config fields.
"""MTPP-EHD, the paper's distiller, trained by straight-through Gumbel-softmax (ST-GS; alg. 1, eqs. 10-14)."""

import math
from typing import Any, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel

from .distiller import DistillerModel, DistillerOutput
from .perplexity import dppl
from .window import Window
from .window_encoder import WindowEncoder, WindowEncoderConfig


@strict
class EHDDistillerConfig(WindowEncoderConfig):
    """Config of `EHDDistillerModel`; the defaults are the paper's where it gives them.

    Args:
        alpha: weight of the size loss (eq. 14); 0 trains the constraint alone.
        constraint_weight: weight of the constraint loss; 0 trains the size alone (the paper's fig. 2).
        tau: temperature of the Gumbel-softmax (eq. 10).
        num_mask_samples: masks drawn per window and step, N.
        rebuilder: how gradients reach the masks: "select" (the paper's) or "gate".
    """

    model_type = "ehd_distiller"

    alpha: float | int = 1.0
    constraint_weight: float | int = 1.0
    tau: float | int = 1.0
    num_mask_samples: int = 4
    rebuilder: Literal["select", "gate"] = "select"

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.alpha < 0 or self.constraint_weight < 0 or self.tau <= 0:
            values = f"{self.alpha}, {self.constraint_weight} and {self.tau}"
            raise ValueError(f"alpha and constraint_weight must be at least 0 and tau above 0; got {values}.")
        if self.epsilon is None:
            raise ValueError(f"MTPP-EHD is trained for an epsilon; got share {self.share}. Use the ranking distiller.")


class EHDDistillerModel(DistillerModel):
    """The paper's MTPP-EHD."""

    config_class = EHDDistillerConfig

    def __init__(self, config: EHDDistillerConfig) -> None:
        super().__init__(config)
        self.window_encoder = WindowEncoder(config)
        self.distill_head = nn.Linear(config.hidden_size, 2)
        self.post_init()

    def history_logits(self, window: Window) -> Tensor:
        """Logits (B, L, 2) of keeping (0) and distilling (1) each history event."""
        return self.distill_head(self.window_encoder(window, self.mtpp.mean_interval.to(window.times.dtype)))

    def history_scores(self, window: Window) -> Tensor:
        return self.history_logits(window).diff(dim=-1)[..., 0]

    @torch.no_grad()
    def distill(self, window: Window) -> tuple[Tensor, Tensor]:
        """The paper's answer (alg. 2): `distill_mask` (B, L) by argmax, and P(y = 1) (B, L)."""
        logits, history = self.history_logits(window), window.history
        return (logits[..., 1] > logits[..., 0]) & history, logits.softmax(-1)[..., 1] * history

    def forward(self, times: Tensor, marks: Tensor, mask: Tensor, num_future: int | None = None) -> DistillerOutput:
        """The training loss (eq. 14) of windows (B, T) whose last `num_future` events are the future, the config's
        `future` if not given: over N sampled masks while training, over the argmax mask otherwise."""
        config = self.config
        window = Window(times, marks, mask, config.future if num_future is None else num_future)
        history, logits = window.history, self.history_logits(window)
        if self.training:
            samples = sample_masks(logits, config.num_mask_samples, config.tau)
        else:
            samples = (logits[..., 1] > logits[..., 0]).to(times.dtype)[None]
        samples = samples * history  # (S, B, L); padding is never distilled
        drop = dppl(self.mtpp, window, 1 - samples, conditioning=config.conditioning, rebuilder=config.rebuilder)
        constraint_loss = (drop - math.log(config.epsilon)).clamp(min=0).mean()  # eqs. 11, 12
        size_loss = (samples.sum(-1) / history.sum(-1).clamp(min=1)).mean()  # eq. 13
        return DistillerOutput(
            loss=config.alpha * size_loss + config.constraint_weight * constraint_loss,
            size_loss=size_loss,
            constraint_loss=constraint_loss,
            logits=logits,
            num_items=torch.tensor(len(times), device=times.device),
            **({} if self.training else self.metrics(window, samples[0] > 0.5)),
        )


def sample_masks(logits: Tensor, num_samples: int, tau: float) -> Tensor:
    """ST-GS samples of "distil" (S, B, L) from logits (B, L, 2): exactly 0 or 1 forward, the soft sample's gradient
    backward (eq. 10)."""
    # Gumbel noise by -log of an exponential draw; the softmax of two logits is a sigmoid of their difference.
    noise = torch.empty(num_samples, *logits.shape, dtype=logits.dtype, device=logits.device).exponential_().log()
    perturbed = logits.log_softmax(-1) - noise
    soft = torch.sigmoid((perturbed[..., 1] - perturbed[..., 0]) / tau)
    hard = (soft > 0.5).to(soft.dtype)
    return hard + (soft - soft.detach())


AutoConfig.register("ehd_distiller", EHDDistillerConfig)
AutoModel.register(EHDDistillerConfig, EHDDistillerModel)
