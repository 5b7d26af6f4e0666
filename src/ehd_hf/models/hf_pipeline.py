"""The pipeline that travels with a distiller: plain events in, plain values out, without this package."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import Pipeline

from .perplexity import dppl_parts
from .question import is_count
from .window import Window

TASK = "event-history-distillation"


class EventHistoryPipeline(Pipeline):
    """`transformers.pipeline("event-history-distillation", model=..., trust_remote_code=True)`.

    Takes {"times": [...], "marks": [...]} (marks by name or number, times in the model's unit; "start", if known) or a
    list of (time, mark) pairs, or a list of either; `future` is the number of last events to explain, `history` how
    many before them to look at, or "all"; by default those the model was trained on. Gives the distiller's own answer
    per sequence, plain values under the names of `Explanation.to_dict`.
    """

    model: Any  # a distiller
    _load_tokenizer: Any = False
    _load_feature_extractor: Any = False
    _load_image_processor: Any = False
    _load_processor: Any = False

    def _sanitize_parameters(self, **options: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        if unknown := sorted(set(options) - {"future", "history"}):
            raise ValueError(f"The pipeline takes future and history; got unknown {', '.join(unknown)}.")
        for name, value in options.items():
            if value is not None and not is_count(value) and (name, value) != ("history", "all"):
                raise ValueError(f"{name} must be a number of events of at least 1; got {value!r}.")
        return options, {}, {}

    def __call__(self, inputs: Any, *args: Any, **options: Any) -> Any:
        if isinstance(inputs, list | tuple) and inputs:
            is_one = not isinstance(inputs[0], dict) and not isinstance(inputs[0][0], list | tuple)
            named = [
                each if isinstance(each, dict) else dict(zip(("times", "marks"), zip(*each, strict=True), strict=True))
                for each in ([inputs] if is_one else inputs)
            ]
            inputs = named[0] if is_one else named
        return super().__call__(inputs, *args, **options)

    def preprocess(self, input_: Any, future: Any = None, history: Any = None, **_: Any) -> dict[str, Any]:
        config = self.model.config
        times = [float(time) for time in input_["times"]]
        # A number is a name where some names are numbers; else it may be the position of a mark.
        has_numbers = any(name.lstrip("+-").replace(".", "", 1).isdecimal() for name in config.label2id)
        by_name = [str(mark) if has_numbers or isinstance(mark, bool) else mark for mark in input_["marks"]]
        marks = [config.label2id.get(mark, mark) for mark in by_name]
        if len(times) != len(marks) or times != sorted(times):
            raise ValueError(f"A sequence has a mark for every time, in order; got {len(times)} and {len(marks)}.")
        if unknown := [mark for mark in marks if mark not in config.id2label]:
            names = ", ".join(config.label2id)
            raise ValueError(f"The model knows the marks {names}; got {unknown[0]!r}. Check the spelling.")
        num_future = config.future if future is None else future
        if len(times) <= num_future:
            raise ValueError(
                f"The sequence has {len(times)} events, all of them in the future of {num_future}: the history is "
                "empty. Ask for a shorter future or give a longer sequence."
            )
        num_history = len(times) if history == "all" else config.history if history is None else history
        first = max(0, len(times) - num_future - num_history)
        start = times[0] if input_.get("start") is None else float(input_["start"])
        origin = times[first - 1] if first else start
        return {
            "times": torch.tensor([times[first:]], dtype=torch.float64) - origin,  # float32 would lose small intervals
            "marks": torch.tensor([marks[first:]]),
            "num_future": num_future,
            "events": [
                {"position": position, "time": time, "mark": config.id2label[mark], "score": None}
                for position, (time, mark) in enumerate(zip(times[first:], marks[first:], strict=True))
            ],
        }

    def _forward(self, input_tensors: dict[str, Any], **_: Any) -> Any:
        times, marks, num_future = (input_tensors[name] for name in ("times", "marks", "num_future"))
        mask = torch.ones_like(marks, dtype=torch.bool)
        window = Window(times, marks, mask, num_future)
        chosen, scores = self.model.distill(window.to(self.model.dtype))
        # What is reported is measured in double precision, as `EHDDistiller` does.
        drops = dppl_parts(
            copy.deepcopy(self.model.mtpp).double(),
            window,
            torch.stack([~chosen, chosen, torch.zeros_like(chosen)]).to(times.dtype),
            conditioning=self.model.config.conditioning,
        )
        parts = torch.stack([drops.time, drops.mark])[..., 0]  # (2, 3)
        return {"chosen": chosen[0], "scores": scores[0], "parts": parts, "events": input_tensors["events"]}

    def postprocess(self, model_outputs: Any, **_: Any) -> dict[str, Any]:
        config, chosen, events = self.model.config, model_outputs["chosen"].tolist(), model_outputs["events"]
        parts = model_outputs["parts"]
        left, distilled, empty = (parts[0] + parts[1]).tolist()
        past = [
            event | {"score": score} for event, score in zip(events, model_outputs["scores"].tolist(), strict=False)
        ]
        return {
            "distilled": [event for event, part in zip(past, chosen, strict=True) if part],
            "left": [event for event, part in zip(past, chosen, strict=True) if not part],
            "future": events[len(past) :],
            "dppl_left": left,
            "dppl_left_time": parts[0, 0].item(),
            "dppl_left_mark": parts[1, 0].item(),
            "dppl_distilled": distilled,
            "dppl_empty": empty,
            "ds": distilled - left,
            "epsilon": config.epsilon,
            "share": config.share,
            "conditioning": config.conditioning,
            "constraint_met": config.question.met(left, distilled, empty),
            "is_most_recent": all(chosen[len(chosen) - sum(chosen) :]),
            "time_unit": config.mtpp_config.time_unit,
        }
