# No `from __future__ import annotations` here: it would disable the type checks of the config fields.
"""Any function that scores events, as a point process to be explained.

Whoever has a model of events of their own, in torch or behind a call, needs one function: times, marks and mask in,
the log-probability of every event given those before it out. Events are removed by deleting them and asking again.
What needs more than that is refused: slopes in the gates of a history, intensities, samples.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from .point_process import MTPPConfig, MTPPModel, MTPPOutput
from .rebuild import compact

# times, marks, mask -> log p of each event, or a pair: log p of its time, log p of its mark given the time
LogProb = Callable[[Tensor, Tensor, Tensor], Tensor | tuple[Tensor, Tensor]]
# times, marks, mask, until -> log P(no event after the last one up to `until`)
LogSurvival = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@strict
class CallableConfig(MTPPConfig):
    """Config of `CallableMTPP`; `conditioning` is what explanations ask by default."""

    conditioning: Literal["paper", "survival"] = "paper"


def from_callable(
    log_prob: LogProb,
    *,
    id2label: Mapping[int, str] | None = None,
    num_marks: int | None = None,
    log_survival: LogSurvival | None = None,
    time_unit: str | None = None,
    context_marks: Sequence[str] = (),
    dtype: torch.dtype | None = None,
) -> "CallableMTPP":
    """A point process to be explained, from a function of its own.

    Args:
        log_prob: (times, marks, mask) -> log-probabilities (B, T) of every event given those before it in its row, or
            a pair (of its time; of its mark given the time). Times count from the window's origin; events stand at the
            front of a row, where mask is True, padding behind them. A function, a torch module, or a method of one.
        id2label: names of the marks; or
        num_marks: how many there are.
        log_survival: (times, marks, mask, until) -> log-probability (B,) that nothing happens between a row's last
            event (the origin, if there is none) and `until` (B,). With it explanations ask under "survival"
            conditioning, and without it under "paper".
        time_unit: unit of the times, if they may also be given as timestamps ("h").
        context_marks: marks that are never predicted. Of their events `log_prob` says how probable the silence before
            them was, in the first of the pair; the second is not read.
        dtype: of the times handed in. By default that of a module's parameters; for other functions float32 in the
            search and float64 in the certificate.

    `EHDDistiller.from_mtpp(from_callable(my_log_prob, num_marks=3), share=0.7)` explains it.
    """
    if not callable(log_prob) or (log_survival is not None and not callable(log_survival)):
        raise ValueError(f"log_prob and log_survival must be functions; got {log_prob!r} and {log_survival!r}.")
    if num_marks is None and id2label is None:
        raise ValueError("a point process needs to know its marks; got none. Pass num_marks=3 or id2label={...}.")
    config = CallableConfig(
        num_marks=len(id2label or ()) if num_marks is None else num_marks,
        id2label=None if id2label is None else dict(id2label),
        time_unit=time_unit,
        context_marks=list(context_marks) or None,
        conditioning="paper" if log_survival is None else "survival",
    )
    return CallableMTPP(config, log_prob, log_survival, dtype).eval()


class CallableMTPP(MTPPModel):
    """A point process behind a function; made by `from_callable`, and never saved."""

    config_class = CallableConfig
    has_gates: ClassVar[bool] = False

    def __init__(
        self,
        config: CallableConfig,
        log_prob: LogProb,
        log_survival: LogSurvival | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(config)
        self.register_buffer("mean_interval", torch.tensor(1.0))
        # Copies of this model in another precision take a module along; a method of one follows it.
        owner = log_prob if isinstance(log_prob, nn.Module) else getattr(log_prob, "__self__", None)
        self.owner = owner if isinstance(owner, nn.Module) else None
        # What says in which precision this model works, where the function has no parameters.
        self.precision = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.log_prob_function, self.log_survival_function, self.input_dtype = log_prob, log_survival, dtype

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
        faded = keep is not None and (keep.requires_grad or bool(((keep != 0) & (keep != 1)).any()))
        if faded or mark_weights is not None:
            raise ValueError(
                "this point process is a function: events can be deleted, not faded, so there are no slopes in their "
                "gates. Use a solver that only deletes: greedy_search, backward_elimination, leave_one_out, shapley, "
                "recency."
            )
        present = mask
        if keep is not None:
            present = mask.clone()
            present[:, : keep.shape[1]] &= keep > 0.5
        scores = self._scores(times, marks, present)
        if survived_until is not None:
            time_scores, mark_scores = scores
            scores = (time_scores + self._survived_before(times, marks, present, survived_until), mark_scores)
        if positions is not None:
            time_scores, mark_scores = (values.gather(1, positions) for values in scores)
        else:
            first = 0 if num_last is None else times.shape[1] - num_last
            time_scores, mark_scores = (values[:, first:] for values in scores)
        return MTPPOutput(log_prob=time_scores + mark_scores, time_log_prob=time_scores, mark_log_prob=mark_scores)

    def _scores(self, times: Tensor, marks: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        """log p of times and of marks (B, T), 0 where no event is present."""
        inputs, order = self._front(times, marks, present)
        scores = self.log_prob_function(*inputs)
        pair = scores if isinstance(scores, tuple) and len(scores) == 2 else (scores, torch.zeros_like(inputs[0]))
        pair = (pair[0], pair[1].masked_fill(self.is_context(inputs[1]), 0.0)) if self.context is not None else pair
        clean = (
            checked("log_prob", "one log-probability per event", values, inputs[0].shape).masked_fill(~inputs[2], 0.0)
            for values in pair
        )
        of_time, of_mark = (torch.zeros_like(times).scatter(1, order, values.to(times.dtype)) for values in clean)
        return of_time, of_mark

    def _front(self, times: Tensor, marks: Tensor, present: Tensor) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
        """The events that are present at the front of each row, padding repeating their last time; and the order
        (B, T) that brought them there."""
        moved_times, moved_marks, mask, order = compact(times, marks, present, present)
        moved = moved_times.masked_fill(~mask, 0.0).cummax(dim=1).values if times.shape[1] else times
        return (moved.to(self._dtype(times)), moved_marks.masked_fill(~mask, 0), mask), order

    def _dtype(self, times: Tensor) -> torch.dtype:
        if self.input_dtype is not None or self.owner is None:
            return self.input_dtype or times.dtype
        return next((p.dtype for p in self.owner.parameters() if p.is_floating_point()), times.dtype)

    def _survived_before(self, times: Tensor, marks: Tensor, present: Tensor, until: Tensor) -> Tensor:
        """-log P(no event up to `until`), at the first event at or after it and 0 elsewhere: (B, T)."""
        if self.log_survival_function is None:
            raise ValueError(
                "survival conditioning needs the probability that nothing happens for a while; this point process has "
                'no function for it. Pass log_survival to from_callable, or ask with conditioning="paper".'
            )
        after = present & (times >= until[:, None])
        inputs, _ = self._front(times, marks, present & ~after)
        survival = self.log_survival_function(*inputs, until.to(inputs[0].dtype))
        survival = checked("log_survival", "one number per row", survival, until.shape)
        first = after & (after.cumsum(1) == 1)
        return torch.where(first, -survival.to(times.dtype)[:, None], torch.zeros_like(times))

    def _last_log_intensity(self, times: Tensor, marks: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The density divided by the probability that nothing happened before."""
        if self.log_survival_function is None:
            raise ValueError(
                "causes need intensities; this point process has no function for the probability that nothing "
                "happens for a while. Pass log_survival to from_callable."
            )
        time_scores, mark_scores = (scores[:, -1] for scores in self._scores(times, marks, mask))
        inputs, _ = self._front(times[:, :-1], marks[:, :-1], mask[:, :-1])
        survival = self.log_survival_function(*inputs, times[:, -1].to(inputs[0].dtype))
        total = time_scores - checked("log_survival", "one number per row", survival, times.shape[:1]).to(times.dtype)
        return total + mark_scores, total

    # --- what a function of log-probabilities cannot say

    def encode_history(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("this point process is a function of log-probabilities: it has no states and intensities.")

    score_intervals = total_compensator = mark_intensities = encode_history

    def save_pretrained(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("a point process behind a function cannot be saved. Keep the function, and wrap it again.")


def checked(name: str, what: str, values: Any, shape: torch.Size) -> Tensor:
    """What a function returned, without gradients, if it has the shape it must have."""
    if not isinstance(values, Tensor) or values.shape != shape:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(f"{name} must return {what}, shape {tuple(shape)}; got {got}.")
    return values.detach()
