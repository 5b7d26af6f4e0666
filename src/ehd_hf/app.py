"""A page to play with: pick or upload events, move the split, choose the target, see the explanation at once.

What the page calls (`Service`) depends on its arguments alone: nothing is kept between two requests, so none can see
another's events or answer, and the models are opened once and only read. Strings from data reach the page as text: in
Gradio's own fields, escaped, or inside the page of `pages`, which sits in a frame that may run its own script but
belongs to no origin: it cannot reach the page around it, other sites, or what the browser keeps for them.
"""

from __future__ import annotations

try:
    import gradio as gr
except ImportError as error:
    raise ImportError("the app comes with the demo extra. Install it: pip install 'ehd-hf[demo]'") from error

import base64
import ctypes
import json
import logging
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import sleep
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from transformers.utils import logging as transformers_logging

from .data.reading import Read, Reading, read_events
from .data.synthetic import example_log
from .data.tables import nearest
from .explain.explainer import EHDDistiller, list_pretrained, load_example
from .explain.explanation import Explanation
from .present.pages import explanation_page
from .training.recipe import reading_of

# What one request may cost: megabytes and events to read, events to score, people waiting, answers made at once.
MAX_MEGABYTES, MAX_EVENTS = 10, 200_000
MAX_HISTORY, MAX_FUTURE = 200, 50
MAX_WAITING, AT_ONCE = 100, 2
# Larger uploads are cut off on their way; those between the limits get a sentence of ours.
_CUT_OFF_MEGABYTES = 5 * MAX_MEGABYTES
_UPLOADS_KEPT_SECONDS = 3600
# Gradio keeps what each visitor's page shows, a quarter of a megabyte, and takes every call of a program for a new
# visitor: its own limit of 10,000 would be gigabytes.
_VISITORS_KEPT = 300
_SECONDS_BETWEEN_TRIMS = 60
_NAMES_LISTED = 1000
_LONGEST_MESSAGE = 1000

EXAMPLE, UPLOAD, PASTED = "Example", "File", "Pasted table"
EXAMPLES: dict[str, Callable[[], pd.DataFrame]] = {
    "One incident": lambda: load_example("incidents"),
    "Six services, simulated": lambda: example_log(6).rename(columns={"service": "sequence"}),
}
SHARE, EPSILON, SIZE = "share", "epsilon", "size"
TARGETS = [("Share of what the past explains", SHARE), ("Factor of likelihood", EPSILON), ("Number of events", SIZE)]
CONDITIONINGS = [("Survival", "survival"), ("As in the paper", "paper")]
# The fields of the page by the names that the command line gives them.
_FIELDS = {"time": "Time column", "mark": "Mark column", "sequence": "Sequence column", "time-format": "Time format"}

Update = dict[str, Any]


class Opened(NamedTuple):
    """A model, and how its events are read."""

    explainer: EHDDistiller
    reading: Reading


def open_models(model: str) -> dict[str, Opened]:
    """The given model first, then the bundled ones; opened before the first request, for opening is not reading."""
    opened = {}
    for name in dict.fromkeys([model, *list_pretrained()]):
        config = Path(name) / "config.json"
        alone = config.is_file() and "mtpp_config" not in json.loads(config.read_text(encoding="utf-8"))
        explainer = EHDDistiller.from_mtpp(name) if alone else EHDDistiller.from_pretrained(name)
        opened[name] = Opened(explainer, reading_of(name, explainer))
    return opened


# --- what the page calls


class Service:
    """Answers from models that nobody changes."""

    def __init__(self, models: Mapping[str, Opened]) -> None:
        self.models = models

    def read(
        self,
        model: str,
        source: str,
        example: str,
        upload: str | None,
        pasted: str | None,
        time: str | None,
        mark: str | None,
        sequence_column: str | None,
        time_format: str | None,
    ) -> Read:
        """The events of a source, as the model knows them."""
        reading = self.models[model].reading
        if source == EXAMPLE:
            frame = EXAMPLES[example]()
            try:
                return read_events(frame, reading=reading)
            except ValueError as error:
                raise ValueError(
                    f"the examples are not for {model}: {error} Or choose the model incidents."
                ) from error
        columns = {"time": time, "mark": mark, "sequence": sequence_column, "time_format": time_format}
        named = {role: (name or "").strip() or None for role, name in columns.items()}  # None: never shown
        if source == UPLOAD and upload is None:
            raise ValueError("choose a file with one row per event: CSV, TSV, JSON Lines or Parquet.")
        if source == UPLOAD:
            return _read_file(Path(str(upload)), reading, named)
        if not (pasted or "").strip():
            raise ValueError("paste a table: a line of column names, then one row per event.")
        with TemporaryDirectory() as folder:
            file = Path(folder) / "pasted.csv"
            file.write_text(str(pasted).strip() + "\n", encoding="utf-8")
            return _read_file(file, reading, named)

    def explain(
        self,
        model: str,
        source: str,
        example: str,
        upload: str | None,
        pasted: str | None,
        time: str | None,
        mark: str | None,
        sequence_column: str | None,
        time_format: str | None,
        sequence: str | None,
        split: float,
        future: float,
        history: float,
        target: str,
        share: float,
        epsilon: float,
        size: float,
        conditioning: str,
    ) -> Explanation:
        """Which of the `history` events before the split explain the `future` events after it?"""
        read = self.read(model, source, example, upload, pasted, time, mark, sequence_column, time_format)
        events = read.events
        index = _position(events.seq_ids, sequence)
        length = int(events.lengths[index])
        if length < 2:
            raise ValueError(f"there must be a past and a future; sequence {events.seq_ids[index]} has one event.")
        last = _count("the event after which the history ends", split, length - 1)
        num_future = min(_count("the number of events to explain", future, MAX_FUTURE), length - last)
        one = events.select([index])
        end = last + num_future
        one = replace(one, times=one.times[:end], marks=one.marks[:end], offsets=np.array([0, end]))
        wanted: dict[str, Any] = {
            SHARE: share,
            EPSILON: epsilon,
            SIZE: _count("the size", size, MAX_HISTORY),
        }
        # Another way to ask the same weights; an explainer of its own costs nothing.
        explainer = EHDDistiller(self.models[model].explainer.model, conditioning=conditioning)  # type: ignore[arg-type]
        answer: Any = explainer.explain(
            one,
            future=num_future,
            history=_count("the number of events to look at", history, MAX_HISTORY),
            **{target: wanted[target]},
            intensities=True,
        )
        return answer if read.reading.sequence is not None else replace(answer, seq_id=None)

    # --- as updates of the page

    def show_answer(self, *question: Any) -> tuple[str, str]:
        """The explanation as HTML and as JSON; or why there is none, and nothing."""
        try:
            answer = self.explain(*question)
        except Exception as error:
            return problem(error), ""
        return shown(answer), answer.to_json()

    def show_model(self, model: str) -> list[Update]:
        """What a model is asked if nobody says otherwise."""
        return [gr.update(**settings) for settings in self.defaults(model).values()]

    def defaults(self, model: str) -> dict[str, Update]:
        """Values of future, history, target, share, epsilon, size and conditioning."""
        explainer = self.models[model].explainer
        values = {
            "future": min(explainer.future or 5, MAX_FUTURE),
            "history": min(getattr(explainer.model.config, "history", None) or 50, MAX_HISTORY),
            "target": SHARE if explainer.epsilon is None else EPSILON,
            "share": explainer.share or 0.7,
            "epsilon": explainer.epsilon or 0.5,
            "size": 3,
            "conditioning": explainer.conditioning,
        }
        return {name: {"value": value} for name, value in values.items()}

    def show_events(self, *values: Any) -> list[Update]:
        """The sequences of a source, where to split the one that is chosen, and what was noticed while reading."""
        return [gr.update(**settings) for settings in self.arrange(*values)]

    def arrange(self, *values: Any) -> tuple[Update, Update, Update]:
        """Of a source, the sequence chosen so far and the number of events to explain: sequences, split, notes."""
        *source, sequence, future = values
        try:
            read = self.read(*source)
        except Exception:  # the question that follows meets it too, and says it
            return {"choices": [], "value": None, "visible": False}, {"maximum": 2, "value": 1}, {"value": ""}
        names = [str(name) for name in read.events.seq_ids]
        listed = sorted(names)
        chosen = sequence if sequence in names else listed[0]
        length = int(read.events.lengths[names.index(chosen)])
        of = f"{len(names):,} sequences" if len(names) > 1 else "one sequence"
        notes = [f"{read.events.num_events:,} events of {of}.", *read.notes]
        if len(names) > _NAMES_LISTED:
            notes.append(f"The first {_NAMES_LISTED:,} sequences are listed; type the name of any other.")
        sequences = {"choices": listed[:_NAMES_LISTED], "value": chosen, "visible": len(names) > 1}
        # A slider needs two places at least.
        split = {"maximum": max(length - 1, 2), "value": max(length - int(future), 1)}
        return sequences, split, {"value": in_lines(notes)}


def _read_file(file: Path, reading: Reading, columns: Mapping[str, Any]) -> Read:
    """A stranger's file: bounded before it is read, and no path of this machine in what is said about it."""
    try:
        size = file.stat().st_size
        if size > MAX_MEGABYTES * 1_000_000:
            raise ValueError(
                f"a file may have up to {MAX_MEGABYTES} MB here; {file.name} has {size / 1e6:.1f}. Cut it to the "
                "sequences you ask about, or use ehd-hf explain on your own machine."
            )
        read = read_events(_bounded_table(file) if file.suffix == ".parquet" else file, reading=reading, **columns)
        _check_number(read.events.num_events)
        return read
    except (ValueError, OSError) as error:
        raise ValueError(str(error).replace(f"{file.parent}/", "")) from error


def _check_number(num_events: int) -> None:
    if num_events > MAX_EVENTS:
        raise ValueError(
            f"a table may have up to {MAX_EVENTS:,} events here; got {num_events:,}. Cut it to the sequences you ask "
            "about, or use ehd-hf explain on your own machine."
        )


def _bounded_table(file: Path) -> dict[str, Any]:
    """A small Parquet file can unfold to any size: counts are looked at first, and texts while they are folded."""
    try:
        opened = pq.ParquetFile(file)
        known, schema = opened.metadata, opened.schema
        groups = [known.row_group(group) for group in range(known.num_row_groups)]
        _check_number(known.num_rows)
        for i in range(known.num_columns):  # a row may hold lists
            _check_number(sum(group.column(i).num_values for group in groups))
        _check_unfolded(sum(group.total_byte_size for group in groups))
        texts = [schema.column(i).path for i in range(len(schema)) if schema.column(i).physical_type == "BYTE_ARRAY"]
        table = pq.read_table(file, read_dictionary=texts)
        for column in table.columns:
            _check_unfolded(sum(map(_text_bytes, column.chunks)))
        return {name: table[name] for name in table.column_names}
    except pa.ArrowException as error:
        raise ValueError(f"{file.name} cannot be read as Parquet: {error}. Was it written completely?") from error


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


def _position(seq_ids: tuple[Any, ...], name: str | None) -> int:
    names = [str(known) for known in seq_ids]
    if name is None:
        return 0
    if name not in names:
        raise ValueError(f"there is no sequence {name!r} among {len(names):,}.{nearest(name, names)} Choose another.")
    return names.index(name)


def _count(what: str, value: float, most: int) -> int:
    if not isinstance(value, int | float) or value != int(value) or not 1 <= value <= most:
        raise ValueError(f"{what} must be a whole number from 1 to {most}; got {value}. Choose one of these.")
    return int(value)


# --- what the page shows


def shown(explanation: Explanation) -> str:
    """The interactive page of an explanation, shut in a frame, and its JSON to take away."""
    page = escape(explanation_page(explanation, embedded=True))
    data = base64.b64encode(explanation.to_json().encode()).decode()
    return (
        f'<iframe class="answer" title="The explanation" sandbox="allow-scripts" srcdoc="{page}"></iframe>'
        f'<a download="explanation.json" href="data:application/json;base64,{data}">Download as JSON</a>'
    )


def problem(error: Exception) -> str:
    """What is wrong, in a sentence; a mistake of ours goes to the log."""
    if isinstance(error, ValueError | TypeError | OSError | MemoryError):
        text = " ".join(str(error).split()) or type(error).__name__
    else:
        logging.getLogger(__name__).error("a question failed", exc_info=error)
        text = "something went wrong in this app, not in your events. Try another question, and report it, please."
    text = re.sub(r"--(time-format|time|mark|sequence)\b(?: COLUMN)?", lambda found: f"“{_FIELDS[found[1]]}”", text)
    text = text if len(text) <= _LONGEST_MESSAGE else f"{text[:_LONGEST_MESSAGE]}…"
    return f'<div class="problem" role="alert"><strong>No answer yet:</strong> {escape(text)}</div>'


def in_lines(texts: list[str]) -> str:
    return f'<p class="notes">{"<br>".join(escape(text) for text in texts)}</p>'


def _only_uploads(field: gr.File) -> None:
    """Let a field take files from the browser alone: Gradio would fetch whatever address a program names in it."""
    move = field.async_move_resource_to_block_cache

    async def moved(place: Any) -> str | None:
        if str(place).lower().startswith(("http:", "https:")):
            raise gr.Error(f"A file must be uploaded; got the address {place}. Download it first.")
        return await move(place)

    field.async_move_resource_to_block_cache = moved  # type: ignore[assignment, method-assign]


class _BoundedBodies:
    """Refuses requests that send more than a file may have, before they fill the memory."""

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
# The frame says how high it is, and is told whether it is dark here; nothing else of what it says is heard.
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
    asked = service.defaults(model)
    example = next(iter(EXAMPLES))
    sequences, where, noticed = service.arrange(model, EXAMPLE, example, *[None] * 6, None, asked["future"]["value"])
    begin = EXAMPLE if noticed["value"] else UPLOAD  # a model of one's own knows other marks
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
                picked = gr.Dropdown(list(EXAMPLES), value=example, label="Example", visible=begin == EXAMPLE)
                # Hidden with what holds it: a field that is itself updated is made anew, and would fetch again.
                with gr.Column(visible=begin == UPLOAD) as holder:
                    upload = gr.File(label=f"File of events, up to {MAX_MEGABYTES} MB", height=140)
                    _only_uploads(upload)
                pasted = gr.Textbox(
                    label="Table",
                    lines=6,
                    max_lines=12,
                    placeholder="time,mark\n2026-03-02 03:08,alert",
                    visible=False,
                )
                with gr.Accordion("Columns", open=False, visible=begin != EXAMPLE) as columns:
                    fields = [gr.Textbox(label=name, placeholder="found by itself") for name in _FIELDS.values()]
                notes = gr.HTML(**noticed)
                sequence = gr.Dropdown(label="Sequence", allow_custom_value=True, **sequences)
                split = gr.Slider(1, step=1, label="The history ends after event", **where)
                future = gr.Slider(1, MAX_FUTURE, step=1, label="Events after it to explain", **asked["future"])
                history = gr.Slider(1, MAX_HISTORY, step=1, label="Events before it to look at", **asked["history"])
                target = gr.Radio(TARGETS, label="What is asked", **asked["target"])
                kinds: dict[str, dict[str, Any]] = {
                    SHARE: {"label": "Share", "minimum": 0.05, "maximum": 1, "step": 0.05},
                    EPSILON: {
                        "label": "Without them, at most so likely",
                        "minimum": 0.05,
                        "maximum": 0.95,
                        "step": 0.05,
                    },
                    SIZE: {"label": "Events", "minimum": 1, "maximum": MAX_HISTORY, "step": 1},
                }
                values = {
                    kind: gr.Slider(**kinds[kind], **asked[kind], visible=kind == asked["target"]["value"])
                    for kind in kinds
                }
                conditioning = gr.Radio(
                    CONDITIONINGS,
                    label="The first event after the split",
                    info="Survival: it is known not to have come before the split.",
                    **asked["conditioning"],
                )
            with gr.Column(scale=3, min_width=320):
                answer = gr.HTML(elem_id="answer")
                text = gr.Textbox(visible="hidden")

        place = [chosen, source, picked, upload, pasted, *fields]
        window = [sequence, split, future, history]
        question = [*place, *window, target, *values.values(), conditioning]
        # One line for all answers; of a slider's many values on the way, the last one counts.
        asking: dict[str, Any] = {
            "fn": service.show_answer,
            "inputs": question,
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
            return [gr.update(visible=name == kind) for name in values]

        private: dict[str, Any] = {"api_visibility": "private"}
        app.load(**asking, api_name="explain")
        defaults = [future, history, target, *values.values(), conditioning]
        chosen.input(service.show_model, chosen, defaults, **private).then(**reading, **private).then(
            **asking, **private
        )
        source.input(show_source, source, [picked, holder, pasted, columns], **private)
        events_changed = [source.input, picked.input, upload.upload, upload.clear, sequence.input]
        events_changed += [pasted.blur, *(field.blur for field in fields)]
        gr.on(events_changed, **reading, api_name="open").then(**asking, **private)
        target.change(show_target, target, list(values.values()), **private)
        asked_again: list[Any] = [split, future, history, target, *values.values(), conditioning]
        gr.on([control.input for control in asked_again], **asking, **private)
    app.queue(max_size=MAX_WAITING)
    return app


def _return_freed_memory() -> None:
    """Give pages that hold nothing any more back to the system, once a minute. glibc has a heap for every few threads
    and keeps the holes in it: without this a busy server holds 100 MB more after some thousand answers."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    while trim is not None:  # other systems' libraries have no such function
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
