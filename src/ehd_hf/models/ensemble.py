# No `from __future__ import annotations` here: it would disable the type checks of the config fields.
"""Several point processes of the same events in one checkpoint: as a point process it is its first member, the best.

The others are there to be asked the same questions: how much of an answer depends on the model.
"""

from collections.abc import Sequence
from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_MAPPING, AutoConfig, AutoModel

from .point_process import MTPPConfig, MTPPModel, MTPPOutput, Past

# What all members have in common, and the ensemble's config says for them.
_SHARED = ("num_marks", "id2label", "time_unit", "history", "future", "context_marks")
_USUAL = ({"model_type": "lognormmix"}, {"model_type": "lognormmix"})


@strict
class EnsembleConfig(MTPPConfig):
    """Config of `EnsembleModel`.

    Args:
        members: of each point process the model_type and its own settings, the best first; by default two lognormmix.
    """

    model_type = "ensemble"

    members: list[dict[str, Any]] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.members = [dict(member) for member in _USUAL] if self.members is None else self.members
        if len(self.members) < 2:
            raise ValueError(f"an ensemble has at least 2 members; got {len(self.members)}. Use the one by itself.")

    def member_configs(self) -> list[Any]:
        """A config of each member."""
        shared = {name: getattr(self, name) for name in _SHARED}
        return [CONFIG_MAPPING[member["model_type"]].from_dict({**member, **shared}) for member in self.members or ()]


class EnsembleModel(MTPPModel):
    """Point processes `members` on the MTPP contract, which the first one keeps for all."""

    config_class = EnsembleConfig

    def __init__(self, config: EnsembleConfig) -> None:
        super().__init__(config)
        self.members: Any = nn.ModuleList(AutoModel.from_config(member) for member in config.member_configs())
        self.post_init()

    @classmethod
    def of(cls, members: Sequence[MTPPModel]) -> "EnsembleModel":
        """An ensemble of copies of trained point processes, the best first."""
        configs: list[Any] = [member.config for member in members]
        for config in configs:
            if type(config) not in MODEL_MAPPING:
                raise ValueError(f"a member must be a model that can be saved; got a {type(config).__name__}.")
            pair = [(list(c.id2label.values()), c.time_unit, c.context_marks) for c in (configs[0], config)]
            if pair[0] != pair[1]:
                got = "; ".join(f"{marks} in {unit}, of them context {context}" for marks, unit, context in pair)
                raise ValueError(f"members must have the same marks and time unit; got {got}. Train them on one log.")
        shared = {name: getattr(config, name) for config in configs[:1] for name in _SHARED}
        model = cls(EnsembleConfig(members=[_own_settings(config) for config in configs], **shared))
        for copied, member in zip(model.members, members, strict=True):
            copied.load_state_dict(member.state_dict())
        return model.train(members[0].training)

    @property
    def _first(self) -> MTPPModel:
        return self.members[0]

    @property
    def mean_interval(self) -> Tensor:  # type: ignore[override]  # a buffer of the first member
        return self._first.mean_interval

    def fit_time_scale(self, intervals: Tensor) -> None:
        for member in self.members:
            member.fit_time_scale(intervals)

    # --- the contract

    def encode_history(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self._first.encode_history(*args, **kwargs)

    def score_intervals(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Tensor]:
        return self._first.score_intervals(*args, **kwargs)

    def total_compensator(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._first.total_compensator(*args, **kwargs)

    def mark_intensities(self, *args: Any, **kwargs: Any) -> Tensor:
        return self._first.mark_intensities(*args, **kwargs)

    def event_log_prob(self, *args: Any, **kwargs: Any) -> MTPPOutput:
        return self._first.event_log_prob(*args, **kwargs)

    def past(self, *args: Any, **kwargs: Any) -> Past:
        return self._first.past(*args, **kwargs)

    def extend(self, *args: Any, **kwargs: Any) -> Past:
        return self._first.extend(*args, **kwargs)

    def leave_one_out(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self._first.leave_one_out(*args, **kwargs)


def _own_settings(config: Any) -> dict[str, Any]:
    """What a backbone's config says beyond what every MTPP's does."""
    names = type(config).__dataclass_fields__.keys() - MTPPConfig.__dataclass_fields__.keys()
    return {"model_type": config.model_type} | {name: getattr(config, name) for name in sorted(names)}


AutoConfig.register("ensemble", EnsembleConfig)
AutoModel.register(EnsembleConfig, EnsembleModel)
