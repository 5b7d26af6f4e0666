"""The Gradio app: pick or upload events, move the split, choose the target, see the explanation at once.

`Service` keeps nothing between two requests, so no visitor sees another's events or answer; models are opened once and
only read. Strings from data reach the page as text: in Gradio's own fields, escaped, or inside the page of `pages`,
which sits in a sandboxed frame without an origin and cannot reach the page around it or other sites.
"""

from __future__ import annotations

try:
    import gradio as gr
except ImportError as error:
    raise ImportError("the app comes with the demo extra. Install it: pip install 'ehd-hf[demo]'") from error

import base64
import ctypes
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import sleep
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from transformers.utils import logging as transformers_logging

from .data.reading import Read, Reading, read_events
from .data.sequences import find_sequence
from .data.synthetic import example_log
from .explain.explainer import EHDDistiller, load_example
from .explain.explanation import Explanation
from .hub.fetch import list_pretrained
from .present.pages import explanation_page

# What one request may cost: megabytes and events to read, events to score, people waiting, answers made at once.
MAX_MEGABYTES, MAX_EVENTS = 10, 200_000
MAX_HISTORY, MAX_FUTURE = 200, 50
MAX_WAITING, AT_ONCE = 100, 2
# The server cuts larger uploads off; files between the two limits are refused with a message.
_CUT_OFF_MEGABYTES = 5 * MAX_MEGABYTES
_UPLOADS_KEPT_SECONDS = 3600
# Gradio keeps 0.25 MB per visitor and counts every call of a program as a new visitor; its default is 10,000 visitors.
_VISITORS_KEPT = 300
_SECONDS_BETWEEN_TRIMS = 60
_NAMES_LISTED = 1000
_LONGEST_MESSAGE = 1000
_ELSEWHERE = "Cut it to the sequences you ask about, or use ehd-hf explain on your own machine."

EXAMPLE, UPLOAD, PASTED = "Example", "File", "Pasted table"
EXAMPLES: dict[str, Callable[[], pd.DataFrame]] = {
    "One incident": lambda: load_example("incidents"),
    "Six services, simulated": lambda: example_log(6).rename(columns={"service": "sequence"}),
}
SHARE, EPSILON, SIZE = "share", "epsilon", "size"
TARGETS = [("Share of what the past explains", SHARE), ("Factor of likelihood", EPSILON), ("Number of events", SIZE)]
AMOUNTS = [
    (SHARE, "Share", 0.05, 1, 0.05),
    (EPSILON, "Without them, at most so likely", 0.05, 0.95, 0.05),
    (SIZE, "Events", 1, MAX_HISTORY, 1),
]
CONDITIONINGS = [("Survival", "survival"), ("As in the paper", "paper")]
COLUMN_FIELDS = ("Time column", "Mark column", "Sequence column", "Time format")

Update = dict[str, Any]


@dataclass(frozen=True)
class Source:
    """Where events come from and how to read them; fields in the order of the page's controls. Empty column names are
    detected."""

    model: str
    kind: str = EXAMPLE
    example: str = next(iter(EXAMPLES))
    upload: str | None = None
    pasted: str | None = None
    time: str | None = None
    mark: str | None = None
    sequence: str | None = None
    time_format: str | None = None

    @property
    def columns(self) -> dict[str, str | None]:
        roles = ("time", "mark", "sequence", "time_format")
        return {role: (getattr(self, role) or "").strip() or None for role in roles}


@dataclass(frozen=True)
class Asked:
    """What to explain and how; fields in the order of the page's controls. `target` names the one of share, epsilon
    and size that counts."""

    sequence: str | None
    split: float
    future: float
    history: float
    target: str
    share: float
    epsilon: float
    size: float
    conditioning: Any


def from_page(values: Sequence[Any]) -> tuple[Source, Asked]:
    """The values of the page's controls, or of a call of the API, by name."""
    count = len(fields(Source))
    return Source(*values[:count]), Asked(*values[count:])


def open_models(model: str) -> dict[str, EHDDistiller]:
    """The given model first, then the bundled ones."""
    return {name: EHDDistiller.from_pretrained(name) for name in dict.fromkeys([model, *list_pretrained()])}


class Service:
    """Reads events and explains them with models that no request changes."""

    def __init__(self, models: Mapping[str, EHDDistiller]) -> None:
        self.models = models

    def read(self, source: Source) -> Read:
        """Read the events of a source as its model does."""
        reading = self.models[source.model].reading
        if source.kind == EXAMPLE:
            try:
                return read_events(EXAMPLES[source.example](), reading=reading)
            except ValueError as error:
                raise ValueError(
                    f"the examples are not for {source.model}: {error} Or choose the model incidents."
                ) from error
        if source.kind == UPLOAD:
            if source.upload is None:
                raise ValueError("choose a file with one row per event: CSV, TSV, JSON Lines or Parquet.")
            return _read_file(Path(source.upload), reading, source.columns)
        text = (source.pasted or "").strip()
        if not text:
            raise ValueError("paste a table: a line of column names, then one row per event.")
        with TemporaryDirectory() as folder:
            file = Path(folder) / "pasted.csv"
            file.write_text(text + "\n", encoding="utf-8")
            return _read_file(file, reading, source.columns)

    def explain(self, source: Source, asked: Asked) -> Explanation:
        """Find the events before the split that explain those after it."""
        read = self.read(source)
        one = read.events.select([0 if asked.sequence is None else find_sequence(read.events, asked.sequence)])
        length = one.num_events
        if length < 2:
            raise ValueError(f"there must be a past and a future; sequence {one.seq_ids[0]} has one event.")
        last = _count("the event after which the history ends", asked.split, length - 1)
        num_future = min(_count("the number of events to explain", asked.future, MAX_FUTURE), length - last)
        end = last + num_future
        one = replace(one, times=one.times[:end], marks=one.marks[:end], offsets=np.array([0, end]))
        size = _count("the size", asked.size, MAX_HISTORY)
        target: dict[str, Any] = {SHARE: asked.share, EPSILON: asked.epsilon, SIZE: size}
        # The conditioning belongs to the explainer: a new one shares the weights and leaves the old one as it is.
        explainer = EHDDistiller(self.models[source.model].model, conditioning=asked.conditioning)
        answer: Any = explainer.explain(
            one,
            future=num_future,
            history=_count("the number of events to look at", asked.history, MAX_HISTORY),
            **{asked.target: target[asked.target]},
            intensities=True,
        )
        return answer if read.reading.sequence is not None else replace(answer, seq_id=None)

    def show_answer(self, *values: Any) -> tuple[str, str]:
        """The explanation as HTML and as JSON; or an error message and an empty text."""
        try:
            answer = self.explain(*from_page(values))
        except Exception as error:
            return problem(error), ""
        return shown(answer), answer.to_json()

    def show_model(self, model: str) -> list[Update]:
        """Updates of the controls to a model's defaults."""
        return [gr.update(value=value) for value in self.defaults(model).values()]

    def defaults(self, model: str) -> dict[str, Any]:
        """Values of future, history, target, share, epsilon, size and conditioning: as the model was trained."""
        explainer = self.models[model]
        return {
            "future": min(explainer.future or 5, MAX_FUTURE),
            "history": min(explainer.history, MAX_HISTORY),
            "target": SHARE if explainer.epsilon is None else EPSILON,
            SHARE: explainer.share or 0.7,
            EPSILON: explainer.epsilon or 0.5,
            SIZE: 3,
            "conditioning": explainer.conditioning,
        }

    def show_events(self, *values: Any) -> list[Update]:
        """Updates of the list of sequences, the split and the notes; `values` end with the sequence and the future."""
        *source, sequence, future = values
        return [gr.update(**settings) for settings in self.arrange(Source(*source), sequence, future)]

    def arrange(self, source: Source, sequence: str | None, future: float) -> tuple[Update, Update, Update]:
        """Settings of the list of sequences, the split and the notes."""
        try:
            read = self.read(source)
        except Exception:  # the question that follows shows the error
            return {"choices": [], "value": None, "visible": False}, {"maximum": 2, "value": 1}, {"value": ""}
        names = [str(name) for name in read.events.seq_ids]
        listed = sorted(names)
        chosen = sequence if sequence in names else listed[0]
        length = int(read.events.lengths[names.index(chosen)])
        total = f"{len(names):,} sequences" if len(names) > 1 else "one sequence"
        notes = [f"{read.events.num_events:,} events of {total}.", *read.notes]
        if len(names) > _NAMES_LISTED:
            notes.append(f"The first {_NAMES_LISTED:,} sequences are listed; type the name of any other.")
        sequences = {"choices": listed[:_NAMES_LISTED], "value": chosen, "visible": len(names) > 1}
        # A slider needs at least two values.
        split = {"maximum": max(length - 1, 2), "value": max(length - int(future), 1)}
        return sequences, split, {"value": in_lines(notes)}


def _read_file(file: Path, reading: Reading, columns: Mapping[str, Any]) -> Read:
    """Read a visitor's file within limits; errors do not name its folder on this machine."""
    try:
        size = file.stat().st_size
        if size > MAX_MEGABYTES * 1_000_000:
            raise ValueError(
                f"a file may have up to {MAX_MEGABYTES} MB here; {file.name} has {size / 1e6:.1f}. {_ELSEWHERE}"
            )
        read = read_events(_bounded_table(file) if file.suffix == ".parquet" else file, reading=reading, **columns)
        _check_number(read.events.num_events)
        return read
    except (ValueError, OSError) as error:
        raise ValueError(str(error).replace(f"{file.parent}/", "")) from error


def _bounded_table(file: Path) -> dict[str, Any]:
    """Read a Parquet file whose unpacked size is bounded: check counts in its metadata first, then the texts while
    they are still dictionary-encoded."""
    try:
        opened = pq.ParquetFile(file)
        schema, metadata = opened.schema, opened.metadata
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        counts = [sum(group.column(i).num_values for group in groups) for i in range(metadata.num_columns)]
        _check_number(max(metadata.num_rows, *counts))  # a row may hold lists
        _check_unfolded(sum(group.total_byte_size for group in groups))
        texts = [schema.column(i).path for i in range(len(schema)) if schema.column(i).physical_type == "BYTE_ARRAY"]
        table = pq.read_table(file, read_dictionary=texts)
        for column in table.columns:
            _check_unfolded(sum(map(_text_bytes, column.chunks)))
        return {name: table[name] for name in table.column_names}
    except pa.ArrowException as error:
        raise ValueError(f"{file.name} cannot be read as Parquet: {error}. Was it written completely?") from error


def _check_number(num_events: int) -> None:
    if num_events > MAX_EVENTS:
        raise ValueError(f"a table may have up to {MAX_EVENTS:,} events here; got {num_events:,}. {_ELSEWHERE}")


def _check_unfolded(num_bytes: int) -> None:
    if num_bytes > _CUT_OFF_MEGABYTES * 1_000_000:
        raise ValueError(
            f"a table may unfold to {_CUT_OFF_MEGABYTES} MB here; this one would have {num_bytes / 1e6:,.0f}. Leave "
            "out columns and sequences that are not needed."
        )


def _text_bytes(values: Any) -> int:
    while pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        values = values.flatten()
    if not pa.types.is_dictionary(values.type):
        return 0
    return pc.sum(pc.binary_length(values.dictionary).take(values.indices)).as_py() or 0


def _count(what: str, value: float, most: int) -> int:
    if not isinstance(value, int | float) or value != int(value) or not 1 <= value <= most:
        raise ValueError(f"{what} must be a whole number from 1 to {most}; got {value}. Choose one of these.")
    return int(value)


# --- what the page shows


def shown(explanation: Explanation) -> str:
    """The interactive page of an explanation in a sandboxed frame, and a link to its JSON."""
    page = escape(explanation_page(explanation, embedded=True))
    data = base64.b64encode(explanation.to_json().encode()).decode()
    return (
        f'<iframe class="answer" title="The explanation" sandbox="allow-scripts" srcdoc="{page}"></iframe>'
        f'<a download="explanation.json" href="data:application/json;base64,{data}">Download as JSON</a>'
    )


def problem(error: Exception) -> str:
    """The error as HTML. Bugs go to the log and are not shown."""
    if isinstance(error, ValueError | TypeError | OSError | MemoryError):
        text = " ".join(str(error).split()) or type(error).__name__
    else:
        logging.getLogger(__name__).error("a question failed", exc_info=error)
        text = "something went wrong in this app, not in your events. Try another question, and report it, please."
    text = text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"
    return f'<div class="problem" role="alert"><strong>No answer yet:</strong> {escape(text)}</div>'


def in_lines(texts: list[str]) -> str:
    return f'<p class="notes">{"<br>".join(escape(text) for text in texts)}</p>'


def _only_uploads(field: gr.File) -> None:
    """Refuse web addresses in a file field: Gradio would fetch whatever address a program sends."""
    move = field.async_move_resource_to_block_cache

    async def moved(place: Any) -> str | None:
        if str(place).lower().startswith(("http:", "https:")):
            raise gr.Error(f"A file must be uploaded; got the address {place}. Download it first.")
        return await move(place)

    field.async_move_resource_to_block_cache = moved  # type: ignore[assignment, method-assign]


class _BoundedBodies:
    """Middleware that refuses requests larger than any upload may be, before they fill the memory."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        received, most = 0, _CUT_OFF_MEGABYTES * 1_000_000

        async def counted() -> Any:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise HTTPException(413, f"A request may have up to {_CUT_OFF_MEGABYTES} MB. Send fewer events.")
            return message

        await self.app(scope, counted, send)


_CSS = """
.answer { display: block; width: 100%; height: var(--answer-height, 60rem); border: 0; }
.problem { border-left: 4px dashed #b35c00; background: var(--background-fill-secondary); padding: 0.8rem 1rem; }
.problem, .notes { overflow-wrap: anywhere; }
.notes { color: var(--body-text-color); font-size: 0.9rem; margin: 0; }
"""
# The frame reports its height and is told whether the page is dark; every other message is ignored.
_HEAD = """<script>
addEventListener("message", ({ source, data }) => {
  const frame = document.querySelector("iframe.answer");
  if (!frame || source !== frame.contentWindow || !Number.isFinite(data?.height)) return;
  const height = Math.min(Math.max(data.height, 100), 20000);
  document.documentElement.style.setProperty("--answer-height", `${height}px`);
  source.postMessage({ dark: document.body.classList.contains("dark") }, "*");
});
</script>"""


def build_app(model: str = "incidents") -> gr.Blocks:
    """The page, with the given model chosen; `launch` shows it."""
    service = Service(open_models(model))
    default = service.defaults(model)
    sequences, where, noticed = service.arrange(Source(model), None, default["future"])
    begin = EXAMPLE if noticed["value"] else UPLOAD  # a model with other marks cannot read the examples
    with gr.Blocks(
        title="Which past events explain what followed?",
        analytics_enabled=False,
        delete_cache=(_UPLOADS_KEPT_SECONDS, _UPLOADS_KEPT_SECONDS),
        fill_width=True,
    ) as app:
        gr.HTML(
            "<h1>Which past events explain what followed?</h1><p>A trained point process says how likely events were. "
            "The fewest past events without which it finds what followed less likely are the explanation.</p>"
        )
        with gr.Row():
            with gr.Column(scale=1, min_width=300):
                chosen = gr.Dropdown(list(service.models), value=model, label="Model")
                source = gr.Radio([EXAMPLE, UPLOAD, PASTED], value=begin, label="Events")
                picked = gr.Dropdown(list(EXAMPLES), label="Example", visible=begin == EXAMPLE)
                # Hide the column, not the field: Gradio builds an updated field anew, without `_only_uploads`.
                with gr.Column(visible=begin == UPLOAD) as holder:
                    upload = gr.File(label=f"File of events, up to {MAX_MEGABYTES} MB", height=140)
                    _only_uploads(upload)
                hint = "time,mark\n2026-03-02 03:08,alert"
                pasted = gr.Textbox(label="Table", lines=6, max_lines=12, placeholder=hint, visible=False)
                with gr.Accordion("Columns", open=False, visible=begin != EXAMPLE) as columns:
                    columns_named = [gr.Textbox(label=name, placeholder="found by itself") for name in COLUMN_FIELDS]
                notes = gr.HTML(**noticed)
                sequence = gr.Dropdown(label="Sequence", allow_custom_value=True, **sequences)
                split = gr.Slider(1, step=1, label="The history ends after event", **where)
                future = gr.Slider(1, MAX_FUTURE, default["future"], step=1, label="Events after it to explain")
                history = gr.Slider(1, MAX_HISTORY, default["history"], step=1, label="Events before it to look at")
                target = gr.Radio(TARGETS, value=default["target"], label="What is asked")
                amounts = [
                    gr.Slider(low, high, default[kind], step=step, label=label, visible=kind == default["target"])
                    for kind, label, low, high, step in AMOUNTS
                ]
                conditioning = gr.Radio(
                    CONDITIONINGS,
                    value=default["conditioning"],
                    label="The first event after the split",
                    info="Survival: it is known not to have come before the split.",
                )
            with gr.Column(scale=3, min_width=320):
                answer = gr.HTML(elem_id="answer")
                text = gr.Textbox(visible="hidden")

        place = [chosen, source, picked, upload, pasted, *columns_named]
        defaults: list[Any] = [future, history, target, *amounts, conditioning]
        # All answers share one queue; while a slider moves, only its last value is asked.
        asking: dict[str, Any] = {
            "fn": service.show_answer,
            "inputs": [*place, sequence, split, *defaults],
            "outputs": [answer, text],
            "trigger_mode": "always_last",
            "show_progress": "minimal",
            "concurrency_limit": AT_ONCE,
            "concurrency_id": "explain",
        }
        reading: dict[str, Any] = {
            "fn": service.show_events,
            "inputs": [*place, sequence, future],
            "outputs": [sequence, split, notes],
            "show_progress": "hidden",
            "concurrency_limit": AT_ONCE,
        }

        def show_source(kind: str) -> list[Update]:
            shown = [kind == EXAMPLE, kind == UPLOAD, kind == PASTED, kind != EXAMPLE]
            return [gr.update(visible=visible) for visible in shown]

        def show_target(kind: str) -> list[Update]:
            return [gr.update(visible=name == kind) for name, *_ in AMOUNTS]

        private: dict[str, Any] = {"api_visibility": "private"}
        app.load(**asking, api_name="explain")
        model_shown = chosen.input(service.show_model, chosen, defaults, **private)
        model_shown.then(**reading, **private).then(**asking, **private)
        source.input(show_source, source, [picked, holder, pasted, columns], **private)
        events_changed = [source.input, picked.input, upload.upload, upload.clear, sequence.input, pasted.blur]
        events_changed += [field.blur for field in columns_named]
        gr.on(events_changed, **reading, api_name="open").then(**asking, **private)
        target.change(show_target, target, amounts, **private)
        gr.on([control.input for control in [split, *defaults]], **asking, **private)
    app.queue(max_size=MAX_WAITING)
    return app


def _return_freed_memory() -> None:
    """Return free memory to the system once a minute: glibc keeps it in its heaps, 100 MB after some thousand answers.
    Libraries of other systems have no `malloc_trim`."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:
        sleep(_SECONDS_BETWEEN_TRIMS)
        trim(0)


def launch(model: str = "incidents", port: int | None = None, *, wait: bool = True) -> gr.Blocks:
    """Serve the page on this machine until interrupted, or without waiting.

    Args:
        model: the one to begin with: a folder, a bundled name, or a Hub id.
        port: where to listen; by default the first free one from 7860.
        wait: whether to return only when the server is stopped.
    """
    transformers_logging.disable_progress_bar()  # loading takes a blink
    app = build_app(model)
    if sys.platform == "linux":
        Thread(target=_return_freed_memory, daemon=True).start()
    app.launch(
        server_port=port,
        share=False,
        prevent_thread_lock=True,
        quiet=True,
        theme=gr.themes.Base(  # fonts of the system: nothing is fetched
            primary_hue="blue",
            neutral_hue="slate",
            font=("system-ui", "sans-serif"),
            font_mono=("ui-monospace", "monospace"),
        ).set(body_background_fill="#ffffff", body_background_fill_dark="#14171b"),  # as in the frame
        css=_CSS,
        head=_HEAD,
        footer_links=["api"],
        state_session_capacity=_VISITORS_KEPT,
        max_file_size=_CUT_OFF_MEGABYTES * 1_000_000,
        app_kwargs={"middleware": [Middleware(_BoundedBodies)]},
        ssr_mode=False,
    )
    if wait:
        print(f"Open {app.local_url} in a browser. Ctrl-C ends it.", flush=True)
        app.block_thread()
    return app
