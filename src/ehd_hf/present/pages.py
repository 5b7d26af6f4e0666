"""Explanations and rows in, HTML out: pages that hold all they need in one file and ask the network for nothing.

A string from data reaches a page in two ways only: through Jinja's autoescape, and in a block of JSON whose angle
brackets are escaped, from where the script puts it in place as text. Should that ever fail, the page's content
security policy allows its own script and style, by their digests, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .. import __version__
from ..explain.explanation import Explanation, Intensity

STATUSES = {
    "certified": "certified",
    "met": "target met",
    "missed": "target missed",
    "explains_nothing": "history explains nothing",
}
# Longer names and lines are cut; pictures show names in full on demand.
_LONGEST_NAME, _LONGEST_LINE = 120, 2000


def explanation_page(explanation: Explanation, title: str | None = None, *, embedded: bool = False) -> str:
    """One `Explanation` as an interactive page; or, embedded in another, without head and foot and all unfolded."""
    marks = {mark: index for index, mark in enumerate(dict.fromkeys(_marks_of(explanation)))}
    name = "This window" if explanation.seq_id is None else f"Sequence {explanation.seq_id}"
    data = _page_data([explanation], marks, [{"name": name, "where": ""}])
    return _page(
        "explanation.html.j2", title or "Which past events explain what followed?", data, name=name, embedded=embedded
    )


def explanation_fragment(explanation: Explanation) -> str:
    """One `Explanation` as a picture and its text, without script: what notebooks show, trusted or not."""
    buffer = io.BytesIO()
    explanation.plot().savefig(buffer, format="png", dpi=110)
    first, *text = str(explanation).split("\n")
    picture = base64.b64encode(buffer.getvalue()).decode()
    template = _environment().get_template("fragment.html.j2")
    return template.render(
        picture=picture, alt=f"The events of the window on a time line. {first}", text=[first, *text]
    )


class ReportContent(NamedTuple):
    """What the report of a data set says.

    Attributes:
        explanations: those to look at, in the order of the data.
        places: for each its `name` and `where` it lies.
        marks: names of all marks, in the model's order.
        facts: `name`, `value` and `more` of the figures on top.
        notes: `text`, and whether it is a `caution`.
        mtpp_rows, mtpp_columns: the table of models, `qq` in the rows; the model explained is called `ours`.
        process_note, summary_note: what the numbers were computed on.
        summary: of `report.summarize`: `sizes`, `reach`, `mark_shares`.
        mark_columns: of the table of marks.
    """

    explanations: Sequence[Explanation]
    places: Sequence[Mapping[str, str]]
    title: str
    about: str
    marks: Sequence[str]
    facts: Sequence[Mapping[str, str]]
    notes: Sequence[Mapping[str, Any]]
    mtpp_rows: Sequence[Mapping[str, Any]]
    mtpp_columns: Sequence[Any]
    process_note: str
    summary: Mapping[str, Any]
    summary_note: str
    mark_columns: Sequence[Any]
    ours: str


def report_page(content: ReportContent) -> str:
    """Render the report of a data set."""
    index = {mark: number for number, mark in enumerate(content.marks)}
    summary = content.summary
    shares = sorted(
        summary["mark_shares"], key=lambda row: (row["num_events"] < _SELDOM, row["expected"] - row["share"])
    )
    often = [row for row in shares if row["num_events"] >= _SELDOM] or shares
    shown = often if len(often) <= 24 else [*often[:12], *often[-12:]]  # the most and the least preferred
    data = _page_data(content.explanations, index, content.places) | {
        "calibration": [
            {"model": row["model"], "qq": row["qq"], "series": 2 if row["model"] == content.ours else min(number, 1)}
            for number, row in enumerate(content.mtpp_rows)
        ],
        "sizes": summary["sizes"],
        "reach": summary["reach"],
        "shares": [{key: _plain(row[key]) for key in _SHARE_KEYS} for row in shown],
    }
    used = {mark for one in data["explanations"] for mark in (one["marks"][event] for event in one["distilled"])}
    kinds = {kind for one in data["explanations"] for kind in one["kinds"]}
    return _page(
        "report.html.j2",
        content.title,
        data,
        about=content.about,
        facts=content.facts,
        notes=content.notes,
        mtpp_rows=content.mtpp_rows,
        mtpp_columns=content.mtpp_columns,
        ours=content.ours,
        process_note=content.process_note,
        calibration_alt="Quantiles of rescaled times. KS distance from Exp(1): "
        + "; ".join(f"{row['model']} {row['ks']:.3f}" for row in content.mtpp_rows),
        sizes_alt=_sizes_alt(summary["sizes"]),
        reach_alt=_reach_alt(summary["reach"]),
        marks_alt=f"Shares of {len(shown)} marks' events that are distilled; the table beside it holds the numbers.",
        summary_note=content.summary_note,
        mark_rows=shares,
        mark_columns=content.mark_columns,
        marks_note="Preferred most on top; with 95 % intervals over sequences, and corrected for the number of marks."
        + (
            f" {len(shown)} of {len(shares)} marks: the others, in the middle or seldom, are only in the table."
            if len(shown) < len(shares)
            else ""
        ),
        statuses=[(kind, words) for kind, words in STATUSES.items() if kind in kinds],
        mark_options=[(number, _cut(mark, 60)) for mark, number in index.items() if number in used],
        explanations=[_list_entry(one) for one in data["explanations"]],
    )


_SELDOM = 10  # events of a mark in the windows: of fewer a share says nothing
_LARGEST_SHARE = 3.0  # beyond, the whole history explains next to nothing, and shares of it mislead
_SHARE_KEYS = ("label", "share", "expected", "recency", "low", "high", "significant")


def window_data(explanation: Explanation, marks: Mapping[str, int], name: str, where: str) -> dict[str, Any]:
    """What the page's script needs to draw one explanation: plain numbers, few digits, marks by number."""
    events = explanation.history + explanation.future
    first = events[0].time
    size = sum(explanation.distill_mask)
    recent = sum(explanation.distill_mask[len(explanation.distill_mask) - size :]) if size else 0
    curve, is_share = _curve(explanation)
    limit, share = explanation.limit, explanation.explained_share
    kinds = [
        *(["certified"] if explanation.certified else []),
        "met" if explanation.constraint_met else "missed",
        *(["explains_nothing"] if explanation.status == "explains_nothing" else []),
    ]
    data: dict[str, Any] = {
        "name": _cut(name, _LONGEST_NAME),
        "where": where,
        "text": [_cut(line, _LONGEST_LINE) for line in str(explanation).split("\n")],
        "kinds": kinds,
        "recent": explanation.is_most_recent,
        "lastShare": recent / size if size else None,
        "left": _plain(explanation.dppl_left),
        "start": float(_since(first, np.datetime64(0, "ns") if isinstance(first, np.datetime64) else 0.0)),
        "times": _rounded(_since([event.time for event in events], first)),
        "marks": [marks[event.mark] for event in events],
        "future": len(explanation.future),
        "distilled": [index for index, chosen in enumerate(explanation.distill_mask) if chosen],
        "scores": [_plain(event.score) for event in explanation.history],
        "curve": curve,
        "isShare": is_share,
        "reached": _plain(share),
        "target": None if limit is None or share is None else _plain(limit / explanation.dppl_empty),
        "intensity": None,
    }
    if explanation.intensity is not None:
        data["intensity"] = _intensity(explanation, explanation.intensity, marks)
    return data


def _page_data(
    explanations: Sequence[Explanation], marks: Mapping[str, int], places: Sequence[Mapping[str, str]]
) -> dict[str, Any]:
    first = explanations[0]
    return {
        "marks": list(marks),
        "moments": isinstance(first.history[0].time, np.datetime64),
        "unit": first.time_unit,
        "explanations": [
            window_data(one, marks, place["name"], place["where"])
            for one, place in zip(explanations, places, strict=True)
        ],
    }


def _page(template: str, title: str, data: Mapping[str, Any], **words: Any) -> str:
    style, script = _asset("page.css"), _asset("page.js")
    return (
        _environment()
        .get_template(template)
        .render(
            title=title,
            version=__version__,
            data=data,
            style=Markup(style),
            script=Markup(script),
            style_hash=_digest(style),
            script_hash=_digest(script),
            **words,
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ehd_hf.present", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["figure"] = _figure
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
    return environment


@cache
def _asset(name: str) -> str:
    return files("ehd_hf.present").joinpath(f"templates/{name}").read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _figure(value: Any, spec: str) -> str:
    """A number of a table as text."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    return format(value, spec) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _plain(value: Any) -> Any:
    """A number with five digits, or None if it is none that JSON has."""
    if value is None or isinstance(value, bool | str):
        return value
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _since(times: Any, first: Any) -> np.ndarray:
    """Times since `first`; of timestamps in milliseconds."""
    if isinstance(first, np.datetime64):
        return (np.array(times, dtype="datetime64[ns]") - first).astype("timedelta64[ns]").astype(np.int64) / 1e6
    return np.array(times, dtype=float) - float(first)


def _rounded(since: np.ndarray) -> list[float]:
    """About seven digits of what is between the first and the last."""
    digits = 6 - math.floor(math.log10(since[-1])) if since[-1] > 0 else 0
    return [int(value) if value == int(value) else value for value in np.round(since, max(digits, 0)).tolist()]


def _curve(explanation: Explanation) -> tuple[list[float] | None, bool]:
    """The trade-off as shares where there are any, else as dppl_left."""
    if explanation.curve is None:
        return None, False
    values, share = np.array(explanation.curve), explanation.explained_share
    if not (np.isfinite(values).all() and math.isfinite(explanation.dppl_empty)):
        return None, False
    is_share = share is not None and max(share, *(values / explanation.dppl_empty).tolist()) <= _LARGEST_SHARE
    whole = explanation.dppl_empty if is_share else 1.0
    return [_plain(value) for value in values / whole], is_share


def _intensity(explanation: Explanation, curves: Intensity, marks: Mapping[str, int]) -> dict[str, Any]:
    """Curves in 16 bits a number: times within history and future, values below the largest of each pair."""
    first = explanation.history[0].time
    points = _since(curves.times, first)
    split, end = _since([explanation.history[-1].time, explanation.future[-1].time], first)
    in_history = np.arange(len(points)) < curves.split
    begin = np.where(in_history, 0.0, split)
    length = np.where(in_history, split, end) - begin
    places = np.divide(points - begin, length, out=np.zeros_like(points), where=length > 0)
    rows, scales = [], []
    for pair in [(curves.whole, curves.left), *zip(curves.whole_by_mark, curves.left_by_mark, strict=True)]:
        both = np.nan_to_num(np.stack(pair), posinf=0.0)
        scales.append(_plain(float(both.max())) or 1.0)
        rows.append(both / scales[-1])
    return {
        "numHistory": curves.split,
        "places": _packed(places),
        "values": _packed(np.concatenate(rows)),
        "scales": scales,
        "marks": [marks[mark] for mark in curves.marks],
    }


def _packed(values: np.ndarray) -> str:
    """Numbers in [0, 1] as base64 of 16 bits each."""
    return base64.b64encode(np.rint(values.clip(0, 1) * 65535).astype("<u2").tobytes()).decode()


def _marks_of(explanation: Explanation) -> list[str]:
    curves = () if explanation.intensity is None else explanation.intensity.marks
    return [*(event.mark for event in explanation.history + explanation.future), *curves]


def _list_entry(one: Mapping[str, Any]) -> dict[str, Any]:
    size, total = len(one["distilled"]), len(one["times"]) - one["future"]
    share = "" if one["reached"] is None else f", {one['reached']:.0%} explained"
    if (one["reached"] or 0) > _LARGEST_SHARE:
        share = f", over {_LARGEST_SHARE:.0%} explained"
    tags = [{"text": STATUSES[kind], "caution": kind != "certified"} for kind in one["kinds"] if kind != "met"]
    if size and one["recent"]:
        tags.append({"text": "simply the last", "caution": True})
    return {**one, "said": f"{size} of {total} events{share}", "tags": tags}


def _sizes_alt(sizes: Sequence[float]) -> str:
    median = int(np.searchsorted(np.cumsum(sizes), 0.5))
    largest = max((size for size, share in enumerate(sizes) if share > 0), default=0)
    return f"Distribution of the number of distilled events: median {median}, at most {largest}."


def _reach_alt(reach: Mapping[str, Sequence[float]]) -> str:
    share = reach["share"]
    places = sorted({0, min(4, len(share) - 1), min(9, len(share) - 1)})
    said = ", ".join(f"{share[place]:.0%} of the {place + 1}. last event" for place in places)
    return f"Share of windows that distil an event by how far back it lies: {said}."


def _cut(text: str, length: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"
