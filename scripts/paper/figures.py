"""Rows in, the figures of the results page out. Made without pyplot: no global state, and they draw on any machine."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from ehd_hf.present.picture import COLOURS, STYLE, save_figure
from page import Row, Rows, explanation_settings, groups_by, method_name, run_name

Drawn = tuple[str, str, str, Figure]  # data set, file name, caption, figure
DASHES = ("-", "--", "-.", ":")  # a second cue besides colour, for print
SMALLEST_BIN = 30  # events below which a share is chance's
PERCENT = PercentFormatter(1.0, decimals=0)


def new_figure(width: float = 7.2, height: float = 2.9) -> Figure:
    """A figure as wide as a README shows a picture; sizes in inches."""
    return Figure(figsize=(width, height), layout="constrained", dpi=STYLE["savefig.dpi"])


def plot(draw: Callable[[Any], Figure]) -> Callable[..., Figure]:
    """A plot in the house style, with a title above it."""

    @wraps(draw)
    def styled(rows: Any, title: str | None = None) -> Figure:
        if len(rows) == 0:
            raise ValueError(f"{draw.__name__} needs at least one row; got none.")
        with matplotlib.rc_context(STYLE):
            figure = draw(rows)
            if title:
                figure.suptitle(title, fontsize=STYLE["axes.titlesize"])
        return figure

    return styled


def _line(index: int) -> dict[str, Any]:
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": DASHES[index % len(DASHES)]}


def _values(rows: Rows, *keys: str) -> list[np.ndarray]:
    return [np.array([row[key] for row in rows], dtype=float) for key in keys]


@plot
def left_share_plot(curves: Mapping[str, Sequence[tuple[float, float]]]) -> Figure:
    """Share of left events along training (the paper's fig. 2), one line per run.

    Args:
        curves: (step, share in 0..1) pairs by name, as `eval_left_share` in a run's log.
    """
    figure = new_figure(height=3.2)
    axes = figure.subplots()
    for index, (name, points) in enumerate(curves.items()):
        axes.plot(*np.asarray(points, dtype=float).T, label=name, clip_on=False, zorder=3, **_line(index))
    axes.set(xlabel="training step", ylabel="events left in the history", ylim=(0, 1))
    axes.yaxis.set_major_formatter(PERCENT)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


@plot
def mark_share_plot(rows: Rows) -> Figure:
    """Share of each mark's events that is distilled, with its interval, against random distillation (fig. 3) and
    against distilling as many of the last events.

    Filled dots differ from random significantly, hollow ones do not; marks preferred most stand on top.

    Args:
        rows: of `statistics.mark_shares`.
    """
    ordered = sorted(rows, key=lambda row: row["share"] - row["expected"])
    figure, place = new_figure(height=1.3 + 0.21 * len(ordered)), np.arange(len(ordered))
    axes = figure.subplots()
    share, expected, recent, low, high = _values(ordered, "share", "expected", "recency", "low", "high")
    axes.hlines(place, low, high, color=COLOURS[0], linewidth=1.2)
    for filled, label in ((True, "distilled: unlike random"), (False, "distilled: no difference")):
        dots = np.array([bool(row["significant"]) == filled for row in ordered])
        face = COLOURS[0] if filled else "white"
        if dots.any():
            axes.scatter(share[dots], place[dots], s=26, color=face, edgecolor=COLOURS[0], zorder=3, label=label)
    axes.scatter(expected, place, s=34, marker="|", color=COLOURS[1], linewidth=2, zorder=2, label="at random")
    axes.scatter(recent, place, s=110, marker="|", color=COLOURS[6], linewidth=1, zorder=2, label="the last events")
    axes.set_yticks(place, [f"{row['label']} ({row['num_events']:,})" for row in ordered])
    axes.set(xlabel="share of the mark's events that is distilled", ylim=(-0.7, len(ordered) - 0.3))
    axes.xaxis.set_major_formatter(PERCENT)
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)
    figure.legend(loc="outside lower center", ncols=4)
    return figure


@plot
def length_plot(distributions: Mapping[str, Sequence[float]]) -> Figure:
    """How many events are distilled: pdf on the left, cdf on the right (fig. 4), one line per entry.

    Args:
        distributions: share of windows that distil 0, 1, 2, ... events, by name.
    """
    figure = new_figure()
    density, cumulative = figure.subplots(1, 2)
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
    return figure


@plot
def slide_plot(moved: Mapping[str, Sequence[int]]) -> Figure:
    """How many events enter and leave H_d as the window slides by one event (fig. 5); shares on a logarithmic axis,
    since what tells them apart is rare.

    Args:
        moved: how many slides moved 0, 1, 2, ... events, by "ejected from $H_d$" and "added to $H_d$".
    """
    figure, most = new_figure(), max(map(len, moved.values())) - 1
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (name, counts), colour in zip(panels, moved.items(), COLOURS[1::-1], strict=True):
        share = np.asarray(counts) / np.sum(counts)
        axes.bar(np.arange(len(share)), share, color=colour, width=0.8)
        axes.set(xlabel=f"events {name} in one slide", yscale="log", xlim=(-0.7, most + 0.7))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g}%"))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_title(f"{name}: {share[3:].sum():.1%} of slides move 3 or more", fontsize=9)
    panels[0].set_ylabel("share of slides")
    return figure


@plot
def sizes_plot(along: Sequence[tuple[Any, Sequence[int], Sequence[int]]]) -> Figure:
    """|H_d| as the window slides along four whole sequences (fig. 6), one panel each.

    Args:
        along: sequence, offsets and sizes.
    """
    figure = new_figure(height=4.0)
    grid = figure.subplots(2, 2, sharey=True)
    for axes, (name, offsets, sizes) in zip(grid.flat, along, strict=False):
        where = np.flatnonzero(np.diff(offsets) > 1) + 1  # a gap where windows are missing, not a line across
        points = (np.insert(np.asarray(values, dtype=float), where, np.nan) for values in (offsets, sizes))
        axes.step(*points, where="mid", color=COLOURS[0], linewidth=1.1)
        axes.set_title(f"sequence {name}", fontsize=9)
        axes.set_ylim(bottom=0)
    for axes in grid[-1]:
        axes.set_xlabel("first event of the window")
    for axes in grid[:, 0]:
        axes.set_ylabel("$|H_d|$")
    return figure


@plot
def size_time_plot(rows: Rows) -> Figure:
    """Size of the sets that meet a target, and the time they take, a line per method, the smallest sets on top.
    Distillers are filled, recency is a diamond and a line, since a method right of it explains nothing.

    Args:
        rows: of `answers.compare`, a setting's: `solver`, `size` with `_low` and `_high`, `seconds_per_window`.
    """
    ordered = sorted(rows, key=lambda row: -row["size"])
    figure, place = new_figure(height=0.9 + 0.21 * len(rows)), np.arange(len(rows))
    sizes, times = figure.subplots(1, 2, sharey=True)
    size, low, high, seconds = _values(ordered, "size", "size_low", "size_high", "seconds_per_window")
    for y, row in enumerate(ordered):
        name = str(row["solver"])
        colour = COLOURS[6] if name == "recency" else COLOURS[1] if name.startswith("distiller") else COLOURS[0]
        face = "white" if colour == COLOURS[0] else colour
        look: Any = {"facecolor": face, "edgecolor": colour, "marker": "D" if name == "recency" else "o", "zorder": 3}
        sizes.hlines(y, low[y], high[y], color=colour, linewidth=1.2, zorder=2)
        sizes.scatter(size[y], y, s=30, **look)
        times.scatter(seconds[y], y, s=30, **look)
        if name == "recency":
            sizes.axvline(size[y], color="#777777", linewidth=0.9, linestyle=(0, (5, 3)), zorder=1)
    sizes.set_yticks(place, [str(row["solver"]) for row in ordered])
    sizes.set(xlabel="events in the explanation", ylim=(-0.6, len(rows) - 0.4))
    times.set(xlabel="time per window", xscale="log")
    times.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    times.xaxis.set_major_formatter(EngFormatter(unit="s"))
    times.xaxis.set_minor_formatter(NullFormatter())
    for axes in (sizes, times):
        axes.grid(axis="y", visible=False)
    return figure


@plot
def precision_plot(rows: Rows) -> Figure:
    """Average precision against the true causes, with its interval, the best method on top; the oracle and random
    orders are lines. A hollow dot is the same search with the true likelihood in the trained model's place.

    Args:
        rows: of `causes.evaluate_causes`: `solver` (", true process" at its end for a hollow dot), `ap` with its
            interval.
    """
    lines = {row["solver"]: float(row["ap"]) for row in rows if row["solver"] in ("oracle", "random")}
    methods = [row for row in rows if row["solver"] not in lines]
    dots = {
        "with the trained model": {row["solver"]: row for row in methods if ", " not in row["solver"]},
        "with the true likelihood": {row["solver"].split(", ")[0]: row for row in methods if ", " in row["solver"]},
    }
    trained, true = dots.values()
    names = sorted(true | trained, key=lambda name: (true | trained)[name]["ap"])
    figure = new_figure(height=1.2 + 0.27 * len(names))
    axes = figure.subplots()
    for is_true, (label, by_name) in enumerate(dots.items()):
        if by_name:
            place = np.array([names.index(name) for name in by_name]) - 0.16 * is_true
            value, low, high = _values(list(by_name.values()), "ap", "ap_low", "ap_high")
            axes.hlines(place, low, high, color=COLOURS[is_true], linewidth=1.2, zorder=2)
            face = "white" if is_true else COLOURS[0]
            axes.scatter(value, place, s=30, color=face, edgecolor=COLOURS[is_true], zorder=4 - is_true, label=label)
    for name, value in lines.items():
        axes.axvline(value, color="#555555", linewidth=1, linestyle=(0, (5, 3)), zorder=1)
        axes.text(value, 1.02, name, transform=axes.get_xaxis_transform(), ha="center", color="#555555", fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set(xlabel="average precision against the true causes", ylim=(-0.6, len(names) - 0.4), xlim=(0, 1))
    axes.grid(axis="y", visible=False)
    if trained and true:
        figure.legend(loc="outside lower center", ncols=2)
    return figure


@plot
def reliability_plot(rows: Rows) -> Figure:
    """How often what was given a probability is so: causes on the left, no cause on the right, a line per model; who
    lies below the diagonal says too much.

    Args:
        rows: of the task why: `bins` and `bins_none`, of (mean probability, share, number).
    """
    figure = new_figure(height=3.4)
    for axes, key, what in zip(figure.subplots(1, 2), ("bins", "bins_none"), ("causes", "no cause"), strict=True):
        for index, row in enumerate(rows):
            probability, share, number = np.array(row[key]).T
            many = number >= SMALLEST_BIN
            axes.plot(probability[many], share[many], marker=".", label=row["model"] or row["solver"], **_line(index))
        axes.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, zorder=1)
        axes.set(xlabel=f"probability, {what}", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    figure.axes[0].set_ylabel("share that is so")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


CHECKS = {
    "distiller seeds": "other seeds of the distiller: should be high",
    "point process seeds": "other seeds of the point process: should be high",
    "shuffled weights": "shuffled weights of the point process: should be near chance",
}


@plot
def overlap_plot(rows: Rows) -> Figure:
    """How much two explanations of the same window share, with its interval, beside what random sets would; a panel
    for each check.

    Args:
        rows: of `trust.evaluate_trust`: `check`, `solver`, `overlap` with its interval, `chance`.
    """
    checks = groups_by(sorted(rows, key=lambda row: row["overlap"]), "check")
    ordered = [(check, checks[check,]) for check in dict.fromkeys(row["check"] for row in rows)]
    figure = new_figure(height=1.0 + 0.42 * len(checks) + 0.24 * len(rows))
    heights = [0.6 + len(group) for _, group in ordered]
    panels = figure.subplots(len(checks), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (check, group) in zip(panels, ordered, strict=True):
        place = np.arange(len(group))
        value, low, high, chance = _values(group, "overlap", "overlap_low", "overlap_high", "chance")
        axes.hlines(place, low, high, color=COLOURS[0], linewidth=1.2, zorder=2)
        axes.scatter(value, place, s=30, color=COLOURS[0], zorder=3, label="explanations", clip_on=False)
        axes.scatter(
            chance, place, s=80, marker="|", color=COLOURS[1], linewidth=2, label="random sets of the same sizes"
        )
        axes.set_yticks(place, [str(row["solver"]) for row in group])
        axes.set(ylim=(-0.6, len(group) - 0.4), xlim=(0, 1))
        axes.grid(axis="y", visible=False)
        axes.set_title(CHECKS.get(check, check), fontsize=9, loc="left")
    panels[-1].set_xlabel("overlap of two explanations, |A ∩ B| / |A ∪ B|")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


@plot
def conditioning_plot(rows: Rows) -> Figure:
    """How much of what the history explains is lost as more of it is removed, under both conditionings, side by side:
    whether looking at the events beats taking the last ones.

    Args:
        rows: of `trust.evaluate_curves`, of both: `conditioning`, `solver`, `deletion`.
    """
    curves = {(row["conditioning"], row["solver"]): -100 * np.array(row["deletion"], float) for row in rows}
    figure = new_figure(height=3.3)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, conditioning in zip(panels, ("paper", "survival"), strict=True):
        for index, solver in enumerate(("recency", "greedy", "distiller")):
            if (conditioning, solver) in curves:
                axes.plot(curves[conditioning, solver], label=solver, **_line(index))
        axes.axhline(100, color="#999999", linewidth=0.8, zorder=1)
        axes.set(title=f"{conditioning} conditioning", xlabel="events removed")
    panels[0].set_ylabel("lost of what the history explains, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


# --- which figures there are


def draw(rows: Rows, folder: Path, page: Path) -> dict[str, list[tuple[str, str]]]:
    """Draw what there are rows for, of each data set one setting; captions and paths as seen from `page`, by data
    set."""
    drawn: dict[str, list[tuple[str, str]]] = {}
    drawings = (_losses(rows), _case_studies(rows), _explanations(rows), _conditionings(rows), _reliabilities(rows))
    for data, name, caption, figure in chain.from_iterable(drawings):
        file = folder / (re.sub(r"[^\w.-]+", "_", name) + ".png")
        save_figure(figure, file)
        drawn.setdefault(data, []).append((caption, os.path.relpath(file, page.parent)))
    return drawn


def _pair(row: Row) -> str:
    return f"({row['pair'].replace('-', ', ')})"


def _losses(rows: Rows) -> Iterator[Drawn]:
    """Figure 2 of the paper: each loss alone, and both."""
    for (data, pair), runs in groups_by((row for row in rows if row["task"] == "losses"), "data", "pair").items():
        title = f"{data} {_pair(runs[0])}"
        curves = {f"{row['losses']}, epsilon {row['epsilon']:g}": row["left_share"] for row in runs}
        caption = f"Share of events left along training, {title}"
        yield data, f"left_share_{data}_{pair}", caption, left_share_plot(curves, title)


def _case_studies(rows: Rows) -> Iterator[Drawn]:
    """Figures 3 to 6 of the paper: lengths of every (K, L), the others of the first."""
    for (data,), studies in groups_by((row for row in rows if row["task"] == "case_study"), "data").items():
        lengths = length_plot({_pair(row): row["length_pdf"] for row in studies}, data)
        yield data, f"lengths_{data}", f"How many events are distilled, {data}", lengths
        row = studies[0]
        title, name = f"{data} {_pair(row)}", f"{data}_{row['pair']}"
        marks = mark_share_plot(row["mark_shares"], title)
        yield data, f"marks_{name}", f"Share of each mark's events that is distilled, {title}", marks
        moved = slide_plot({"ejected from $H_d$": row["ejected"], "added to $H_d$": row["added"]}, title)
        yield data, f"slides_{name}", f"Events ejected and added as the window slides, {title}", moved
        yield data, f"along_{name}", f"Size along four sequences, {title}", sizes_plot(row["along"], title)


def _explanations(rows: Rows) -> Iterator[Drawn]:
    """A figure for each of the tasks explain, causes and trust: of the first setting and its first model."""
    plots = {
        "explain": ("sizes", "Size of the sets that meet the target, and the time they take", size_time_plot),
        "causes": ("causes", "Average precision against the true causes", precision_plot),
        "trust": ("trust", "Overlap of two explanations of the same window", overlap_plot),
    }
    for (data,), of_data in groups_by(rows, "data").items():
        for task, (kind, caption, draw_rows) in plots.items():
            for setting, group in explanation_settings(of_data, task)[:1]:
                models = {row["model"] for row in group}
                shown = [row for row in group if row["model"] == group[0]["model"]]
                first = shown[0]
                name = "_".join(filter(None, [kind, data, *map(first.get, ("pair", "conditioning", "target"))]))
                which = f", {first['model']}" if len(models) > 1 else ""
                words = [f"{data} {_pair(first)}", f"{first['conditioning']} conditioning", first.get("target")]
                figure = draw_rows(_with_method_names(shown), ", ".join(filter(None, words)))
                yield data, name, f"{caption}, {data} {setting}{which}", figure


def _conditionings(rows: Rows) -> Iterator[Drawn]:
    """Both conditionings side by side, where there are curves of both."""
    curves = [row for row in rows if row["task"] == "curves"]
    for (data, pair), group in groups_by(curves, "data", "pair").items():
        if len({row["conditioning"] for row in group}) == 2:
            title = f"{data} {_pair(group[0])}"
            caption = f"What is lost as events are removed, under both conditionings, {title}"
            yield data, f"conditioning_{data}_{pair}", caption, conditioning_plot(_with_method_names(group), title)


def _reliabilities(rows: Rows) -> Iterator[Drawn]:
    """Probabilities of causes beside what happened, of the first seed of each model."""
    told = [row for row in rows if row["task"] == "why" and "bins" in row]
    for (data, pair), group in groups_by(told, "data", "pair").items():
        first = {run_name(row): row for row in reversed(group)}
        title = f"{data} {_pair(group[0])}"
        shown = [{**row, "model": row["model"] and name} for name, row in reversed(first.items())]
        yield (
            data,
            f"reliability_{data}_{pair}",
            f"Probabilities and what happened, {title}",
            reliability_plot(shown, title),
        )


def _with_method_names(rows: Rows) -> list[Row]:
    return [{**row, "solver": method_name(row["solver"])} for row in rows]
