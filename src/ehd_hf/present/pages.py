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
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from .. import __version__
from ..data.tables import shorten
from ..explain.causes import Why
from ..explain.explanation import Explanation, Intensity
from ..explain.trace import Trace
from .tables import figure, number_of

STATUSES = {
    "certified": "certified",
    "met": "target met",
    "missed": "target missed",
    "explains_nothing": "history explains nothing",
}
TITLE = "Which past events explain what followed?"
# Longer names and lines are cut; pictures show names in full on demand.
_LONGEST_NAME, _LONGEST_LINE = 120, 2000
_LARGEST_SHARE = 3.0  # beyond, the whole history explains next to nothing, and shares of it mislead


def explanation_page(explanation: Explanation, title: str | None = None, *, embedded: bool = False) -> str:
    """One `Explanation` as an interactive page; or, embedded in another, without head and foot and all unfolded."""
    curves = () if explanation.intensity is None else explanation.intensity.marks
    marks = dict.fromkeys([*(event.mark for event in explanation.history + explanation.future), *curves])
    name = "This window" if explanation.seq_id is None else f"Sequence {explanation.seq_id}"
    data = page_data([explanation], list(marks), [(name, "")])
    return render_page("explanation.html.j2", title or TITLE, data, name=name, embedded=embedded)


def fragment(answer: Explanation | Trace | Why) -> str:
    """An answer as a picture and its text, without script: what notebooks show, trusted or not."""
    text = str(answer).split("\n")
    picture = None if isinstance(answer, Why) and not answer.history else png(answer.plot())
    alt = f"The events on a time line. {text[0]}"
    return _environment().get_template("fragment.html.j2").render(picture=picture, alt=alt, text=text)


def png(figure: Any) -> str:
    """A figure of matplotlib as base64."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return base64.b64encode(buffer.getvalue()).decode()


def render_page(template: str, title: str, data: Mapping[str, Any], kind: str = "page", **words: Any) -> str:
    """A page of one of the templates: `data` for its script, that of its `kind`; `words` for its text."""
    (style, style_hash), (script, script_hash) = _asset("common.css", f"{kind}.css"), _asset("common.js", f"{kind}.js")
    words |= {"style": style, "style_hash": style_hash, "script": script, "script_hash": script_hash}
    return _environment().get_template(template).render(title=title, data=data, version=__version__, **words)


def page_data(
    explanations: Sequence[Explanation], marks: Sequence[str], places: Sequence[tuple[str, str]]
) -> dict[str, Any]:
    """What the page's script needs; `places` hold the name of each explanation and where it lies in its sequence."""
    first, number = explanations[0], {mark: index for index, mark in enumerate(marks)}
    return {
        "marks": marks,
        "moments": isinstance(first.history[0].time, np.datetime64),
        "unit": first.time_unit,
        "explanations": [window_data(one, number, *place) for one, place in zip(explanations, places, strict=True)],
    }


def window_data(explanation: Explanation, marks: Mapping[str, int], name: str, where: str) -> dict[str, Any]:
    """What the page's script needs to draw one explanation: plain numbers, few digits, marks by number."""
    events = explanation.history + explanation.future
    first = events[0].time
    size = sum(explanation.distill_mask)
    recent = sum(explanation.distill_mask[len(explanation.distill_mask) - size :])
    curve, is_share = _curve(explanation)
    limit, share = explanation.limit, explanation.explained_share
    kinds = [
        *(["certified"] if explanation.certified else []),
        "met" if explanation.constraint_met else "missed",
        *(["explains_nothing"] if explanation.status == "explains_nothing" else []),
    ]
    return {
        "name": shorten(name, _LONGEST_NAME),
        "where": where,
        "text": [shorten(line, _LONGEST_LINE) for line in str(explanation).split("\n")],
        "kinds": kinds,
        "recent": explanation.is_most_recent,
        "lastShare": recent / size if size else None,
        "left": plain_number(explanation.dppl_left),
        "start": float(_since(first, np.datetime64(0, "ns") if isinstance(first, np.datetime64) else 0.0)),
        "times": _rounded(_since([event.time for event in events], first)),
        "marks": [marks[event.mark] for event in events],
        "future": len(explanation.future),
        "distilled": [index for index, chosen in enumerate(explanation.distill_mask) if chosen],
        "scores": [plain_number(event.score) for event in explanation.history],
        "curve": curve,
        "isShare": is_share,
        "reached": plain_number(share),
        "target": None if limit is None or share is None else plain_number(limit / explanation.whole),
        "intensity": None if explanation.intensity is None else _intensity(explanation, explanation.intensity, marks),
    }


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("ehd_hf.present", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"figure": figure, "number_of": number_of}
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
    return environment


@cache
def _asset(*names: str) -> tuple[Markup, str]:
    """A style or a script, in parts, and its digest for the content security policy."""
    folder = files("ehd_hf.present") / "templates"
    text = "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in names)
    return Markup(text), f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def plain_number(value: Any) -> Any:
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
    if explanation.curve is None or not all(map(math.isfinite, [*explanation.curve, explanation.whole])):
        return None, False
    values, share = np.array(explanation.curve), explanation.explained_share
    is_share = share is not None and max(share, *(values / explanation.whole).tolist()) <= _LARGEST_SHARE
    whole = explanation.whole if is_share else 1.0
    shown = np.minimum(values / whole, 1.0) if is_share else values
    return [plain_number(value) for value in shown], is_share


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
        scales.append(plain_number(float(both.max())) or 1.0)
        rows.append(both / scales[-1])
    return {
        "numHistory": curves.split,
        "places": packed(np.rint(65535 * places.clip(0, 1))),
        "values": packed(np.rint(65535 * np.concatenate(rows).clip(0, 1))),
        "scales": scales,
        "marks": [marks[mark] for mark in curves.marks],
    }


def packed(values: np.ndarray, exact: bool = False) -> str:
    """Numbers as base64, whole ones in as few bytes as they need unless `exact`; the first letters say which."""
    if not exact and (values == np.rint(values)).all() and values.max(initial=0) < 2**32:
        values = values.astype(np.min_scalar_type(int(values.max(initial=0))))
    values = values.astype(values.dtype.newbyteorder("<"))
    return f"{values.dtype.kind}{values.dtype.itemsize}{base64.b64encode(values.tobytes()).decode()}"


def list_entry(one: Mapping[str, Any]) -> dict[str, Any]:
    """An explanation of `page_data` as the list of the report shows it."""
    size, total = len(one["distilled"]), len(one["times"]) - one["future"]
    share = "" if one["reached"] is None else f", {one['reached']:.0%} explained"
    tags = [{"text": STATUSES[kind], "caution": kind != "certified"} for kind in one["kinds"] if kind != "met"]
    if size and one["recent"]:
        tags.append({"text": "simply the last", "caution": True})
    return {**one, "said": f"{size} of {total} events{share}", "tags": tags}
