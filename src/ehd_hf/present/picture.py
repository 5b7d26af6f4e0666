"""Pictures of explanations and of Hawkes processes. Made without pyplot: no global state, and drawn on any machine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm, to_rgb
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter

from ..data.tables import shorten
from ..explain.causes import Why
from ..explain.explanation import Explanation, Intensity
from ..explain.influence import Influence
from ..explain.trace import Trace
from ..files import replaced_when_done
from ..models.hawkes import HawkesModel
from .log_page import MAX_LANES, ordered_kinds, trace_of
from .tables import number_of

# Okabe and Ito: eight colours told apart with every common colour vision, here without the yellow, pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
STYLE: Any = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "savefig.dpi": 160,
}
_DASHES = (0, (4, 1.6))
_STROKES: Any = ("-", _DASHES, (0, (1, 1.2)), (0, (6, 1.5, 1, 1.5)))


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a picture, of the kind its name ends in, that appears whole."""
    with replaced_when_done(path) as partial:
        figure.savefig(partial, format=Path(path).suffix[1:] or "png")


class Theme(NamedTuple):
    """Colours of a picture of an explanation, told apart with every common colour vision, and in grey by shape."""

    face: str
    text: str
    faint: str
    future_face: str
    distilled: str
    left: str
    future: str
    whole: str


THEMES = {
    "light": Theme("#ffffff", "#1a1a1a", "#dddddd", "#f3f4f6", COLOURS[1], "#6b7280", "#000000", COLOURS[0]),
    "dark": Theme("#15181d", "#e8eaed", "#3a3f47", "#1e2329", "#ff9a52", "#a3abb5", "#ffffff", COLOURS[4]),
}
_FAINTEST_ARROW = 0.02  # a probability
_MOST_EVENTS, _MOST_ARROWS = 60, 80  # of a picture of a log
_MOST_LINES = 60  # that lead from events to curves: more would cover them
_LONGEST_NAME = 24
_LOGARITHMIC_FROM = 30  # times the median: above that a linear axis shows the peaks and nothing else


def explanation_plot(
    explanation: Explanation, title: str | None = None, *, mark: str | None = None, theme: str = "light"
) -> Figure:
    """Draw one window: its events by mark, history and future each on its own time scale; below, the intensity of
    `mark` (of all marks together, if None) with and without the distilled events (the scores, if there are no
    intensities); and the trade-off, if there is one."""
    ink = _theme(theme)
    frame, time_unit = explanation.to_frame(), explanation.time_unit
    intensity = explanation.intensity if mark is None else _intensity_of(explanation, mark)
    tradeoff = None if explanation.curve is None else explanation.tradeoff()
    lane, names = _lanes(frame)
    heights = [0.45 + 0.2 * len(names), 1.3, *([1.5] if tradeoff is not None else [])]
    with matplotlib.rc_context(STYLE | _themed(ink)):
        figure = Figure(figsize=(7.2, 1.1 + sum(heights)), layout="constrained", dpi=STYLE["savefig.dpi"])
        rows = figure.add_gridspec(len(heights) - 1, 1, height_ratios=[sum(heights[:2]), *heights[2:]])
        widths = [1.0, float(np.clip(len(explanation.future) / len(frame), 0.5, 0.8))]
        grid = rows[0].subgridspec(2, 2, height_ratios=heights[:2], width_ratios=widths)
        panels: Any = grid.subplots(sharex="col", sharey="row")
        for (name, part, span), (events, below) in zip(_history_and_future(frame), panels.T, strict=True):
            _draw_events(events, part, lane, ink)
            if intensity is None:
                _draw_scores(below, part, ink)
            else:
                _draw_intensity(below, intensity, name, part, ink)
            count = number_of(len(part), "event")
            events.set_title(f"{name}:\n{count} in {_duration(span, time_unit)}", loc="left", fontsize=8.5)
            for axes in (events, below):
                axes.grid(axis="y", visible=axes is below)
                axes.set_facecolor(ink.future_face if name == "future" else ink.face)
                axes.tick_params(axis="y", length=0)
                axes.spines["left"].set_visible(name == "history")
            _dress_time(below, span, time_unit)
        _name_lanes(panels[0, 0], names, -0.6)
        if intensity is None:
            panels[1, 0].set_ylabel("score")
        else:
            whose = "expected events" if mark is None else f"expected\n{_shown(mark)}"
            panels[1, 0].set_ylabel(f"{whose}\nper {_drawable(time_unit or 'unit of time')}", parse_math=False)
            curves = np.concatenate([intensity.whole, intensity.left])
            if curves.max() > _LOGARITHMIC_FROM * np.median(curves) > 0:
                panels[1, 0].set_yscale("log")
            else:
                panels[1, 0].set_ylim(bottom=0)
        handles = _handles(frame, intensity, ink)
        if tradeoff is None:
            figure.legend(handles=handles, loc="outside lower center", ncols=3)
        else:
            ((curve, words),) = rows[1].subgridspec(1, 2, width_ratios=[1.2, 1]).subplots(squeeze=False)
            _draw_tradeoff(curve, tradeoff, explanation, ink)
            words.axis("off")
            words.legend(handles=handles, loc="center left", borderaxespad=0)
        if title:
            size = STYLE["axes.titlesize"]
            figure.suptitle(_drawable(title), x=0.01, ha="left", fontsize=size, parse_math=False)
    return figure


def why_plot(why: Why, title: str | None = None, *, theme: str = "light") -> Figure:
    """Draw the causes of one event: the history by mark, and an arrow from each cause, the wider the more probable."""
    title = title or f"{why.event.mark}: nothing before it with probability {why.p_none:.0%}"
    return trace_plot(trace_of(why), title, event=len(why.history), theme=theme)


def trace_plot(trace: Trace, title: str | None = None, *, event: int | None = None, theme: str = "light") -> Figure:
    """Draw events by mark, the fuller the more probably others caused them, and an arrow from each probable cause, the
    wider the more probable; of a long log the part in which most was caused. Causes of `event` get their numbers."""
    ink, (effect, cause, share, p_none) = _theme(theme), trace.edges
    number = min(len(trace), _MOST_EVENTS)
    caused = np.bincount(effect, share.clip(0), len(trace))
    first = int(np.convolve(caused, np.ones(number), "valid").argmax())
    part = slice(first, first + number)
    faintest = 0.1 if event is None else _FAINTEST_ARROW
    shown = np.flatnonzero((share >= faintest) & (cause >= first) & (effect < part.stop))
    shown = shown[np.argsort(-share[shown], kind="stable")][:_MOST_ARROWS]
    role = np.where(np.isin(np.arange(len(trace)), cause[shown]), "distilled", "left")[part]
    frame = pd.DataFrame({"mark": trace.marks[part], "role": role, "order": ordered_kinds(trace)[1][part]})
    lane, names = _lanes(frame.sort_values("order", kind="stable"))
    times, place = trace.times[part], frame["mark"].map(lane).to_numpy()
    face, *colours = (np.array(to_rgb(colour)) for colour in (ink.face, ink.distilled, ink.left))
    edge = np.where((role == "distilled")[:, None], *colours)
    filled = face + np.nan_to_num(1 - p_none[part], nan=0.3)[:, None] * (edge - face)
    labelled = list[tuple[Any, Any]]()
    with matplotlib.rc_context(STYLE | _themed(ink)):
        figure = Figure(figsize=(7.2, 1.3 + 0.26 * len(names)), layout="constrained", dpi=STYLE["savefig.dpi"])
        axes = figure.subplots()
        axes.hlines(range(len(names)), 0, 1, ink.faint, linewidth=0.6, zorder=1, transform=axes.get_yaxis_transform())
        axes.scatter(times, place, s=26, c=filled, edgecolor=edge, linewidth=1, zorder=4, clip_on=False)
        for target, source, weight in zip(effect[shown] - first, cause[shown] - first, share[shown], strict=True):
            bend: Any = {
                "arrowstyle": "-|>",
                "connectionstyle": "arc3,rad=-0.25",
                "color": ink.distilled,
                "shrinkB": 5,
            }
            bend |= {"linewidth": 0.5 + 4 * weight, "alpha": 0.35 + 0.6 * weight}
            begin = times[source], place[source]
            axes.annotate("", (times[target], place[target]), begin, arrowprops=bend, zorder=3)
            is_free = all(y != begin[1] or abs(x - begin[0]) > (times[-1] - times[0]) / 25 for x, y in labelled)
            if event is not None and is_free:
                above: Any = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center", "fontsize": 7}
                axes.annotate(f"{weight:.0%}", begin, **above, zorder=6)
                labelled.append(begin)
        if event is not None:
            axes.scatter(times[event - first], place[event - first], s=44, c=ink.future, marker="D", zorder=5)
        _name_lanes(axes, names, -0.8)
        axes.grid(visible=False)
        _dress_time(axes, (times[0], times[-1]), trace.time_unit)
        said = f"{number} of {len(trace):,} events" if number < len(trace) else str(trace).split("\n")[0]
        axes.set_title(_drawable(title or said), loc="left", parse_math=False)
    return figure


def influence_plot(influence: Influence, title: str | None = None, *, theme: str = "light") -> Figure:
    """Draw which kinds drive which: a row per cause, and a first one for nothing, a column per effect, the darker the
    larger the share; kinds that have to do with one another stand side by side."""
    if theme not in THEMES:
        raise ValueError(f"theme must be one of {', '.join(THEMES)}; got {theme!r}.")
    size, columns = len(influence.kinds), influence.predicted
    square = np.zeros((size, size))
    square[:, columns] = influence.share
    order = _side_by_side(square + square.T)
    effects = [kind for kind in order if kind in columns]
    values = np.vstack([influence.background[np.searchsorted(columns, effects)], square[np.ix_(order, effects)]])
    names = [_shown(influence.kinds[kind]) for kind in order]
    small: Any = {"fontsize": float(np.clip(220 / size, 4.5, 9)), "parse_math": False}
    with matplotlib.rc_context(STYLE | _themed(THEMES[theme])):
        side = float(np.clip(0.22 * size, 3, 9))
        figure = Figure(figsize=(side + 2.2, side + 1.6), layout="constrained", dpi=STYLE["savefig.dpi"])
        axes = figure.subplots()
        # The square root shows small shares too; one hue from white is the same to all eyes, and in grey.
        image = axes.imshow(values, cmap="Blues", norm=PowerNorm(0.5, 0, 1), aspect="auto", interpolation="none")
        axes.set_xticks(range(len(effects)), [names[order.index(kind)] for kind in effects], rotation=90, **small)
        axes.set_yticks(range(1 + size), ["nothing before it", *names], **small)
        axes.axhline(0.5, color=THEMES[theme].text, linewidth=0.8)
        axes.set(xlabel="effect", ylabel="cause")
        axes.grid(visible=False)
        bar = figure.colorbar(
            image, ax=axes, shrink=0.6, ticks=[0, 0.01, 0.05, 0.2, 0.5, 1], format=PercentFormatter(1)
        )
        bar.set_label("share of the effect's events")
        axes.set_title(_drawable(title or "What sets off what"), loc="left", parse_math=False)
    return figure


def _side_by_side(related: np.ndarray) -> list[int]:
    """An order of kinds in which those that are `related` (C, C), symmetric, stand near one another: by the second
    eigenvector of their graph."""
    degrees = related.sum(1) + 1e-9
    scaled = np.eye(len(related)) - related / np.sqrt(np.outer(degrees, degrees))
    return np.argsort(np.linalg.eigh(scaled)[1][:, min(1, len(related) - 1)], kind="stable").tolist()


def kernel_plot(model: HawkesModel, effects: Sequence[str] | None = None, *, top: int = 7) -> Figure:
    """Draw what causes what, and how much later: the `top` pairs of marks, with the second among `effects` (all, if
    None), of which an event of the first is expected to cause most events of the second."""
    id2label: Any = model.config.id2label
    names = [id2label[mark] for mark in range(model.config.num_marks)]
    if unknown := sorted(set(effects or ()) - set(names)):
        raise ValueError(f"effects must be of {', '.join(names)}, the model's marks; got {unknown[0]!r}.")
    if top < 1:
        raise ValueError(f"top must be at least 1; got {top}.")
    with torch.no_grad():
        children = model.branching.double().cpu().numpy()  # (C, C)
        shortest, longest = model.scales.min() / 100, model.scales.max() * 20
        lags = torch.logspace(math.log10(shortest), math.log10(longest), 600).to(model.scales)
        kernels = model.kernel(lags).double().cpu().numpy()  # (C, C, Q)
    chosen = [place for place, name in enumerate(names) if effects is None or name in effects]
    pairs = [(cause, effect) for cause in range(len(names)) for effect in chosen]
    pairs = sorted(pairs, key=lambda pair: children[pair], reverse=True)[:top]
    times, unit = lags.double().cpu().numpy(), model.config.time_unit
    # On a logarithmic axis, what is expected while the lag doubles: areas are then in proportion to events.
    curves = [np.log(2) * times * kernels[pair] for pair in pairs]
    with matplotlib.rc_context(STYLE | _themed(THEMES["light"])):
        figure = Figure(figsize=(7.2, 3.2 + 0.17 * len(pairs)), layout="constrained", dpi=STYLE["savefig.dpi"])
        axes = figure.subplots()
        for number, (curve, (cause, effect)) in enumerate(zip(curves, pairs, strict=True)):
            label = f"{_shown(names[cause])} → {_shown(names[effect])}: {children[cause, effect]:.2g}"
            look = {"color": COLOURS[number % len(COLOURS)], "linestyle": _STROKES[number % len(_STROKES)]}
            axes.plot(times, curve, label=label, **look)
        seen = times[np.max(curves, axis=0) > 0.01 * np.max(curves)]
        axes.set(xscale="log", xlim=(seen[0], seen[-1]), ylim=(0, None))
        axes.set_xlabel("time since the cause" + (f" ({_drawable(unit)})" if unit else ""), parse_math=False)
        axes.set_ylabel("expected events of the effect\nwhile that time doubles")
        title = "cause → effect: events that one event causes"
        legend = figure.legend(loc="outside lower left", ncols=2, title=title, alignment="left")
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


def _intensity_of(explanation: Explanation, mark: str) -> Intensity:
    curves = explanation.intensity
    if curves is None:
        raise ValueError("This explanation has no intensities. Ask for them: explain(..., intensities=True).")
    if mark not in curves.marks:
        raise ValueError(f"mark must be one of {', '.join(curves.marks)}, the future's; got {mark!r}.")
    row = curves.marks.index(mark)
    return replace(curves, whole=curves.whole_by_mark[row], left=curves.left_by_mark[row])


def _theme(name: str) -> Theme:
    if name not in THEMES:
        raise ValueError(f"theme must be one of {', '.join(THEMES)}; got {name!r}.")
    return THEMES[name]


def _name_lanes(axes: Axes, names: Sequence[str], top: float) -> None:
    axes.set_yticks(range(len(names)), [_shown(name) for name in names])
    axes.set_ylim(len(names) - 0.4, top)
    for label in axes.get_yticklabels():
        label.set_parse_math(False)  # a mark may be called "$x"


def _themed(ink: Theme) -> dict[str, Any]:
    plain = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor")
    faint = ("xtick.color", "axes.edgecolor")
    style: dict[str, Any] = dict.fromkeys(plain, ink.text) | dict.fromkeys(faint, ink.left)
    return style | {"figure.facecolor": ink.face, "axes.facecolor": ink.face, "grid.color": ink.faint}


def _lanes(frame: pd.DataFrame) -> tuple[dict[str, int], list[str]]:
    """The lane of every mark, the first to appear on top, and the names of the lanes."""
    marks = list(dict.fromkeys(frame["mark"]))
    shown, others = marks, []
    if len(marks) > MAX_LANES:
        weight = (frame["role"] != "left").groupby(frame["mark"], sort=False).agg(["sum", "size"])
        chosen = set(weight.sort_values(["sum", "size"], ascending=False, kind="stable").index[: MAX_LANES - 1])
        shown = [mark for mark in marks if mark in chosen]
        others = [f"{len(marks) - len(shown)} other marks"]
    return {mark: shown.index(mark) if mark in shown else len(shown) for mark in marks}, shown + others


def _history_and_future(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame, tuple[Any, Any]]]:
    """Name, events and span of time of the panels: the future begins where the history ends."""
    is_future, times = (frame["role"] == "future").to_numpy(), frame["time"].to_numpy()
    split = times[~is_future][-1]
    return [("history", frame[~is_future], (times[0], split)), ("future", frame[is_future], (split, times[-1]))]


def _draw_events(axes: Axes, part: pd.DataFrame, lane: dict[str, int], ink: Theme) -> None:
    across: Any = {"linewidth": 0.6, "zorder": 1, "transform": axes.get_yaxis_transform()}
    axes.hlines(range(max(lane.values()) + 1), 0, 1, ink.faint, **across)
    place = part["mark"].map(lane).to_numpy()
    times, role, sizes = part["time"].to_numpy(), part["role"].to_numpy(), _dot_sizes(part)
    looks = {
        "left": (ink.face, ink.left, 0.9, "o", 3),
        "distilled": (ink.distilled, ink.face, 0.7, "o", 4),
        "future": (ink.future, ink.future_face, 0.7, "D", 4),
    }
    for name, (face, edge, width, marker, order) in looks.items():
        index = np.flatnonzero(role == name)
        index = index[np.argsort(-sizes[index], kind="stable")]  # small dots over large ones
        style: Any = {"facecolor": face, "edgecolor": edge, "linewidth": width, "marker": marker, "zorder": order}
        if len(index):
            axes.scatter(times[index], place[index], s=sizes[index], clip_on=False, **style)
    # Events of one mark at one time cover one another: write how many.
    for (time, row), count in Counter(zip(times, place, strict=True)).items():
        above: Any = {"xytext": (0, 4), "textcoords": "offset points", "ha": "center"}
        if count > 1:
            axes.annotate(f"{count}x", (time, row), **above, fontsize=6.5, zorder=6)
    _draw_event_lines(axes, part, ink)


def _dot_sizes(part: pd.DataFrame) -> np.ndarray:
    """Areas of the dots: distilled events by score, up to four times the area of one that is left."""
    sizes = np.where(part["role"] == "future", 24.0, 16.0)
    chosen = (part["role"] == "distilled").to_numpy()
    if chosen.any():
        scores = part.loc[chosen, "score"].to_numpy(dtype=float)
        height = (scores - scores.min()) / np.ptp(scores) if np.ptp(scores) > 0 else 0.5
        sizes[chosen] = 24 + 48 * np.nan_to_num(height)
    return sizes


def _draw_intensity(axes: Axes, intensity: Any, name: str, part: pd.DataFrame, ink: Theme) -> None:
    points = slice(intensity.split) if name == "history" else slice(intensity.split, None)
    times, whole, left = intensity.times[points], intensity.whole[points], intensity.left[points]
    axes.fill_between(times, left, whole, color=ink.distilled, alpha=0.16, linewidth=0)
    axes.plot(times, whole, color=ink.whole, linewidth=1.4, zorder=3)
    axes.plot(times, left, color=ink.distilled, linewidth=1.2, linestyle=_DASHES, zorder=4)
    _draw_event_lines(axes, part, ink)


def _draw_event_lines(axes: Axes, part: pd.DataFrame, ink: Theme) -> None:
    """Lines that lead from the events that matter to the curves below."""
    for role, colour in (("distilled", ink.distilled), ("future", ink.left)):
        times = part.loc[part["role"] == role, "time"].to_numpy()
        for time in times if len(times) <= _MOST_LINES else ():
            axes.axvline(time, color=colour, linewidth=0.6, alpha=0.4, zorder=2)


def _draw_scores(axes: Axes, part: pd.DataFrame, ink: Theme) -> None:
    for name, colour in (("left", ink.left), ("distilled", ink.distilled)):
        events = part[part["role"] == name]
        axes.vlines(events["time"], 0, events["score"], color=colour, linewidth=1)
        face = colour if name == "distilled" else ink.face
        axes.scatter(events["time"], events["score"], s=14, color=face, edgecolor=colour, clip_on=False, zorder=3)
    axes.axhline(0, color=ink.left, linewidth=0.6)


def _draw_tradeoff(axes: Axes, tradeoff: pd.DataFrame, explanation: Explanation, ink: Theme) -> None:
    size, reached, limit = sum(explanation.distill_mask), explanation.explained_share, explanation.limit
    target = limit / explanation.whole if limit is not None and reached is not None else None
    has_shares = bool(tradeoff["explained_share"].notna().all())
    values = tradeoff["explained_share" if has_shares else "dppl_left"]
    marker = "o" if len(values) <= 60 else None
    axes.plot(tradeoff["size"], values, color=ink.whole, marker=marker, markersize=2.6, linewidth=1.2)
    axes.set(xlabel="events removed, by score", ylabel="explained share" if has_shares else "dppl_left")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if not has_shares:
        return
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylim(min(0.0, float(values.min())) - 0.04, max(1.0, float(values.max())) + 0.06)
    if target is not None:
        axes.axhline(target, color=ink.left, linewidth=0.9, linestyle=":")
    if reached is not None:
        axes.scatter([size], [reached], s=44, color=ink.distilled, edgecolor=ink.face, zorder=5)
        text = f"{size} distilled: {reached:.0%}" + ("" if target is None else f" (asked: {target:.0%})")
        axes.set_title(text, loc="left", fontsize=8.5)


def _dress_time(axes: Axes, span: tuple[Any, Any], time_unit: str | None) -> None:
    length = span[1] - span[0]
    if not isinstance(span[0], np.datetime64):
        margin = length / 40 or 0.5
        axes.set_xlim(span[0] - margin, span[1] + margin)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel("time" if time_unit is None else f"time ({_drawable(time_unit)})", parse_math=False)
        return
    edge: Any = length.astype("timedelta64[ns]") // 40 or np.timedelta64(10**6, "ns")
    axes.set_xlim(span[0] - edge, span[1] + edge)
    locator = AutoDateLocator(minticks=2, maxticks=5)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _duration(span: tuple[Any, Any], time_unit: str | None) -> str:
    """Words for a span: "2 d 3 h" of timestamps, "3.25 h" of numbers."""
    if not isinstance(span[0], np.datetime64):
        number = f"{span[1] - span[0]:.3g}"
        if time_unit is None:
            return f"time {number}"
        return _drawable(f"{number} {time_unit}" if time_unit.isalpha() else f"{number} x {time_unit}")
    seconds = (span[1] - span[0]) / np.timedelta64(1, "s")
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (length, name), (shorter, shorter_name) in zip(units, units[1:], strict=False):
        if seconds >= length:
            whole, rest = divmod(round(seconds / shorter), length // shorter)
            return f"{whole} {name}" + (f" {rest} {shorter_name}" if rest else "")
    return f"{seconds:.3g} s"


def _handles(frame: pd.DataFrame, intensity: Any, ink: Theme) -> list[Line2D]:
    dot: dict[str, Any] = {"linestyle": "", "marker": "o", "markersize": 7}
    looks: dict[str, dict[str, Any]] = {
        "distilled": {"color": ink.distilled, "label": "distilled; larger: higher score"},
        "left": {"color": ink.left, "markerfacecolor": ink.face, "markersize": 4.5, "label": "left in the history"},
        "future": {"color": ink.future, "marker": "D", "markersize": 5, "label": "what followed"},
    }
    handles = [Line2D([], [], **dot | look) for role, look in looks.items() if (frame["role"] == role).any()]
    if intensity is not None:
        without = "without the distilled events"
        handles += [
            Line2D([], [], color=ink.whole, linewidth=1.4, label="expected from the whole history"),
            Line2D([], [], color=ink.distilled, linewidth=1.2, linestyle=_DASHES, label=without),
        ]
    return handles


def _shown(name: str) -> str:
    return _drawable(shorten(name, _LONGEST_NAME) or "(no name)")


@cache
def _glyphs() -> frozenset[int]:
    """What the font of pictures can draw."""
    return frozenset(get_font(findfont(FontProperties())).get_charmap())


def _drawable(text: str) -> str:
    """The text with a box for every character that the font does not have: matplotlib would warn and draw one too."""
    return "".join(char if char.isspace() or ord(char) in _glyphs() else "\N{WHITE SQUARE}" for char in text)
