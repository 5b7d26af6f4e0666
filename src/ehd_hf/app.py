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
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from transformers.utils import logging as transformers_logging

from .data.reading import Read
from .data.sequences import find_sequence
from .data.synthetic import example_log
from .data.tables import shorten
from .explain.explainer import EHDDistiller, load_example
from .explain.explanation import Explanation
from .hub.fetch import list_pretrained
from .present.pages import TITLE, explanation_page

# What one request may cost: megabytes and events to read, events to score, people waiting, answers made at once.
MAX_MEGABYTES, MAX_EVENTS = 10, 200_000
MAX_HISTORY, MAX_FUTURE = 200, 50
MAX_WAITING, AT_ONCE = 100, 2
# The server cuts larger uploads off; files between the two limits are refused with a message.
_CUT_OFF_MEGABYTES = 5 * MAX_MEGABYTES
_UPLOADS_DELETED = (3600, 3600)  # every so many seconds, those older than so many
# Gradio keeps 0.25 MB per visitor and counts every call of a program as a new visitor; its default is 10,000 visitors.
_VISITORS_KEPT = 300
_NAMES_LISTED, _LONGEST_MESSAGE = 1000, 1000

EXAMPLE, UPLOAD, PASTED = "Example", "File", "Pasted table"
EXAMPLES: dict[str, Callable[[], Any]] = {
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
COLUMNS = {"time": "Time column", "mark": "Mark column", "sequence": "Sequence column", "time_format": "Time format"}

Settings = dict[str, Any]
# glibc keeps freed memory in its heaps, 100 MB after some thousand answers; other systems have no `malloc_trim`.
_return_freed_memory = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
_TEMPLATES = Path(__file__).parent / "present" / "templates"


class Asked(NamedTuple):
    """The values of the page's controls, in their order. `upload` is a path; empty column names are detected; `target`
    names the one of share, epsilon and size that counts."""

    model: str = "incidents"
    source: str = EXAMPLE
    example: str = next(iter(EXAMPLES))
    upload: str | None = None
    pasted: str | None = None
    time: str | None = None
    mark: str | None = None
    sequence_column: str | None = None
    time_format: str | None = None
    sequence: str | None = None
    split: float = 25
    future: float = 5
    history: float = 25
    target: str = SHARE
    share: float = 0.7
    epsilon: float = 0.5
    size: float = 3
    conditioning: Any = "survival"


def open_models(model: str) -> dict[str, EHDDistiller]:
    """The given model first, then the bundled ones."""
    return {name: EHDDistiller.from_pretrained(name) for name in dict.fromkeys([model, *list_pretrained()])}


class Service:
    """Reads events and explains them with models that no request changes."""

    def __init__(self, models: Mapping[str, EHDDistiller]) -> None:
        self.models = models

    def _opened(self, name: Any) -> EHDDistiller:
        if not isinstance(name, str) or name not in self.models:
            raise ValueError(f"choose a model, one of {', '.join(self.models)}; got {name or 'none'}.")
        return self.models[name]

    def read(self, asked: Asked) -> Read:
        """Read the events as the model does."""
        explainer = self._opened(asked.model)
        if asked.source == EXAMPLE:
            try:
                return explainer.read(EXAMPLES[asked.example]())
            except ValueError as error:
                reason = f"the examples are not for {asked.model}: {error} Or choose the model incidents."
                raise ValueError(reason) from error
        if asked.source == UPLOAD:
            if asked.upload is None:
                raise ValueError("choose a file with one row per event: CSV, TSV, JSON Lines or Parquet.")
            return _read_file(explainer, Path(asked.upload), asked)
        text = (asked.pasted or "").strip()
        if not text:
            raise ValueError("paste a table: a line of column names, then one row per event.")
        with TemporaryDirectory() as folder:
            file = Path(folder) / "pasted.csv"
            file.write_text(text + "\n", encoding="utf-8")
            return _read_file(explainer, file, asked)

    def explain(self, asked: Asked) -> Explanation:
        """Find the events before the split that explain those after it."""
        read = self.read(asked)
        one = read.events.select([0 if asked.sequence is None else find_sequence(read.events, asked.sequence)])
        if one.num_events < 2:
            raise ValueError(f"there must be a past and a future; sequence {one.seq_ids[0]} has one event.")
        last = _count("the event after which the history ends", asked.split, one.num_events - 1)
        future = min(_count("the number of events to explain", asked.future, MAX_FUTURE), one.num_events - last)
        history = _count("the number of events to look at", asked.history, MAX_HISTORY)
        one = one.select([0], end=last + future)
        amounts = {SHARE: asked.share, EPSILON: asked.epsilon, SIZE: _count("the size", asked.size, MAX_HISTORY)}
        question: dict[str, Any] = {asked.target: amounts[asked.target]}
        # The conditioning belongs to the explainer: a new one shares the weights and leaves the old one as it is.
        explainer = EHDDistiller(self._opened(asked.model).model, conditioning=asked.conditioning)
        answer: Any = explainer.explain(one, future=future, history=history, intensities=True, **question)
        return answer if read.reading.sequence is not None else replace(answer, seq_id=None)

    def show_answer(self, *values: Any) -> tuple[str, str]:
        """The explanation as HTML and as JSON; or an error message and an empty text."""
        try:
            answer = self.explain(Asked(*values))
            return shown(answer), answer.to_json()
        except Exception as error:
            return problem(error), ""
        finally:
            if _return_freed_memory is not None:
                _return_freed_memory(0)

    def defaults(self, model: str) -> Settings:
        """Values of future, history, target, share, epsilon, size and conditioning: as the model was trained."""
        explainer = self._opened(model)
        return {
            "future": min(explainer.future or 5, MAX_FUTURE),
            "history": min(explainer.history, MAX_HISTORY),
            "target": SHARE if explainer.epsilon is None else EPSILON,
            SHARE: explainer.share or 0.7,
            EPSILON: explainer.epsilon or 0.5,
            SIZE: 3,
            "conditioning": explainer.conditioning,
        }

    def show_events(self, *values: Any) -> tuple[Settings, Settings, Settings]:
        """Settings of the list of sequences, the split and the notes."""
        asked = Asked(*values)
        try:
            read = self.read(asked)
        except Exception:  # the question that follows shows the error
            return {"choices": [], "value": None, "visible": False}, {"maximum": 2, "value": 1}, {"value": ""}
        names = [str(name) for name in read.events.seq_ids]
        listed = sorted(names)
        chosen = asked.sequence if asked.sequence in names else listed[0]
        length = int(read.events.lengths[names.index(chosen)])
        total = f"{len(names):,} sequences" if len(names) > 1 else "one sequence"
        notes = [f"{read.events.num_events:,} events of {total}.", *read.notes]
        if len(names) > _NAMES_LISTED:
            notes.append(f"The first {_NAMES_LISTED:,} sequences are listed; type the name of any other.")
        sequences = {"choices": listed[:_NAMES_LISTED], "value": chosen, "visible": len(names) > 1}
        # A slider needs at least two values.
        split = {"maximum": max(length - 1, 2), "value": max(length - int(asked.future), 1)}
        return sequences, split, {"value": in_lines(notes)}


def _read_file(explainer: EHDDistiller, file: Path, asked: Asked) -> Read:
    """Read a visitor's file within limits; errors do not name its folder on this machine."""
    given = zip(COLUMNS, (asked.time, asked.mark, asked.sequence_column, asked.time_format), strict=True)
    columns = {role: (name or "").strip() or None for role, name in given}
    try:
        _limit("a file", file.stat().st_size / 1e6, MAX_MEGABYTES, "MB")
        if file.suffix == ".json":
            _limit("a JSON file", _count_values(file.read_bytes()), 2 * MAX_EVENTS, "lists and objects")
        if file.suffix == ".parquet":
            _check_unpacked(file)
        read = explainer.read(file, **columns)
        _limit("a table", read.events.num_events, MAX_EVENTS, "events")
        return read
    except (ValueError, OSError) as error:
        raise ValueError(str(error).replace(f"{file.parent}/", "")) from error


def _count_values(body: bytes) -> int:
    """Lists and objects in JSON: an empty one takes three bytes there, and a hundred in memory."""
    return body.count(b"[") + body.count(b"{")


def _check_unpacked(file: Path) -> None:
    """Refuse a small Parquet file that unpacks to a huge table: check the counts in its metadata first, then the texts
    while they are still dictionary-encoded."""
    with suppress(pa.ArrowException):  # a damaged file: reading it says so
        opened = pq.ParquetFile(file)
        metadata, schema = opened.metadata, opened.schema
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        counts = [sum(group.column(i).num_values for group in groups) for i in range(metadata.num_columns)]
        _limit("a table", max(metadata.num_rows, *counts), MAX_EVENTS, "events")  # a row may hold lists
        texts = [schema.column(i).path for i in range(len(schema)) if schema.column(i).physical_type == "BYTE_ARRAY"]
        sizes = [sum(group.total_byte_size for group in groups)]
        if sizes[0] <= _CUT_OFF_MEGABYTES * 1e6:
            table = pq.read_table(file, read_dictionary=texts)
            sizes += [sum(map(_text_bytes, column.chunks)) for column in table.columns]
        _limit("an unpacked table", max(sizes) / 1e6, _CUT_OFF_MEGABYTES, "MB")


def _text_bytes(values: Any) -> int:
    while pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        values = values.flatten()
    if not pa.types.is_dictionary(values.type):
        return 0
    return pc.sum(pc.binary_length(values.dictionary).take(values.indices)).as_py() or 0


def _limit(what: str, value: float, most: int, unit: str) -> None:
    if value > most:
        remedy = "Leave out what you do not ask about, or use ehd-hf explain on your own machine."
        raise ValueError(f"{what} may have up to {most:,} {unit} here; got {round(value, 1):,}. {remedy}")


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
        text = str(error) or type(error).__name__
    else:
        logging.getLogger(__name__).error("a question failed", exc_info=error)
        text = "something went wrong in this app, not in your events. Try another question, and report it, please."
    text = escape(shorten(text, _LONGEST_MESSAGE))
    return f'<div class="problem" role="alert"><strong>No answer yet:</strong> {text}</div>'


def in_lines(texts: list[str]) -> str:
    return f'<p class="notes">{"<br>".join(escape(text) for text in texts)}</p>'


def _takes_uploads_only(field: gr.File) -> None:
    """Refuse web addresses: Gradio would fetch whatever address a program sends. Not a subclass of `gr.File`, because
    Gradio writes a .pyi file beside the source of every subclass of a component."""
    move = field.async_move_resource_to_block_cache

    async def moved(place: Any) -> str | None:
        if str(place).lower().startswith(("http:", "https:")):
            raise gr.Error(f"A file must be uploaded; got the address {place}. Download it first.")
        return await move(place)

    field.async_move_resource_to_block_cache = moved  # type: ignore[assignment, method-assign]


def _bounded_bodies(app: Any) -> Any:
    """Middleware that refuses requests larger than any upload may be, before they fill the memory."""

    async def bounded(scope: Any, receive: Any, send: Any) -> None:
        received = values = 0
        is_json = (b"content-type", b"application/json") in scope.get("headers", ())

        async def counted() -> Any:
            nonlocal received, values
            message = await receive()
            received += len(message.get("body", b""))
            values += _count_values(message.get("body", b"")) if is_json else 0
            if values > 2 * MAX_EVENTS:
                raise HTTPException(413, f"A request may have up to {2 * MAX_EVENTS:,} lists. Send fewer.")
            if received > _CUT_OFF_MEGABYTES * 1_000_000:
                raise HTTPException(413, f"A request may have up to {_CUT_OFF_MEGABYTES} MB. Send fewer events.")
            return message

        await app(scope, counted, send)

    return bounded


def build_app(model: str = "incidents") -> gr.Blocks:
    """The page, with the given model chosen; `launch` shows it."""
    service = Service(open_models(model))
    default = service.defaults(model)
    sequences, where, noticed = service.show_events(*Asked(model, future=default["future"]))
    begin = EXAMPLE if noticed["value"] else UPLOAD  # a model with other marks cannot read the examples
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=_UPLOADS_DELETED, fill_width=True) as app:
        gr.HTML(
            f"<h1>{TITLE}</h1><p>A trained point process says how likely events were. "
            "The fewest past events without which it finds what followed less likely are the explanation.</p>"
        )
        with gr.Row():
            with gr.Column(scale=1, min_width=300):
                chosen = gr.Dropdown(list(service.models), value=model, label="Model")
                source = gr.Radio([EXAMPLE, UPLOAD, PASTED], value=begin, label="Events")
                picked = gr.Dropdown(list(EXAMPLES), label="Example", visible=begin == EXAMPLE)
                limit = f"File of events, up to {MAX_MEGABYTES} MB"
                upload = gr.File(label=limit, height=140, visible=begin == UPLOAD)
                _takes_uploads_only(upload)
                hint = "time,mark\n2026-03-02 03:08,alert"
                pasted = gr.Textbox(label="Table", lines=6, max_lines=12, placeholder=hint, visible=False)
                with gr.Accordion("Columns", open=False, visible=begin != EXAMPLE) as columns:
                    named = [gr.Textbox(label=name, placeholder="found by itself") for name in COLUMNS.values()]
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
                info = "Survival: it is known not to have come before the split."
                title = "The first event after the split"
                conditioning = gr.Radio(CONDITIONINGS, value=default["conditioning"], label=title, info=info)
            with gr.Column(scale=3, min_width=320):
                answer = gr.HTML(elem_id="answer")
                text = gr.Textbox(visible="hidden")

        defaults: list[Any] = [future, history, target, *amounts, conditioning]
        controls = [chosen, source, picked, upload, pasted, *named, sequence, split, *defaults]
        # All answers share one queue; while a slider moves, only its last value is asked.
        asking: dict[str, Any] = {
            "fn": service.show_answer,
            "inputs": controls,
            "outputs": [answer, text],
            "trigger_mode": "always_last",
            "show_progress": "minimal",
            "concurrency_id": "explain",
        }
        reading: dict[str, Any] = {
            "fn": lambda *values: [gr.update(**settings) for settings in service.show_events(*values)],
            "inputs": controls,
            "outputs": [sequence, split, notes],
            "show_progress": "hidden",
        }

        def show_source(kind: str) -> list[Settings]:
            return [gr.update(visible=kind in kinds) for kinds in ([EXAMPLE], [UPLOAD], [PASTED], [UPLOAD, PASTED])]

        private: dict[str, Any] = {"api_visibility": "private"}
        app.load(**asking, api_name="explain")
        model_shown = chosen.input(lambda name: list(service.defaults(name).values()), chosen, defaults, **private)
        model_shown.then(**reading, **private).then(**asking, **private)
        source.input(show_source, source, [picked, upload, pasted, columns], **private)
        events_changed = [source.input, picked.input, upload.upload, upload.clear, sequence.input, pasted.blur]
        events_changed += [field.blur for field in named]
        gr.on(events_changed, **reading, api_name="open").then(**asking, **private)
        target.change(lambda kind: [gr.update(visible=row[0] == kind) for row in AMOUNTS], target, amounts, **private)
        gr.on([control.input for control in [split, *defaults]], **asking, **private)
    app.queue(max_size=MAX_WAITING, default_concurrency_limit=AT_ONCE)
    return app


def launch(model: str = "incidents", port: int | None = None) -> None:
    """Serve the page on this machine until interrupted, with the given model (a folder, a bundled name, or a Hub id)
    chosen; by default on the first free port from 7860."""
    transformers_logging.disable_progress_bar()  # loading takes a blink
    app = build_app(model)
    # Fonts of the system: nothing is fetched.
    fonts: Any = {"font": ("system-ui", "sans-serif"), "font_mono": ("ui-monospace", "monospace")}
    theme = gr.themes.Base(primary_hue="blue", neutral_hue="slate", **fonts)
    app.launch(
        server_port=port,
        share=False,
        prevent_thread_lock=True,
        quiet=True,
        theme=theme.set(body_background_fill="#ffffff", body_background_fill_dark="#14171b"),  # as in the frame
        css_paths=[_TEMPLATES / "app.css"],
        head_paths=[_TEMPLATES / "app_head.html"],
        footer_links=["api"],
        state_session_capacity=_VISITORS_KEPT,
        max_file_size=_CUT_OFF_MEGABYTES * 1_000_000,
        app_kwargs={"middleware": [Middleware(_bounded_bodies)]},
        ssr_mode=False,
    )
    print(f"Open {app.local_url} in a browser. Ctrl-C ends it.", flush=True)
    app.block_thread()
