"""Rows in, the figures of the results page out. Made without pyplot: no global state, and they draw on any machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from ehd_hf.present.picture import COLOURS, STYLE, save_figure
from page import explanation_settings, method_name, run_name

Row = dict[str, Any]
Drawn = tuple[str, str, str, Figure]  # data set, file name, caption, figure
DASHES = ("-", "--", "-.", ":")  # a second cue besides colour, for print


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


# --- which figures there are


def draw(rows: list[Row], folder: Path, page: Path) -> dict[str, list[tuple[str, str]]]:
    """Draw what there are rows for; captions and paths as seen from `page`, by data set."""
    drawn: dict[str, list[tuple[str, str]]] = {}
    names: list[str] = []
    for data, name, caption, figure in [*_case_studies(rows), *_explanations(rows), *_conditionings(rows)]:
        name = re.sub(r"[^\w.-]+", "_", name)
        names.append(name)
        count = names.count(name)  # other windows, or another model: the same words
        file = folder / f"{name}{f'_{count}' if count > 1 else ''}.png"
        save_figure(figure, file)
        drawn.setdefault(data, []).append((caption, os.path.relpath(file, page.parent)))
    return drawn


def _case_studies(rows: list[Row]) -> Iterator[Drawn]:
    """Figures 3 to 6 of every case study."""
    studies = [row for row in rows if row["task"] == "case_study"]
    for data in dict.fromkeys(row["data"] for row in studies):
        mine = [row for row in studies if row["data"] == data]
        pdfs = {f"({row['pair'].replace('-', ', ')})": row["length_pdf"] for row in mine}
        lengths = length_plot(pdfs, data)
        yield data, f"lengths_{data}", f"How many events are distilled, {data}", lengths
        for row in mine:
            title, name = f"{data} ({row['pair'].replace('-', ', ')})", f"{data}_{row['pair']}"
            marks = mark_share_plot(row["mark_shares"], title)
            yield data, f"marks_{name}", f"Share of each mark's events that is distilled, {title}", marks
            moved = slide_plot(row["added"], row["ejected"], title)
            yield data, f"slides_{name}", f"Events ejected and added as the window slides, {title}", moved
            along = {sequence: (where, size) for sequence, where, size in row["along"]}
            sizes = sizes_plot(along, title)
            yield data, f"along_{name}", f"Size along four sequences, {title}", sizes


def _explanations(rows: list[Row]) -> Iterator[Drawn]:
    """A figure for every setting of the tasks explain, causes, trust and curves; of several seeds, the first."""
    plots = {
        "explain": ("sizes", "Size of the sets that meet the target, and the time they take", size_time_plot),
        "causes": ("causes", "Average precision against the true causes", precision_plot),
        "trust": ("trust", "Overlap of two explanations of the same window", overlap_plot),
        "curves": ("curves", "Deletion and insertion", curves_plot),
    }
    for data in dict.fromkeys(row["data"] for row in rows):
        mine = [row for row in rows if row["data"] == data]
        for task, (kind, caption, plot) in plots.items():
            for said, some in explanation_settings(mine, task):
                models = {run_name(row): row["model"] for row in reversed(some)}
                for model in reversed(models.values()):
                    here = [{**row, "solver": method_name(row["solver"])} for row in some if row["model"] == model]
                    pair, how, target = (here[0].get(key) for key in ("pair", "conditioning", "target"))
                    name = "_".join(filter(None, [kind, data, pair, how, target]))
                    title = f"{data} ({pair.replace('-', ', ')}), {how} conditioning" + (
                        f", {target}" if target else ""
                    )
                    which = f", {model}" if len(models) > 1 else ""
                    yield data, name, f"{caption}, {data} {said}{which}", plot(here, title + which)


def _conditionings(rows: list[Row]) -> Iterator[Drawn]:
    """Both conditionings side by side, where there are curves of both."""
    curves = [{**row, "solver": method_name(row["solver"])} for row in rows if row["task"] == "curves"]
    for data, pair in dict.fromkeys((row["data"], row["pair"]) for row in curves):
        here = [row for row in curves if (row["data"], row["pair"]) == (data, pair)]
        if len({row["conditioning"] for row in here}) == 2:
            title = f"{data} ({pair.replace('-', ', ')})"
            caption = f"What is lost as events are removed, under both conditionings, {title}"
            yield data, f"conditioning_{data}_{pair}", caption, conditioning_plot(here, title)
