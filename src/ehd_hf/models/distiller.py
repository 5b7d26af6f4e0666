# No `from __future__ import annotations` here: it would disable the type checks of the config fields.
"""The contract every distiller keeps: a frozen MTPP inside, a score per history event outside.

A distiller reads a window (history and future) and scores each history event: the highest are distilled first. The
MTPP it explains is part of it, frozen: one checkpoint holds both, and the MTPP can be loaded out of it by itself.

Shapes: B windows, S mask samples, L history, K future, T = L + K.
"""

import copy
from dataclasses import dataclass
from os import PathLike
from typing import Any, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor
from transformers import AutoConfig, AutoModel
from transformers.configuration_utils import SubConfigSpec
from transformers.utils.generic import ModelOutput

from .perplexity import dppl, log_perplexity
from .point_process import HubModel, MTPPModel, StrictConfig, bundled_folder
from .question import Question
from .window import Window, most_recent


@strict
class DistillerConfig(StrictConfig):
    """What every distiller's config says.

    Args:
        mtpp_config: config of the MTPP inside.
        history, future: L and K of the windows it was trained on. Other lengths are accepted too.
        epsilon: the future must become this much less likely, dppl_left < log(epsilon), in (0, 1); or
        share: it must lose this share of what the whole history explains, dppl_left <= share * dppl(empty history).
        conditioning: "paper" or "survival", see `Question`.
        max_length: longest window accepted, in events.
    """

    attribute_map = {"max_position_embeddings": "max_length"}
    sub_configs_defaults = {"mtpp_config": SubConfigSpec(AutoConfig, model_type="fullynn")}

    mtpp_config: Any = None  # a dict or a config; always a config once constructed
    history: int = 40
    future: int = 15
    epsilon: float | int | None = 0.5
    share: float | int | None = None
    conditioning: Literal["paper", "survival"] = "paper"
    max_length: int = 4096

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if (self.epsilon is None) == (self.share is None):
            raise ValueError(f"Set one target, epsilon or share; got {self.epsilon} and {self.share}.")
        if self.epsilon is not None and not 0 < self.epsilon < 1:
            raise ValueError(f"epsilon must lie in (0, 1); got {self.epsilon}. The paper uses 0.5.")
        if self.share is not None and not 0 < self.share <= 1:
            raise ValueError(f"share must lie in (0, 1]; got {self.share}. 0.7 is a good start.")
        # By its field: code that travels with a model has other classes.
        if not hasattr(self.mtpp_config, "num_marks"):
            kind = type(self.mtpp_config).__name__
            raise ValueError(f"mtpp_config must be the config of a point process; got {kind}. Name one's model_type.")
        self.id2label, self.label2id = self.mtpp_config.id2label, self.mtpp_config.label2id

    @property
    def question(self) -> Question:
        """What the distiller was trained to answer."""
        return Question(epsilon=self.epsilon, share=self.share, conditioning=self.conditioning)


@dataclass
class DistillerOutput(ModelOutput):
    """`loss` (with its two parts where it has them, eq. 14), `logits` (B, L, 2) of keeping and distilling, and what
    people watch of the distiller's answers (when not training); all but the logits are means over `num_items` windows.
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    num_items: Tensor | None = None
    size_loss: Tensor | None = None
    constraint_loss: Tensor | None = None
    size: Tensor | None = None  # of the set
    size_or_all: Tensor | None = None  # where a set that misses the target counts as the whole history
    left_share: Tensor | None = None  # of the history
    dppl_left: Tensor | None = None
    dppl_distilled: Tensor | None = None
    ds: Tensor | None = None
    constraint_met: Tensor | None = None  # share of windows
    recency_overlap: Tensor | None = None  # of the set, how much is among the last events


class DistillerModel(HubModel):
    """A distiller around a frozen MTPP. Subclasses give `history_scores`, `distill` and `forward`.

    Attribute names must differ from those of every backbone: loading a backbone out of a distiller's checkpoint would
    silently take the outer weights of the same name.
    """

    config_class: Any = DistillerConfig
    base_model_prefix = "distiller"
    main_input_name = "times"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["Layer"]

    mtpp: MTPPModel

    def __init__(self, config: DistillerConfig) -> None:
        super().__init__(config)
        self.mtpp = AutoModel.from_config(config.mtpp_config)
        self._freeze()

    def history_scores(self, window: Window) -> Tensor:
        """Scores (B, L) of the history events: the highest are distilled first."""
        raise TypeError(f"{type(self).__name__} must define history_scores")

    def distill(self, window: Window) -> tuple[Tensor, Tensor]:
        """The distiller's own answer: `distill_mask` (B, L), and what to show beside each event (B, L)."""
        raise TypeError(f"{type(self).__name__} must define distill")

    @property
    def num_evaluations(self) -> int:
        """Evaluations of the MTPP that the scores of a window cost."""
        return 0

    # --- the frozen MTPP inside

    @classmethod
    def from_mtpp(cls, mtpp: MTPPModel | str | PathLike[str], **config: Any) -> Any:
        """A new, untrained distiller of a trained MTPP (a model or the folder of one)."""
        if isinstance(mtpp, str | PathLike):
            mtpp = AutoModel.from_pretrained(bundled_folder(mtpp), use_safetensors=True, trust_remote_code=False)
        if not isinstance(mtpp, MTPPModel):
            raise ValueError(f"from_mtpp needs a marked temporal point process; got {type(mtpp).__name__}.")
        if not mtpp.has_gates:
            kind = type(mtpp).__name__
            raise ValueError(f"a distiller learns from gates; {kind} has none. Explain it by EHDDistiller.from_mtpp.")
        own = copy.deepcopy(mtpp.config)
        own._name_or_path = ""  # where it lies here is nobody's business where the distiller goes
        model = cls(cls.config_class(mtpp_config=own, **config))
        model.mtpp.load_state_dict(mtpp.state_dict())
        return model

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        wants_info = kwargs.pop("output_loading_info", False)
        model, info = super().from_pretrained(pretrained_model_name_or_path, *args, output_loading_info=True, **kwargs)
        # transformers only logs missing weights; a distiller without its MTPP would explain noise.
        if missing := sorted(info["missing_keys"]):
            raise ValueError(
                f"A distiller's checkpoint holds the distiller and its MTPP; {str(pretrained_model_name_or_path)!r} "
                f"lacks {', '.join(missing[:3])}. To start from a trained MTPP use {cls.__name__}.from_mtpp."
            )
        model._freeze()  # transformers makes every parameter trainable again when it loads
        return (model, info) if wants_info else model

    def _freeze(self) -> None:
        self.mtpp.requires_grad_(False)
        self.mtpp.eval()

    def train(self, mode: bool = True) -> "DistillerModel":
        super().train(mode)
        self.mtpp.eval()
        return self

    # --- what people watch

    @torch.no_grad()
    def metrics(self, window: Window, distill_mask: Tensor) -> dict[str, Tensor]:
        """What people watch while a distiller trains, each a mean over windows."""
        question, history, dtype = self.config.question, window.history, window.times.dtype
        size, number = distill_mask.sum(-1), history.sum(-1)
        full = log_perplexity(self.mtpp, window, conditioning=question.conditioning)
        pair = torch.stack([history & ~distill_mask, distill_mask]).to(dtype)
        dppl_left, dppl_distilled = dppl(
            self.mtpp, window, pair, full=full, rebuilder="compact", conditioning=question.conditioning
        )
        overlap = (distill_mask & most_recent(history, size)).sum(-1) / size.clamp(min=1)
        met = question.met(dppl_left, dppl_distilled, dppl_left)  # an epsilon does not ask for dppl_empty
        values = {
            "left_share": 1 - size / number.clamp(min=1),
            "size": size.to(dtype),
            "size_or_all": torch.where(met, size, number).to(dtype),
            "dppl_left": dppl_left,
            "dppl_distilled": dppl_distilled,
            "ds": dppl_distilled - dppl_left,
            "constraint_met": met.to(dtype),
            "recency_overlap": torch.where(size > 0, overlap, torch.ones_like(overlap)),
        }
        return {name: value.mean() for name, value in values.items()}
