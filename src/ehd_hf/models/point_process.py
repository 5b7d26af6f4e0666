# No `from __future__ import annotations` here: it would disable the type checks of the config fields.
"""The contract every marked temporal point process (MTPP) keeps, and all that follows from it.

A backbone encodes what happened (`encode_history`) and gives the density of the next event after a silence of a given
length (`score_intervals`, `total_compensator`, `mark_intensities`). The likelihood of events, its survival
conditioning, intensities on a clock, sampling and prediction are derived here, once, for every backbone.

Shapes: B batch, T events, Q query points, C marks, D width of a history state.
"""

import copy
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils.generic import ModelOutput

# Windows of one deleted event each that `leave_one_out` holds at a time: they stay in the caches.
_DELETIONS_AT_ONCE = 4096
# Pairs of events that `MTPPModel.extend` encodes at a time: they bound its memory.
_PAIRS_ENCODED_AT_ONCE = 2**18
# Halvings of a range of e^60 when futures are drawn: intervals are then exact to 2e-7 of their length.
_HALVINGS = 28

# Set while a config is read from a file: that of a later transformers may hold keys which this one does not know.
_from_file = ContextVar("_from_file", default=False)


@strict
class StrictConfig(PreTrainedConfig):
    """A config in which a misspelt key, the config of another model and a whole number below 1 are errors."""

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        cls._check_type(config_dict.get("model_type", cls.model_type))
        token = _from_file.set(True)
        try:
            return super().from_dict(config_dict, **kwargs)
        finally:
            _from_file.reset(token)

    @classmethod
    def _check_type(cls, model_type: str) -> None:
        if model_type != cls.model_type:
            raise ValueError(
                f"{cls.__name__} is of type {cls.model_type!r}; got one of type {model_type!r}. Open it with "
                "AutoModel; a distiller of a trained MTPP is made by from_mtpp."
            )

    def __post_init__(self, **kwargs: Any) -> None:
        self._check_type(kwargs.get("model_type", self.model_type))
        declared = {*self.__dataclass_fields__} - {*PreTrainedConfig.__dataclass_fields__}
        super().__post_init__(**kwargs)
        # transformers takes the keys it knows, and makes attributes of all others.
        plain = PreTrainedConfig()
        unknown = sorted(key for key in kwargs if key in vars(self) and not hasattr(plain, key))
        if _from_file.get():
            unknown = [key for key in unknown if get_close_matches(key, declared, cutoff=0.8)]
        if unknown:
            raise ValueError(
                f"{type(self).__name__} knows the keys {', '.join([*sorted(declared), 'id2label'])}; got unknown "
                f"{', '.join(unknown)}. Check the spelling."
            )
        for name in declared:
            if self.__dataclass_fields__[name].type is int and getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}.")


@strict
class MTPPConfig(StrictConfig):
    """What every MTPP's config says.

    Args:
        num_marks: number of kinds of events, C.
        id2label: name of every mark; "0", "1", ... if not given. Must have `num_marks` entries.
        time_unit: unit of the times the model was trained on, for people ("h", "1e6 s").
        history, future: L and K of the windows an explainer cuts if nobody says, if they are known.
        context_marks: names of marks that are never predicted, only causes: deploys, holidays, what neighbours do. Of
            such an event the likelihood has the silence before it; all intensities are of the other marks.
    """

    base_config_key = "mtpp_config"
    attribute_map = {"vocab_size": "num_marks"}

    num_marks: int = 1
    time_unit: str | None = None
    history: int | None = None
    future: int | None = None
    context_marks: list[str] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.id2label is None:
            self.id2label = {mark: str(mark) for mark in range(self.num_marks)}
        if not isinstance(self.id2label, dict) or not all(isinstance(name, str) for name in self.id2label.values()):
            raise ValueError(f"id2label must map the marks to names; got {self.id2label!r:.80}.")
        self.id2label = {int(mark): label for mark, label in self.id2label.items()}
        self.label2id = {label: mark for mark, label in self.id2label.items()}
        if len(self.label2id) < len(self.id2label):
            raise ValueError(f"id2label must give every mark its own name; got {list(self.id2label.values())}.")
        super().__post_init__(**kwargs)
        if sorted(self.id2label) != list(range(self.num_marks)):
            number = len(self.id2label)
            raise ValueError(f"id2label must name the marks 0..{self.num_marks - 1}; got {number} entries.")
        context = self.context_marks or ()
        if unknown := sorted(set(context) - set(self.label2id)):
            known = ", ".join(list(self.label2id)[:12])
            raise ValueError(f"context marks must be marks, such as {known}; got {unknown[0]!r}. Correct the name.")
        if len(set(context)) == self.num_marks:
            raise ValueError("context marks must leave a mark to predict; got all of them. Name fewer.")


@dataclass
class MTPPOutput(ModelOutput):
    """Likelihood of observed events; every field but `loss` and `num_items` is (B, T).

    `log_prob` = `time_log_prob` + `mark_log_prob` is log p(mark, time | what was kept before). `compensator` is the
    integrated intensity of all marks since the last kept event: Exp(1) distributed if the model is right.
    `loss` is the mean negative log-likelihood of the `num_items` scored events.
    """

    loss: Tensor | None = None
    log_prob: Tensor = None  # type: ignore[assignment]  # ModelOutput wants defaults; the model always sets these
    time_log_prob: Tensor = None  # type: ignore[assignment]
    mark_log_prob: Tensor = None  # type: ignore[assignment]
    compensator: Tensor | None = None
    num_items: Tensor | None = None


class Past(NamedTuple):
    """What R sequences hold for the events to come."""

    states: Tensor  # (R, D), after the last event
    last_times: Tensor  # (R,)
    memory: tuple[Tensor, ...]  # (R, ...) each: what else a backbone needs to take up one more event

    def rows(self, index: Tensor) -> "Past":
        """The sequences at `index`."""
        return Past(self.states[index], self.last_times[index], tuple(values[index] for values in self.memory))


def bundled_folder(name: Any) -> Any:
    """The folder of a checkpoint that comes with the package, if `name` is one and no folder here; else `name`."""
    text = str(name)
    folder = Path(__file__).parents[1] / "checkpoints" / text
    is_bundled = Path(text).name == text and not Path(text).is_dir() and (folder / "config.json").is_file()
    return str(folder) if is_bundled else name


_HALF = {"bfloat16", "float16", "half"}


class HubModel(PreTrainedModel):
    """A model that opens from safetensors alone: a folder, a bundled name or a Hub id."""

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        if (dtype := str(kwargs.get("dtype", kwargs.get("torch_dtype"))).removeprefix("torch.")) in _HALF:
            raise ValueError(
                f"dtype must be float32 or float64; got {dtype}, whose three digits would drown the differences of "
                "log-likelihoods that an explanation is made of."
            )
        # transformers would fall back to a pickle, which may hold anything.
        options = {"use_safetensors": True, **kwargs}
        return super().from_pretrained(bundled_folder(pretrained_model_name_or_path), *args, **options)

    def _init_weights(self, module: nn.Module) -> None:
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()


def in_double(model: "MTPPModel") -> "MTPPModel":
    # float32 times lose intervals of milliseconds after days; the copy leaves the caller's model as it is.
    return copy.deepcopy(model).double().eval()


def first_after(split: Tensor, last_times: Tensor, times: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Position (B, 1) of the first kept event at or after `split` (B,), and whether the silence before it, since
    `last_times` (B, T), reaches back to `split` (B, 1)."""
    silence = split[:, None] - last_times
    touches = mask & (times >= split[:, None]) & (silence >= 0)
    spans = touches & (silence > 0)
    # Deleted events tied with the split also span it; the first kept event after it is the last that does. Where no
    # event does, the correction is 0, but its slope in the gate of the event at the split is not.
    length = times.shape[1]
    position = torch.arange(length, device=times.device)
    last = torch.where(spans, position, -1).amax(dim=1)
    first = torch.where(touches, position, length - 1).amin(dim=1)
    index = torch.where(last >= 0, last, first)[:, None]
    return index, touches.gather(1, index)


class MTPPModel(HubModel):
    """A marked temporal point process. Subclasses define its first four methods."""

    config_class: Any = MTPPConfig
    base_model_prefix = "mtpp"
    main_input_name = "times"

    mean_interval: Tensor  # a buffer every backbone registers: the yardstick of time
    has_gates: ClassVar[bool] = True  # whether `keep` may lie between 0 and 1, and has slopes there

    @property
    def context(self) -> Tensor | None:
        """(C,) bool, True for context marks; None if there are none."""
        config: Any = self.config
        if not config.context_marks:
            return None
        names = config.id2label
        flags = [names[mark] in config.context_marks for mark in range(config.num_marks)]
        return torch.tensor(flags, device=self.mean_interval.device)

    def is_context(self, marks: Tensor) -> Tensor:
        """Whether events of `marks` (...) are never predicted: (...) bool."""
        context = self.context
        return torch.zeros_like(marks, dtype=torch.bool) if context is None else context.to(marks.device)[marks]

    # --- a backbone defines the next four: the intensities of context marks are 0, and nobody asks their logarithm

    def encode_history(
        self, times: Tensor, marks: Tensor, mask: Tensor, keep: Tensor | None, mark_weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """State of the kept history and time of its last event, before each event and after the last one.

        Returns states (B, T + 1, D) and last kept times (B, T + 1); with nothing kept, the initial state and time 0.
        Behind a row's last event, on padding, both may hold anything.
        """
        raise TypeError(f"{type(self).__name__} must define encode_history")

    def score_intervals(self, states: Tensor, intervals: Tensor, marks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log intensity of all marks together, log intensity of `marks`, and the total compensator: each (...)."""
        raise TypeError(f"{type(self).__name__} must define score_intervals")

    def total_compensator(self, states: Tensor, intervals: Tensor) -> Tensor:
        """Integral of the intensity of all marks over a silence of length `intervals` (...)."""
        raise TypeError(f"{type(self).__name__} must define total_compensator")

    def mark_intensities(self, states: Tensor, intervals: Tensor) -> Tensor:
        """Intensity of every mark after a silence of length `intervals`: (..., C)."""
        raise TypeError(f"{type(self).__name__} must define mark_intensities")

    def fit_time_scale(self, intervals: Tensor) -> None:
        """Store the statistics of the training data's intervals that the backbone measures time with."""
        if not bool((intervals > 0).any()):
            raise ValueError("The time scale needs positive intervals; got none. Check that times are not all tied.")
        self.mean_interval.copy_(intervals[intervals > 0].double().mean())

    def event_log_prob(
        self,
        times: Tensor,
        marks: Tensor,
        mask: Tensor,
        *,
        keep: Tensor | None = None,
        survived_until: Tensor | None = None,
        num_last: int | None = None,
        positions: Tensor | None = None,
        mark_weights: Tensor | None = None,
    ) -> MTPPOutput:
        """log p(event | kept events before it), for every event; of a context event log p(the silence before it).

        Args:
            times: (B, T), non-decreasing, relative to the window's clock origin; marks (B, T) in [0, C).
            mask: (B, T), True where there is an event. Padding may stand anywhere: it is never kept, and scores 0.
            keep: (B, T) in [0, 1]; gates how far an event enters the history of later ones. At {0, 1} this equals
                deleting the events with keep = 0. Scores of deleted events are those they would have had. May be
                shorter than T: later events are kept.
            mark_weights: (B, T), factors of the mark embeddings; 1 in value, they carry gradients (`rebuild.select`).
            survived_until: (B,); condition the first kept event at or after that time on no event before it.
            num_last: score only the last `num_last` positions; the outputs are then (B, num_last).
            positions: (B, P), score these positions only, where the future stands elsewhere in every row.
        """
        states, last_times = self.encode_history(times, marks, mask, keep, mark_weights)
        states, last_times = states[:, :-1], last_times[:, :-1]
        if positions is not None:
            states = states.gather(1, positions[..., None].expand(-1, -1, states.shape[-1]))
            times, marks, mask, last_times = (x.gather(1, positions) for x in (times, marks, mask, last_times))
        elif num_last is not None:
            first = times.shape[1] - num_last
            states, times, marks, mask, last_times = (x[:, first:] for x in (states, times, marks, mask, last_times))
        states = states.contiguous()  # copied once, not by every layer that reads them
        intervals = (times - last_times).clamp(min=0)
        context, of_context = self.context, self.is_context(marks)
        asked = marks if context is None else marks.masked_fill(of_context, int((~context).nonzero()[0]))
        total_log_intensity, log_intensity, compensator = self.score_intervals(states, intervals, asked)
        mark_log_prob = (log_intensity - total_log_intensity).masked_fill(of_context, 0.0)
        time_log_prob = total_log_intensity.masked_fill(of_context, 0.0) - compensator
        if survived_until is not None:
            time_log_prob = time_log_prob + self._survived(states, last_times, times, mask, survived_until)
        time_log_prob = time_log_prob.masked_fill(~mask, 0.0)
        mark_log_prob = mark_log_prob.masked_fill(~mask, 0.0)
        return MTPPOutput(
            log_prob=time_log_prob + mark_log_prob,
            time_log_prob=time_log_prob,
            mark_log_prob=mark_log_prob,
            compensator=compensator,
        )

    def _survived(
        self, states: Tensor, last_times: Tensor, times: Tensor, mask: Tensor, survived_until: Tensor
    ) -> Tensor:
        """-log P(no event up to `survived_until`), at the first event after it and 0 elsewhere: (B, T)."""
        index, touches = first_after(survived_until, last_times, times, mask)
        state = states.gather(1, index[:, :, None].expand(-1, -1, states.shape[-1]))
        silence = (survived_until[:, None] - last_times.gather(1, index)).clamp(min=0)
        compensator = self.total_compensator(state, silence)
        correction = torch.where(touches, compensator, torch.zeros_like(compensator))
        return torch.zeros_like(times).scatter(1, index, correction)

    def forward(self, times: Tensor, marks: Tensor, mask: Tensor, loss_mask: Tensor | None = None) -> MTPPOutput:
        """Negative log-likelihood per predicted event (eq. 3); see `event_log_prob`. Events count where `loss_mask`
        (B, T) is True, or all of them."""
        output = self.event_log_prob(times, marks, mask)
        counted = mask if loss_mask is None else mask & loss_mask
        output.num_items = (counted & ~self.is_context(marks)).sum()
        output.loss = -output.log_prob.masked_fill(~counted, 0.0).sum() / output.num_items.clamp(min=1)
        return output

    # --- one event and what came before it

    @torch.no_grad()
    def leave_one_out(self, times: Tensor, marks: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Log intensity of the last event's mark just before it, and of all marks: (B, 1 + L) each. Column 0 is given
        all L events before it, column 1 + j all but event j. Padding stands in front; without it nothing changes."""
        size = max(1, _DELETIONS_AT_ONCE // times.shape[1])
        parts = zip(times.split(size), marks.split(size), mask.split(size), strict=True)
        observed, total = zip(*(self._leave_one_out(*part) for part in parts), strict=True)
        return torch.cat(observed), torch.cat(total)

    def _leave_one_out(self, times: Tensor, marks: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The same of a few windows; a backbone that knows a shorter way than deleting each event overrides it."""
        shape = times.shape
        keep = ~torch.eye(shape[1], dtype=torch.bool, device=times.device).roll(1, 0)[:, :-1]  # (1 + L, L)
        times, marks, mask = (values.repeat_interleave(shape[1], dim=0) for values in (times, marks, mask))
        mask &= F.pad(keep, (0, 1), value=True).repeat(shape[0], 1)  # what is deleted is padding
        observed, total = (value.view(shape) for value in self._last_log_intensity(times, marks, mask))
        return observed, total

    def _last_log_intensity(self, times: Tensor, marks: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Log intensity of the last event's mark just before it, and of all marks: (B,) each."""
        output = self.event_log_prob(times, marks, mask, num_last=1)
        assert output.compensator is not None
        log_prob, time_log_prob = output.log_prob + output.compensator, output.time_log_prob + output.compensator
        return log_prob[:, 0], time_log_prob[:, 0]

    # --- the process on a clock

    def _before(
        self, times: Tensor, marks: Tensor, mask: Tensor, query_times: Tensor | None = None, keep: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """State (B, Q, D) and time (B, Q) of the last kept event before each query time, or of all events (Q = 1)."""
        states, last_times = self.encode_history(times, marks, mask, keep)
        until = times.new_full((len(times), 1), torch.inf) if query_times is None else query_times
        # Padding may stand anywhere, so count positions by time, padding never before anything.
        when = torch.where(mask, times, torch.full_like(times, torch.inf))
        before = (when[:, None, :] < until[:, :, None]).to(torch.long)  # (B, Q, T)
        position = torch.arange(1, times.shape[1] + 1, device=times.device)
        index = F.pad(before * position, (1, 0)).amax(dim=2)
        return states.gather(1, index[:, :, None].expand(-1, -1, states.shape[-1])), last_times.gather(1, index)

    def intensity(
        self, times: Tensor, marks: Tensor, mask: Tensor, query_times: Tensor, *, keep: Tensor | None = None
    ) -> Tensor:
        """Intensity of every mark at `query_times` (B, Q), given the kept events before: (B, Q, C)."""
        states, last_times = self._before(times, marks, mask, query_times, keep)
        return self.mark_intensities(states, (query_times - last_times).clamp(min=0))

    def compensator(
        self, times: Tensor, marks: Tensor, mask: Tensor, query_times: Tensor, *, keep: Tensor | None = None
    ) -> Tensor:
        """Intensity of all marks integrated from the last kept event to `query_times` (B, Q): (B, Q)."""
        states, last_times = self._before(times, marks, mask, query_times, keep)
        return self.total_compensator(states, (query_times - last_times).clamp(min=0))

    @torch.no_grad()
    def sample_next(
        self, times: Tensor, marks: Tensor, mask: Tensor, num_samples: int = 1, generator: Any = None
    ) -> tuple[Tensor, Tensor]:
        """Draw the next event after the whole sequence: times (B, num_samples) on the same clock, and marks."""
        state, last_time = self._before(times, marks, mask)
        uniform = torch.rand(len(times), num_samples, generator=generator, dtype=times.dtype, device=times.device)
        states = state.expand(-1, num_samples, -1)
        intervals = self._invert_compensator(states, -torch.log1p(-uniform))
        intensities = self.mark_intensities(states, intervals)
        drawn = torch.multinomial(intensities.flatten(0, 1), 1, generator=generator).view(len(times), num_samples)
        return last_time + intervals, drawn

    @torch.no_grad()
    def predict_next(
        self, times: Tensor, marks: Tensor, mask: Tensor, *, num_points: int = 512
    ) -> tuple[Tensor, Tensor]:
        """Expected time (B,) of the next event and the probability of each mark (B, C).

        Both are integrals over the survival function, by the midpoint rule in its cube root: points crowd in the tail,
        where a rare long silence can carry most of the mean.
        """
        state, last_time = self._before(times, marks, mask)
        states = state.expand(-1, num_points, -1)
        edges = torch.linspace(1, 0, num_points + 1, dtype=times.dtype, device=times.device)
        weights = -(edges**3).diff()  # (num_points,) probability of each cell
        targets = -3 * (0.5 * (edges[1:] + edges[:-1])).log()
        intervals = self._invert_compensator(states, targets.expand(len(times), -1))
        intensities = self.mark_intensities(states, intervals)  # (B, num_points, C)
        mark_prob = weights @ (intensities / intensities.sum(-1, keepdim=True))
        return last_time[:, 0] + intervals @ weights, mark_prob

    # --- futures, event by event

    def past(self, times: Tensor, marks: Tensor, mask: Tensor) -> Past:
        """What is known after all events (B, T) of each row; padding may stand anywhere."""
        states, last_times = self._before(times, marks, mask)
        return Past(states[:, 0], last_times[:, 0], (times, marks, mask))

    def extend(self, past: Past, times: Tensor, marks: Tensor) -> Past:
        """The same after one more event in every row, `times` and `marks` (R,). Here all events are encoded again; a
        backbone that can continue from its state overrides it."""
        new = (times, marks, torch.ones_like(marks, dtype=torch.bool))
        events = [torch.cat([old, value[:, None]], dim=1) for old, value in zip(past.memory, new, strict=True)]
        size = max(1, _PAIRS_ENCODED_AT_ONCE // events[0].shape[1] ** 2)
        pieces = [self.past(*piece) for piece in zip(*(value.split(size) for value in events), strict=True)]
        states = torch.cat([piece.states for piece in pieces])
        return Past(states, torch.cat([piece.last_times for piece in pieces]), tuple(events))

    @torch.no_grad()
    def next_events(self, past: Past, targets: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Time and mark of the next event of each row: where the compensator since its last event reaches `targets`
        (R,), and the mark at the share `uniform` (R,), from 0 to 1, of the intensities then."""
        intervals = self._invert_compensator(past.states, targets, _HALVINGS)
        sums = self.mark_intensities(past.states, intervals).cumsum(-1)
        marks = torch.searchsorted(sums, uniform[:, None] * sums[:, -1:], right=True)[:, 0]
        return past.last_times + intervals, marks.clamp(max=sums.shape[-1] - 1)

    def _invert_compensator(self, states: Tensor, targets: Tensor, iterations: int = 60) -> Tensor:
        """Interval at which the total compensator reaches `targets` (...): bisection in log time, so that the same
        relative precision holds for microseconds and months."""
        scale = self.mean_interval.to(targets)
        low = torch.full_like(targets, -30.0) + scale.log()
        high = torch.full_like(targets, 30.0) + scale.log()
        for _ in range(iterations):
            middle = 0.5 * (low + high)
            below = self.total_compensator(states, middle.exp()) < targets
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return (0.5 * (low + high)).exp()
