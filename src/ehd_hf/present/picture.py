"""Rows in, figures out. Figures are made without pyplot: no global state, and they draw on any machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from ..files import replaced_when_done

# Okabe and Ito: eight colours told apart with every common colour vision, here without the yellow, pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("-", "--", "-.", ":")  # a second cue besides colour, for print
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


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a picture, of the kind its name ends in, that appears whole."""
    with replaced_when_done(path) as partial:
        figure.savefig(partial, format=Path(path).suffix[1:] or "png")


def new_axes(width: float = 4.6, height: float = 4.2) -> tuple[Figure, Axes]:
    """A figure of one axes in the house style; sizes in inches."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", dpi=STYLE["savefig.dpi"])
        return figure, figure.subplots()


def new_panels(
    columns: int = 1, rows: int = 1, width: float = 7.2, height: float = 2.9, **share: Any
) -> tuple[Figure, Any]:
    """A figure of several axes, an array of them, as wide as a README shows a picture; sizes in inches."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained", dpi=STYLE["savefig.dpi"])
        return figure, figure.subplots(rows, columns, squeeze=False, **share)


def qq_plot(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Figure:
    """Quantiles of rescaled times against those of Exp(1), one line per row; a calibrated model lies on the diagonal.

    Args:
        rows: with `model` and `qq`, the quantiles at probabilities i / (n + 1); `ks` goes into the legend if there.
        title: of the axes, say data set and split.
    """
    if not rows:
        raise ValueError("a QQ plot needs at least one row; got none.")
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes()
        for index, row in enumerate(rows):
            quantiles = np.asarray(row["qq"], dtype=float)
            expected = -np.log1p(-np.arange(1, len(quantiles) + 1) / (len(quantiles) + 1))
            name = str(row["model"]).rstrip("/").rpartition("/")[2]  # of a folder, its last part
            label = name + (f" (KS {row['ks']:.3f})" if row.get("ks") is not None else "")
            axes.plot(
                expected,
                np.where(quantiles > 0, quantiles, np.nan),  # the axes are logarithmic; tied times have no place
                label=label,
                **_line(index),
            )
        low, high = float(expected[0]), float(expected[-1])
        axes.plot([low, high], [low, high], color="#999999", linewidth=0.8, zorder=1, label="Exp(1)")
        # Both ends matter, short silences and long ones: logarithms show them side by side.
        axes.set(xscale="log", yscale="log", xlabel="quantile of Exp(1)", ylabel="quantile of rescaled times")
        if title:
            axes.set_title(title)
        axes.legend(loc="best")
    return figure


def left_share_plot(curves: Mapping[str, Sequence[tuple[float, float]]], title: str | None = None) -> Figure:
    """Share of left events along training (the paper's fig. 2), one line per run.

    Args:
        curves: (step, share in 0..1) pairs by name, as `eval_left_share` in a run's log.
    """
    _need(curves, "a curve of left events", "run")
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(7.2, 3.2)
        for index, (name, points) in enumerate(curves.items()):
            steps, shares = np.asarray(points, dtype=float).T
            axes.plot(steps, shares, label=name, clip_on=False, zorder=3, **_line(index))
        axes.set(xlabel="training step", ylabel="events left in the history", ylim=(0, 1))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        if title:
            axes.set_title(title)
    return figure


def mark_share_plot(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Figure:
    """Share of each mark's events that is distilled, with its interval, against random distillation (fig. 3) and
    against distilling as many of the last events.

    Filled dots differ from random significantly, hollow ones do not; marks preferred most stand on top.

    Args:
        rows: of `analysis.mark_shares`.
    """
    _need(rows, "a plot of marks", "row")
    ordered = sorted(rows, key=lambda row: row["share"] - row["expected"])
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(7.2, 1.3 + 0.21 * len(ordered))
        place = np.arange(len(ordered))
        share, expected, low, high = (
            np.array([row[key] for row in ordered], dtype=float) for key in ("share", "expected", "low", "high")
        )
        axes.hlines(place, low, high, color=COLOURS[0], linewidth=1.2)
        for filled, label in ((True, "distilled: unlike random"), (False, "distilled: no difference")):
            some = np.array([bool(row["significant"]) == filled for row in ordered])
            face = COLOURS[0] if filled else "white"
            if some.any():
                axes.scatter(share[some], place[some], s=26, color=face, edgecolor=COLOURS[0], zorder=3, label=label)
        axes.scatter(expected, place, s=34, marker="|", color=COLOURS[1], linewidth=2, zorder=2, label="at random")
        recent = [row["recency"] for row in ordered]
        axes.scatter(
            recent, place, s=110, marker="|", color=COLOURS[6], linewidth=1, zorder=2, label="the last events"
        )
        names = [f"{row['label']} ({_short(row['num_events'])})" for row in ordered]
        axes.set_yticks(place, names)
        axes.set(xlabel="share of the mark's events that is distilled", ylim=(-0.7, len(ordered) - 0.3))
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_xlim(left=0)
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=4)
        if title:
            axes.set_title(title)
    return figure


def length_plot(distributions: Mapping[str, Sequence[float]], title: str | None = None) -> Figure:
    """How many events are distilled: pdf on the left, cdf on the right (fig. 4), one line per entry.

    Args:
        distributions: share of windows that distil 0, 1, 2, ... events, by name.
    """
    _need(distributions, "a plot of lengths", "distribution")
    with matplotlib.rc_context(STYLE):
        figure, ((density, cumulative),) = new_panels(2)
        for index, (name, pdf) in enumerate(distributions.items()):
            sizes = np.arange(len(pdf))
            density.step(sizes, pdf, where="mid", label=name, **_line(index))
            cumulative.step(sizes, np.cumsum(pdf), where="post", **_line(index))
        density.set(ylabel="share of windows", ylim=(0, None))
        cumulative.set(ylabel="cumulative share of windows", ylim=(0, 1.02))
        for axes in (density, cumulative):
            axes.set(xlabel="distilled events, $|H_d|$")
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        if len(distributions) > 1:
            figure.legend(loc="outside lower center", ncols=4)
        if title:
            figure.suptitle(title, fontsize=STYLE["axes.titlesize"])
    return figure


def slide_plot(added: Sequence[int], ejected: Sequence[int], title: str | None = None) -> Figure:
    """How many events enter and leave H_d as the window slides by one event (fig. 5); shares on a logarithmic axis,
    since what tells them apart is rare.

    Args:
        added, ejected: how many slides moved 0, 1, 2, ... events.
    """
    _need(added, "a plot of slides", "slide")
    most = max(len(added), len(ejected)) - 1
    with matplotlib.rc_context(STYLE):
        figure, (panels,) = new_panels(2, sharey=True)
        for axes, counts, name, colour in zip(
            panels, (ejected, added), ("ejected from $H_d$", "added to $H_d$"), COLOURS[1::-1], strict=True
        ):
            share = np.asarray(counts) / np.sum(counts)
            axes.bar(np.arange(len(share)), share, color=colour, width=0.8)
            axes.set(xlabel=f"events {name} in one slide", yscale="log", xlim=(-0.7, most + 0.7))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.set_title(f"{name}: {share[3:].sum():.1%} of slides move 3 or more", fontsize=9)
        panels[0].set_ylabel("share of slides")
        if title:
            figure.suptitle(title, fontsize=STYLE["axes.titlesize"])
    return figure


def sizes_plot(along: Mapping[Any, tuple[Sequence[int], Sequence[int]]], title: str | None = None) -> Figure:
    """|H_d| as the window slides along whole sequences (fig. 6), one panel each.

    Args:
        along: offsets and sizes by sequence, of `analysis.sizes_along`.
    """
    _need(along, "a plot of sizes", "sequence")
    columns = min(2, len(along))
    rows = -(-len(along) // columns)
    with matplotlib.rc_context(STYLE):
        figure, grid = new_panels(columns, rows, height=0.6 + 1.7 * rows, sharey=True)
        for axes in grid.flat[len(along) :]:
            axes.set_visible(False)
        for axes, (name, (offsets, sizes)) in zip(grid.flat, along.items(), strict=False):
            # A gap where windows are missing, not a line across.
            where = np.flatnonzero(np.diff(offsets) > 1) + 1
            axes.step(
                np.insert(np.asarray(offsets, dtype=float), where, np.nan),
                np.insert(np.asarray(sizes, dtype=float), where, np.nan),
                where="mid",
                color=COLOURS[0],
                linewidth=1.1,
            )
            axes.set_title(f"sequence {name}", fontsize=9)
            axes.set_ylim(bottom=0)
        for axes in grid[-1]:
            axes.set_xlabel("first event of the window")
        for axes in grid[:, 0]:
            axes.set_ylabel("$|H_d|$")
        if title:
            figure.suptitle(title, fontsize=STYLE["axes.titlesize"])
    return figure


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
MAX_LANES = 24  # more marks than that share the last lane
_MOST_LINES = 60  # that lead from events to curves: more would cover them
_LONGEST_NAME = 24
_LOGARITHMIC_FROM = 30  # times the median: above that a linear axis shows the peaks and nothing else


def explanation_plot(
    frame: pd.DataFrame,
    title: str | None = None,
    time_unit: str | None = None,
    *,
    intensity: Any = None,
    mark: str | None = None,
    tradeoff: pd.DataFrame | None = None,
    reached: float | None = None,
    target: float | None = None,
    theme: str = "light",
) -> Figure:
    """One window: its events by mark, the history and beside it what followed, each on its own scale of time; below,
    the intensity with and without the distilled events (or the scores, where there is none); and how much is explained
    by how few.

    Args:
        frame: of `Explanation.to_frame()`: time, mark, role (distilled, left or future), score.
        time_unit: for the axes; not needed for moments.
        intensity: of an explanation, with `times`, `whole` and `left`, (Q,) each, the first `split` in the history.
        mark: whose intensity that is; of all together if not given.
        tradeoff: of `Explanation.tradeoff()`: size, dppl_left, explained_share.
        reached, target: the explained share of the answer, and the one that was asked for.
        theme: "light" or "dark".
    """
    _need(frame, "a plot of an explanation", "event")
    if theme not in THEMES:
        raise ValueError(f"theme must be one of {', '.join(THEMES)}; got {theme!r}.")
    ink = THEMES[theme]
    lane, names = _lanes(frame)
    heights = [0.45 + 0.2 * len(names), 1.3, *([1.5] if tradeoff is not None else [])]
    with matplotlib.rc_context(STYLE | _themed(ink)):
        figure = Figure(figsize=(7.2, 1.1 + sum(heights)), layout="constrained", dpi=STYLE["savefig.dpi"])
        rows = figure.add_gridspec(len(heights) - 1, 1, height_ratios=[sum(heights[:2]), *heights[2:]])
        parts = _history_and_future(frame)
        widths = [1.0, *(float(np.clip(len(part) / len(frame), 0.5, 0.8)) for _, part, _ in parts[1:])]
        panels = (
            rows[0]
            .subgridspec(2, len(parts), height_ratios=heights[:2], width_ratios=widths)
            .subplots(sharex="col", sharey="row", squeeze=False)
        )
        for (name, part, span), (events, below) in zip(parts, panels.T, strict=True):
            _draw_events(events, part, lane, frame, ink)
            if intensity is None:
                _draw_scores(below, part, ink)
            else:
                _draw_intensity(below, intensity, name, part, ink)
            count = f"{len(part)} event{'' if len(part) == 1 else 's'}"
            events.set_title(f"{name}:\n{count} in {_duration(span, time_unit)}", loc="left", fontsize=8.5)
            for axes in (events, below):
                axes.grid(axis="y", visible=axes is below)
                axes.set_facecolor(ink.future_face if name == "future" else ink.face)
                axes.tick_params(axis="y", length=0)
                axes.spines["left"].set_visible(name == "history")
            _dress_time(below, span, time_unit)
        panels[0, 0].set_yticks(range(len(names)), [_drawable(_cut_name(name)) for name in names])
        panels[0, 0].set_ylim(len(names) - 0.4, -0.6)
        for label in panels[0, 0].get_yticklabels():
            label.set_parse_math(False)  # a mark may be called "$x"
        whose = "expected events" if mark is None else f"expected\n{_cut_name(mark)}"
        what = "score" if intensity is None else f"{whose}\nper {time_unit or 'unit of time'}"
        panels[1, 0].set_ylabel(_drawable(what), parse_math=False)
        if intensity is not None:
            shown = np.concatenate([intensity.whole, intensity.left])
            is_wide = shown.max() > _LOGARITHMIC_FROM * np.median(shown) > 0
            panels[1, 0].set_yscale("log" if is_wide else "linear")
            if not is_wide:
                panels[1, 0].set_ylim(bottom=0)
        handles = _handles(frame, intensity, ink)
        if tradeoff is None:
            figure.legend(handles=handles, loc="outside lower center", ncols=3)
        else:
            ((curve, words),) = rows[1].subgridspec(1, 2, width_ratios=[1.2, 1]).subplots(squeeze=False)
            _draw_tradeoff(curve, tradeoff, int((frame["role"] == "distilled").sum()), reached, target, ink)
            words.axis("off")
            words.legend(handles=handles, loc="center left", borderaxespad=0)
        if title:
            size = STYLE["axes.titlesize"]
            figure.suptitle(_drawable(title), x=0.01, ha="left", fontsize=size, parse_math=False)
    return figure


def _themed(ink: Theme) -> dict[str, Any]:
    plain = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor")
    faint = ("xtick.color", "axes.edgecolor")
    style: dict[str, Any] = dict.fromkeys(plain, ink.text) | dict.fromkeys(faint, ink.left)
    return style | {"figure.facecolor": ink.face, "axes.facecolor": ink.face, "grid.color": ink.faint}


def _lanes(frame: pd.DataFrame) -> tuple[dict[str, int], list[str]]:
    """The lane of every mark, the first to appear on top, and the names of the lanes."""
    marks = list(dict.fromkeys(frame["mark"]))
    if len(marks) <= MAX_LANES:
        return {mark: place for place, mark in enumerate(marks)}, marks
    counts, matters = frame["mark"].value_counts(), frame["mark"][frame["role"] != "left"].value_counts()
    weight = {mark: (matters.get(mark, 0), counts[mark]) for mark in marks}
    chosen = set(sorted(marks, key=lambda mark: weight[mark], reverse=True)[: MAX_LANES - 1])
    shown = [mark for mark in marks if mark in chosen]
    place = {mark: shown.index(mark) if mark in chosen else len(shown) for mark in marks}
    return place, [*shown, f"{len(marks) - len(shown)} other marks"]


def _history_and_future(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame, tuple[Any, Any]]]:
    """Name, events and span of time of the panels: the future begins where the history ends."""
    is_future = (frame["role"] == "future").to_numpy()
    past, future, times = frame[~is_future], frame[is_future], frame["time"].to_numpy()
    split = past["time"].to_numpy()[-1] if len(past) else times[0]
    parts = [("history", past, (times[0], split))] if len(past) else []
    return [*parts, ("future", future, (split, times[-1]))] if len(future) else parts


def _draw_events(axes: Axes, part: pd.DataFrame, lane: dict[str, int], frame: pd.DataFrame, ink: Theme) -> None:
    axes.hlines(
        range(max(lane.values()) + 1), 0, 1, ink.faint, linewidth=0.6, zorder=1, transform=axes.get_yaxis_transform()
    )
    place = part["mark"].map(lane).to_numpy()
    times, role, sizes = part["time"].to_numpy(), part["role"].to_numpy(), _dot_sizes(frame, part)
    looks: dict[str, dict[str, Any]] = {
        "left": {"facecolor": ink.face, "edgecolor": ink.left, "linewidth": 0.9, "zorder": 3},
        "distilled": {"facecolor": ink.distilled, "edgecolor": ink.face, "linewidth": 0.7, "zorder": 4},
        "future": {
            "facecolor": ink.future,
            "edgecolor": ink.future_face,
            "linewidth": 0.7,
            "marker": "D",
            "zorder": 4,
        },
    }
    for name, look in looks.items():
        some = np.flatnonzero(role == name)
        some = some[np.argsort(-sizes[some], kind="stable")]  # small ones over large ones
        if len(some):
            axes.scatter(times[some], place[some], s=sizes[some], clip_on=False, **look)
    # Events at the same moment lie on top of one another: say how many.
    for (time, row), count in Counter(zip(times, place, strict=True)).items():
        if count > 1:
            axes.annotate(
                f"{count}x", (time, row), (0, 4), textcoords="offset points", ha="center", fontsize=6.5, zorder=6
            )
    _draw_moments(axes, part, ink)


def _dot_sizes(frame: pd.DataFrame, part: pd.DataFrame) -> np.ndarray:
    """Areas of the dots: distilled events by score, up to four times the area of one that is left."""
    sizes = np.where(part["role"] == "future", 24.0, 16.0)
    chosen = (part["role"] == "distilled").to_numpy()
    if chosen.any():
        scores = frame.loc[frame["role"] == "distilled", "score"].to_numpy(dtype=float)
        spread = np.ptp(scores)
        height = (part.loc[chosen, "score"].to_numpy(dtype=float) - scores.min()) / spread if spread > 0 else 0.5
        sizes[chosen] = 24 + 48 * np.nan_to_num(height)
    return sizes


def _draw_intensity(axes: Axes, intensity: Any, name: str, part: pd.DataFrame, ink: Theme) -> None:
    some = slice(intensity.split) if name == "history" else slice(intensity.split, None)
    times, whole, left = intensity.times[some], intensity.whole[some], intensity.left[some]
    axes.fill_between(times, left, whole, color=ink.distilled, alpha=0.16, linewidth=0)
    axes.plot(times, whole, color=ink.whole, linewidth=1.4, zorder=3)
    axes.plot(times, left, color=ink.distilled, linewidth=1.2, linestyle=(0, (4, 1.6)), zorder=4)
    _draw_moments(axes, part, ink)


def _draw_moments(axes: Axes, part: pd.DataFrame, ink: Theme) -> None:
    """Lines that lead from the events that matter to the curves below."""
    for role, colour in (("distilled", ink.distilled), ("future", ink.left)):
        times = part.loc[part["role"] == role, "time"].to_numpy()
        for time in times if len(times) <= _MOST_LINES else ():
            axes.axvline(time, color=colour, linewidth=0.6, alpha=0.4, zorder=2)


def _draw_scores(axes: Axes, part: pd.DataFrame, ink: Theme) -> None:
    for name, colour in (("left", ink.left), ("distilled", ink.distilled)):
        some = part[part["role"] == name]
        axes.vlines(some["time"], 0, some["score"], color=colour, linewidth=1)
        face = colour if name == "distilled" else ink.face
        axes.scatter(some["time"], some["score"], s=14, color=face, edgecolor=colour, clip_on=False, zorder=3)
    axes.axhline(0, color=ink.left, linewidth=0.6)


def _draw_tradeoff(
    axes: Axes, tradeoff: pd.DataFrame, size: int, reached: float | None, target: float | None, ink: Theme
) -> None:
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
        said = f"{size} distilled: {reached:.0%}" + ("" if target is None else f" (asked: {target:.0%})")
        axes.set_title(said, loc="left", fontsize=8.5)


def _dress_time(axes: Axes, span: tuple[Any, Any], time_unit: str | None) -> None:
    if not isinstance(span[0], np.datetime64):
        margin = (span[1] - span[0]) / 40 or 0.5
        axes.set_xlim(span[0] - margin, span[1] + margin)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel("time" if time_unit is None else f"time ({_drawable(time_unit)})", parse_math=False)
        return
    length = (span[1] - span[0]).astype("timedelta64[ns]").astype(np.int64)
    edge: Any = np.timedelta64(int(length // 40) or 10**6, "ns")
    axes.set_xlim(span[0] - edge, span[1] + edge)
    locator = AutoDateLocator(minticks=2, maxticks=5)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _duration(span: tuple[Any, Any], time_unit: str | None) -> str:
    """ "2 d 3 h" of moments, "3.25 h" of numbers."""
    if not isinstance(span[0], np.datetime64):
        said = f"{span[1] - span[0]:.3g}"
        if time_unit is None:
            return f"time {said}"
        return _drawable(f"{said} {time_unit}" if time_unit.isalpha() else f"{said} x {time_unit}")
    seconds = float((span[1] - span[0]).astype("timedelta64[ns]").astype(np.int64)) / 1e9
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    for (length, name), (shorter, shorter_name) in zip(units, units[1:], strict=False):
        if seconds >= length:
            whole, rest = divmod(round(seconds / shorter), length // shorter)
            return f"{whole} {name}" + (f" {rest} {shorter_name}" if rest else "")
    return f"{seconds:.3g} s"


def _handles(frame: pd.DataFrame, intensity: Any, ink: Theme) -> list[Line2D]:
    roles = frame["role"].value_counts()
    dot: dict[str, Any] = {"linestyle": "", "marker": "o"}
    handles = [
        Line2D([], [], color=ink.distilled, markersize=7, label="distilled; larger: higher score", **dot),
        Line2D([], [], color=ink.left, markerfacecolor=ink.face, markersize=4.5, label="left in the history", **dot),
        Line2D([], [], color=ink.future, markersize=5, linestyle="", marker="D", label="what followed"),
    ]
    handles = [handle for handle, role in zip(handles, ("distilled", "left", "future"), strict=True) if role in roles]
    if intensity is not None:
        handles.append(Line2D([], [], color=ink.whole, linewidth=1.4, label="expected from the whole history"))
        dashes = (0, (4, 1.6))
        handles.append(
            Line2D([], [], color=ink.distilled, linewidth=1.2, linestyle=dashes, label="without the distilled events")
        )
    return handles


def _cut_name(name: str) -> str:
    name = " ".join(name.split()) or "(no name)"
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


@cache
def _glyphs() -> frozenset[int]:
    """What the font of pictures can draw."""
    return frozenset(get_font(findfont(FontProperties())).get_charmap())


def _drawable(text: str) -> str:
    """The text with a box for every character that the font does not have: matplotlib would warn and draw one too."""
    return "".join(char if char.isspace() or ord(char) in _glyphs() else "\N{WHITE SQUARE}" for char in text)


def _need(items: Any, what: str, piece: str) -> None:
    if len(items) == 0:
        raise ValueError(f"{what} needs at least one {piece}; got none.")


def _line(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)]}


def _short(number: int) -> str:
    """1,234,567 as 1.2M, for labels."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


def scaling_plot(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Figure:
    """How a figure grows along an axis, both logarithmic: a line per series, shaded from the lowest to the highest.

    Args:
        rows: of `scripts/benchmark.py`, of one axis: `axis`, `x`, `series`, `unit`, `median` with `low` and `high`.
    """
    _need(rows, "a plot of growth", "row")
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(7.2, 3.4)
        for index, series in enumerate(dict.fromkeys(row["series"] for row in rows)):
            mine = sorted((row for row in rows if row["series"] == series), key=lambda row: row["x"])
            x, median, low, high = ([row[key] for row in mine] for key in ("x", "median", "low", "high"))
            axes.plot(x, median, marker="o", markersize=4, label=series, **_line(index))
            axes.fill_between(x, low, high, color=_line(index)["color"], alpha=0.15, linewidth=0)
        values = [row["median"] for row in rows]
        axes.set(xscale="log", xlabel=rows[0]["axis"], ylabel=rows[0]["unit"])
        if max(values) > 3 * min(values):
            axes.set_yscale("log")
            decades = np.log10(max(values) / min(values))
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if decades < 2 else (1,)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        else:
            axes.set_ylim(0, 1.2 * max(row["high"] for row in rows))  # what stays the same looks the same
        axes.set_xticks(_apart(sorted({row["x"] for row in rows})))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.minorticks_off()
        if len(axes.get_lines()) > 1:
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=8)
        if title:
            axes.set_title(title)
    return figure


def _apart(values: Sequence[float], least: float = 0.09) -> list[float]:
    """Rising values without those closer to the one before than this share of the logarithmic axis: their labels would
    overlap."""
    kept = list(values[:1])
    for value in values[1:]:
        if np.log(value / kept[-1]) >= least * np.log(values[-1] / values[0]):
            kept.append(value)
    return kept


# --- methods side by side


def size_time_plot(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Figure:
    """Size of the sets that meet a target against the time they take, a labelled point per method; recency is a line
    too, since a method above it explains nothing.

    Args:
        rows: of `comparison.compare`, a setting's: `solver`, `size` with `_low` and `_high`, `seconds_per_window`.
    """
    _need(rows, "a plot of sizes and times", "row")
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(7.2, 3.7)
        for row in rows:
            look = _look(row["solver"])
            point = float(row["seconds_per_window"]), float(row["size"])
            axes.vlines(point[0], row["size_low"], row["size_high"], color=look["edgecolor"], linewidth=1, zorder=2)
            axes.scatter(*point, s=38, zorder=3, **look)
            if row["solver"] == "recency":
                axes.axhline(point[1], color="#777777", linewidth=0.9, linestyle=(0, (5, 3)), zorder=1)
        axes.set(xscale="log", xlabel="time per window", ylabel="events in the explanation")
        axes.xaxis.set_major_formatter(EngFormatter(unit="s"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.12, y=0.16)
        first, last = np.log10(axes.get_xlim())
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if last - first < 2.5 else (1,)))
        axes.yaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
        axes.text(0.012, 0.025, "↙ smaller, faster", transform=axes.transAxes, color="#777777", fontsize=8)
        if title:
            axes.set_title(title)
        figure.draw_without_rendering()  # settles the layout: from here on pixels keep their meaning
        figure.set_layout_engine("none")
        points, low, high = (
            np.array([[row["seconds_per_window"], row[key]] for row in rows], dtype=float)
            for key in ("size", "size_low", "size_high")
        )
        around = 5 * figure.dpi / 72
        below, above = axes.transData.transform(low) - around, axes.transData.transform(high) + around
        drawn = [item.get_window_extent().padded(1).extents for item in (*axes.texts, *axes.get_lines())]
        taken = np.concatenate([np.concatenate([below, above], axis=1), np.array(drawn)])
        _label_points(figure, axes, points, [str(row["solver"]) for row in rows], taken)
    return figure


def curves_plot(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Figure:
    """What is lost when the first events of an order are taken out, and what they regain by themselves, as a share of
    what the whole history explains; one line per method. In both panels the higher the better.

    Args:
        rows: of `trust.evaluate_curves`: `solver`, `deletion`, `insertion`.
    """
    _need(rows, "a plot of curves", "row")
    rows = sorted(rows, key=lambda row: row["deletion_mean"])
    with matplotlib.rc_context(STYLE):
        figure, ((lost, regained),) = new_panels(2, height=3.4, sharey=True)
        lines: dict[str, Any] = {
            "recency": {"color": "#777777", "linestyle": (0, (5, 3))},
            "distiller": {"color": COLOURS[1], "linewidth": 2.2},
        }
        others = (row["solver"] for row in rows if row["solver"] not in lines)
        for index, method in enumerate(list(others)):
            colours = COLOURS[:1] + COLOURS[2:]
            lines[method] = {"color": colours[index % len(colours)], "linestyle": DASHES[1:][index % 3]}
        for row in rows:
            line = lines[row["solver"]]
            sizes = np.arange(len(row["deletion"]))
            lost.plot(sizes, -np.asarray(row["deletion"], dtype=float), label=row["solver"], **line)
            regained.plot(sizes, 1 + np.asarray(row["insertion"], dtype=float), **line)
        lost.set(title="deletion: lost without the first events", xlabel="events taken out")
        regained.set(title="insertion: regained by them alone", xlabel="events kept")
        lost.set_ylabel("share of what the history explains")
        for axes in (lost, regained):
            axes.set_xlim(0, len(rows[0]["deletion"]) - 1)
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            for level in (0, 1):
                axes.axhline(level, color="#BBBBBB", linewidth=0.8, zorder=1)
        figure.legend(loc="outside lower center", ncols=3, handlelength=3)
        if title:
            figure.suptitle(title, fontsize=STYLE["axes.titlesize"])
    return figure


def precision_plot(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Figure:
    """Average precision against the true causes, with its interval, the best method on top; the oracle and random
    orders are lines. A hollow dot is the same search with the true likelihood in the trained model's place.

    Args:
        rows: of `causes.evaluate_causes`: `solver` (", true process" at its end for a hollow dot), `ap` with its
            interval.
    """
    lines = {row["solver"]: row for row in rows if row["solver"] in ("oracle", "random")}
    dots = [row for row in rows if row["solver"] not in lines]
    _need(dots, "a plot of average precision", "method")
    best: dict[str, float] = {}
    for row in dots:
        name, _, other = str(row["solver"]).partition(", ")
        if not other or name not in best:
            best[name] = float(row["ap"])
    names = sorted(best, key=lambda name: best[name])
    with matplotlib.rc_context(STYLE):
        figure, axes = new_axes(7.2, 1.2 + 0.27 * len(names))
        for is_true in (False, True):
            some = [row for row in dots if (", " in str(row["solver"])) == is_true]
            if not some:
                continue
            place = np.array([names.index(str(row["solver"]).partition(", ")[0]) for row in some]) - 0.16 * is_true
            value, low, high = (np.array([row[f"ap{end}"] for row in some], float) for end in ("", "_low", "_high"))
            colour = COLOURS[1] if is_true else COLOURS[0]
            axes.hlines(place, low, high, color=colour, linewidth=1.2, zorder=2)
            face, label = ("white", "with the true likelihood") if is_true else (colour, "with the trained model")
            axes.scatter(value, place, s=30, color=face, edgecolor=colour, zorder=4 - is_true, label=label)
        for name, row in lines.items():
            axes.axvline(float(row["ap"]), color="#555555", linewidth=1, linestyle=(0, (5, 3)), zorder=1)
            axes.annotate(
                name,
                (float(row["ap"]), 1),
                (0, 2),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="center",
                va="bottom",
                color="#555555",
                fontsize=8,
            )
        axes.set_yticks(range(len(names)), names)
        axes.set(xlabel="average precision against the true causes", ylim=(-0.6, len(names) - 0.4))
        axes.set_xlim(0, max(1.0, *(float(row["ap"]) for row in rows)))
        axes.grid(axis="y", visible=False)
        if len(axes.get_legend_handles_labels()[0]) > 1:
            figure.legend(loc="outside lower center", ncols=2)
        if title:
            axes.set_title(title, pad=16)
    return figure


def overlap_plot(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Figure:
    """How much two explanations of the same window share, with its interval, beside what random sets would; a panel
    for each check.

    Args:
        rows: of `trust.evaluate_trust`: `check`, `solver`, `overlap` with its interval, `chance`.
    """
    _need(rows, "a plot of overlaps", "row")
    said = {
        "distiller seeds": "other seeds of the distiller: should be high",
        "point process seeds": "other seeds of the point process: should be high",
        "shuffled weights": "shuffled weights of the point process: should be near chance",
    }
    checks = list(dict.fromkeys(str(row["check"]) for row in rows))
    parts = [
        sorted((row for row in rows if row["check"] == check), key=lambda row: row["overlap"]) for check in checks
    ]
    with matplotlib.rc_context(STYLE):
        counts = [len(part) for part in parts]
        figure = Figure(
            figsize=(7.2, 1.0 + 0.42 * len(parts) + 0.24 * sum(counts)),
            layout="constrained",
            dpi=STYLE["savefig.dpi"],
        )
        panels = figure.subplots(
            len(parts), 1, sharex=True, squeeze=False, height_ratios=[0.6 + count for count in counts]
        )[:, 0]
        for axes, check, part in zip(panels, checks, parts, strict=True):
            place = np.arange(len(part))
            value, low, high, chance = (
                np.array([row[key] for row in part], float)
                for key in ("overlap", "overlap_low", "overlap_high", "chance")
            )
            axes.hlines(place, low, high, color=COLOURS[0], linewidth=1.2, zorder=2)
            axes.scatter(value, place, s=30, color=COLOURS[0], zorder=3, label="found", clip_on=False)
            axes.scatter(
                chance,
                place,
                s=80,
                marker="|",
                color=COLOURS[1],
                linewidth=2,
                zorder=2,
                label="random sets of the same sizes",
            )
            axes.set_yticks(place, [str(row["solver"]) for row in part])
            axes.set(ylim=(-0.6, len(part) - 0.4), xlim=(0, 1))
            axes.grid(axis="y", visible=False)
            axes.set_title(said.get(check, check), fontsize=9, loc="left")
        panels[-1].set_xlabel("overlap of two explanations, |A ∩ B| / |A ∪ B|")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
        if title:
            figure.suptitle(title, fontsize=STYLE["axes.titlesize"])
    return figure


def conditioning_plot(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Figure:
    """How much of what the history explains is lost as more of it is removed, under both conditionings, side by side:
    whether looking at the events beats taking the last ones.

    Args:
        rows: of `trust.evaluate_curves`, of both: `conditioning`, `solver`, `deletion`.
    """
    _need(rows, "a plot of both conditionings", "row")
    shown = ("recency", "greedy", "distiller")
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 3.3), layout="constrained", dpi=STYLE["savefig.dpi"])
        panels = figure.subplots(1, 2, sharey=True)
        for axes, conditioning in zip(panels, ("paper", "survival"), strict=True):
            for index, solver in enumerate(shown):
                for row in rows:
                    if row["conditioning"] == conditioning and row["solver"] == solver:
                        lost = -100 * np.array(row["deletion"], float)
                        axes.plot(lost, label=solver, **_line(index))
            axes.axhline(100, color="#999999", linewidth=0.8, zorder=1)
            axes.set(title=f"{conditioning} conditioning", xlabel="events removed")
        panels[0].set_ylabel("lost of what the history explains, %")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(shown))
        if title:
            figure.suptitle(title, fontsize=STYLE["axes.titlesize"])
    return figure


def _look(method: str) -> dict[str, Any]:
    """Distillers filled, recency a diamond, the others hollow: told apart without colour too."""
    if method == "recency":
        return {"facecolor": COLOURS[6], "edgecolor": COLOURS[6], "marker": "D"}
    colour = COLOURS[1] if method.startswith("distiller") else COLOURS[0]
    return {"facecolor": colour if method.startswith("distiller") else "white", "edgecolor": colour, "marker": "o"}


def _label_points(figure: Figure, axes: Axes, points: np.ndarray, names: Sequence[str], taken: np.ndarray) -> None:
    """Write `names` beside `points` (n, 2), each in the nearest place around its point where it covers nothing that is
    `taken` (m, 4), boxes in pixels; further away, with a line to it."""
    pixel = figure.dpi / 72
    turns = np.deg2rad([0, 180, 90, 270, 30, 150, 330, 210])
    sides = np.round(np.stack([np.cos(turns), np.sin(turns)], axis=1), 3)
    reach = np.repeat([8, 15, 23, 33, 45, 60], len(sides))[:, None]
    steps = reach * pixel * np.tile(sides, (6, 1))  # (p, 2): places to try, the nearest first
    for at, point, name in zip(axes.transData.transform(points), points, names, strict=True):
        text = axes.annotate(
            name,
            point,
            (0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=8,
            zorder=4,
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.7, "shrinkA": 1, "shrinkB": 4},
        )
        size = Text.get_window_extent(text)
        half = np.array([size.width, size.height]) / 2
        centres = at + steps + np.sign(steps) * half
        boxes = np.concatenate([centres - half, centres + half], axis=1)
        outside = 4 * half.prod() - _shared_areas(boxes, np.array([axes.bbox.extents]))[:, 0]
        best = int((outside + _shared_areas(boxes, taken).sum(1)).round().argmin())
        taken = np.concatenate([taken, boxes[best : best + 1]])
        text.set_position(tuple((centres[best] - at) / pixel))
        assert text.arrow_patch is not None
        text.arrow_patch.set_visible(bool(reach[best, 0] > 8))


def _shared_areas(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Area (p, m) that each of `some` (p, 4) shares with each of `others` (m, 4): boxes left, below, right, above."""
    low = np.maximum(some[:, None, :2], others[None, :, :2])
    high = np.minimum(some[:, None, 2:], others[None, :, 2:])
    return (high - low).clip(min=0).prod(-1)
