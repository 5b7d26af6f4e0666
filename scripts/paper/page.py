"""Rows in, the results page out: the paper's tables as Markdown."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ehd_hf.present.tables import MISSING, SHORT, Column, markdown_table, verdict
from tasks.code import is_current

Row = Mapping[str, Any]
Rows = Sequence[Row]

EARLIER_CODE = "Rows that earlier code made:"


def _interval(key: str, spec: str = ".3f") -> list[Column]:
    return [Column(f"{key}_low", "95 % from", spec), Column(f"{key}_high", "to", spec)]


_COST_COLUMNS = [
    Column("evaluations", "evaluations", ",.1f"),
    Column("seconds_per_window", "s per window", ".4f"),
    Column("num_windows", "windows", ",d"),
]
# The tables of `plain_table`.
TASK_COLUMNS = {
    "data": [
        Column("pair", "(K, L)"),
        Column("whose", ""),
        Column("num_sequences", "sequences", ",d"),
        Column("num_events", "events", ",d"),
        Column("num_marks", "marks", "d"),
        Column("interval_mean", "mean interval", ".4f"),
        Column("interval_std", "± std", ".4f"),
        Column("t0", "first time", ",.1f"),
        Column("T", "last time", ",.1f"),
        Column("train", "training windows", ",d"),
        Column("validation", "validation", ",d"),
        Column("test", "test", ",d"),
    ],
    "losses": [
        Column("model", "distiller"),
        Column("pair", "(K, L)"),
        Column("losses", "trained with"),
        Column("epsilon", "epsilon", "g"),
        Column("left_at_end", "events left at the end", ".1%"),
    ],
    "mtpp": [
        Column("model", "model"),
        Column("nll", "NLL"),
        Column("time_nll", "time"),
        Column("mark_nll", "mark"),
        Column("gap", "above truth"),
        Column("ks", "KS"),
        Column("future_nll", "x_o NLL"),
        Column("future_time_nll", "x_o time"),
        Column("future_mark_nll", "x_o mark"),
        Column("num_events", "events", ",d"),
        Column("seconds", "s", ".1f"),
    ],
    "distiller": [
        Column("model", "distiller"),
        Column("pair", "(K, L)"),
        Column("ds", "DS"),
        Column("ds_std", "± std"),
        Column("paper_ds", "paper's DS", ".4f"),
        Column("recency_ds", "DS of the last k, same k"),
        Column("size", "size", ".2f"),
        Column("recency_size", "smallest last k that works", ".2f"),
        Column("constraint_met", "constraint met", ".1%"),
        Column("last_k_share", "of the distilled, among the last k", ".1%"),
        Column("is_last_k", "exactly the last k", ".1%"),
        Column("num_windows", "windows", ",d"),
    ],
    "ehed": [
        Column("pair", "(K, L)"),
        Column("solver", "solver"),
        Column("ds", "DS"),
        Column("ds_std", "± std"),
        *_interval("ds"),
        Column("difference", "minus distiller"),
        *_interval("difference"),
        *_COST_COLUMNS,
    ],
    "emhd": [
        Column("pair", "(K, L)"),
        Column("solver", "solver"),
        Column("lmhs", "LMHS", ".2f"),
        Column("lmhs_std", "± std", ".2f"),
        *_interval("lmhs", ".2f"),
        Column("reached", "reached", ".1%"),
        Column("difference", "minus distiller", ".2f"),
        *_interval("difference", ".2f"),
        *_COST_COLUMNS,
    ],
    "case_study": [
        Column("pair", "(K, L)"),
        Column("adds_one", "adds exactly one", ".1%"),
        Column("adds_several", "adds 3 or more", ".1%"),
        Column("ejects_several", "ejects 3 or more", ".1%"),
        Column("run_length", "mean ejected segment", ".2f"),
        Column("in_runs", "of the ejected, with a neighbour", ".1%"),
        Column("num_slides", "slides", ",d"),
    ],
    "explain": [
        Column("solver", "method"),
        Column("size", "size", ".2f"),
        Column("size_std", "± std", ".1f"),
        *_interval("size", ".2f"),
        Column("difference", "minus greedy", "+.2f"),
        *_interval("difference", "+.2f"),
        Column("reached", "reached", ".1%"),
        Column("verified", "verified", ".1%"),
        Column("recency_overlap", "of the set, among the last k", ".0%"),
        Column("evaluations", "evaluations", ",.0f"),
        Column("seconds_per_window", "s per window", ".5f"),
        Column("time_ratio", "time / greedy's", ".3f"),
        Column("model", "model"),
        Column("seed", "seed", "d"),
    ],
    "causes": [
        Column("solver", "method"),
        Column("ap", "average precision"),
        *_interval("ap"),
        Column("r_precision", "R-precision"),
        Column("recall_3", "recall of the first 3"),
        Column("recall_5", "first 5"),
        Column("recall_10", "first 10"),
        Column("evaluations", "evaluations", ",.0f"),
        Column("seconds_per_window", "s per window", ".5f"),
        Column("model", "model"),
        Column("seed", "seed", "d"),
    ],
    "influence": [
        Column("data", "events"),
        Column("solver", "from"),
        Column("nll", "validation NLL"),
        Column("auc", "AUC"),
        Column("f1", "F1"),
        Column("correlation", "correlation with the truth"),
        Column("coverage", "95 % intervals that hold it", ".0%"),
        Column("coverage_of_edges", "of true edges", ".0%"),
        Column("generator_seed", "seed", "d"),
        Column("seconds", "s", ".0f"),
    ],
    "why": [
        Column("model", "model"),
        Column("solver", "answer"),
        Column("num_models", "seeds", "d"),
        Column("nll", "NLL"),
        Column("cause_first", "cause first"),
        *_interval("cause_first"),
        Column("ap", "average precision"),
        Column("error", "calibration error, causes", ".4f"),
        *_interval("error", ".4f"),
        Column("error_none", "calibration error, nothing"),
        *_interval("error_none"),
        Column("auroc", "AUROC, nothing"),
        *_interval("auroc"),
        Column("root_first", "root first"),
        *_interval("root_first"),
    ],
    "trust": [
        Column("check", "check"),
        Column("solver", "method"),
        Column("overlap", "overlap", ".3f"),
        *_interval("overlap"),
        Column("chance", "of random sets"),
        Column("size", "mean size", ".2f"),
        Column("with_empty_set", "with an empty set", ".1%"),
        Column("num_models", "models", "d"),
        Column("num_windows", "windows", ",d"),
        Column("model", "model"),
    ],
    "curves": [
        Column("solver", "method"),
        Column("deletion_mean", "deletion, mean"),
        Column("insertion_mean", "insertion, mean"),
        Column("num_windows", "windows", ",d"),
        Column("model", "model"),
    ],
}
PAGE_TASKS = {*TASK_COLUMNS, "peers"} - {"influence"}
EXPLANATION_TASKS = {
    "explain": "The smallest sets that meet a target",
    "causes": "Do explanations find the causes?",
    "why": "Why did one event happen?",
    "trust": "Can they be trusted?",
    "curves": "Deletion and insertion",
}

# The paper's figures, reached with another MTPP: to compare in kind, not digit by digit. By data, split, (K, L) and
# solver: mean and deviation of DS and of LMHS, then how many times the distiller's time EHED and EMHD take. Only for
# data sets that are the paper's own: retweet_seismic738 is not its Retweet.
_DISTILLER, _GREEDY, _RANDOM, _RECENCY = "distiller", "greedy_search", "random_distillation", "recency"
_PAPER_VALUES = ("ds", "ds_std", "lmhs", "lmhs_std", "ehed_time", "emhd_time")
_PAPER_TABLES: dict[tuple[str, str], dict[str, dict[str, tuple[float, ...]]]] = {
    ("stackoverflow", "test_sampled"): {
        "15-40": {
            _DISTILLER: (0.6115, 0.6477, 11.657, 8.469, 1, 1),
            _GREEDY: (0.0295, 1.5293, 22.599, 12.092, 122, 201),
            _RANDOM: (-0.5244, 0.5479, 35.232, 7.139, 5.237, 197),
        },
        "15-45": {
            _DISTILLER: (0.5716, 0.7011, 11.490, 9.457, 1, 1),
            _GREEDY: (-0.0761, 1.5924, 24.401, 13.948, 132, 236),
            _RANDOM: (-0.6361, 0.5893, 38.982, 8.348, 5.195, 213),
        },
        "15-50": {
            _DISTILLER: (0.5304, 0.7098, 11.333, 9.941, 1, 1),
            _GREEDY: (-0.1478, 1.5472, 25.887, 15.549, 150, 286),
            _RANDOM: (-0.7266, 0.6200, 42.613, 9.664, 5.205, 235),
        },
        "20-50": {
            _DISTILLER: (0.5627, 0.6020, 14.561, 11.344, 1, 1),
            _GREEDY: (0.0261, 2.0056, 28.718, 15.111, 184, 310),
            _RANDOM: (-0.5802, 0.5420, 43.287, 9.487, 5.199, 239),
        },
        "25-50": {
            _DISTILLER: (0.5850, 0.5055, 16.741, 11.643, 1, 1),
            _GREEDY: (0.0579, 1.4469, 30.214, 14.783, 208, 320),
            _RANDOM: (-0.4531, 0.4696, 43.889, 9.109, 5.217, 241),
        },
    },
    ("stackoverflow", "test"): {
        "15-40": {_DISTILLER: (0.6062, 0.6685, 11.734, 8.737), _RANDOM: (-0.5368, 0.5515)},
        "15-45": {_DISTILLER: (0.5667, 0.6974, 11.523, 9.398), _RANDOM: (-0.6374, 0.5890)},
        "15-50": {_DISTILLER: (0.5462, 0.7237, 11.336, 9.896), _RANDOM: (-0.7290, 0.6186)},
        "20-50": {_DISTILLER: (0.5569, 0.5983, 14.424, 11.136), _RANDOM: (-0.5821, 0.5392)},
        "25-50": {_DISTILLER: (0.5768, 0.5065, 16.741, 11.643), _RANDOM: (-0.4480, 0.4707)},
    },
}
PAPER = {
    (data, split, pair, solver): dict(zip(_PAPER_VALUES, values, strict=False))
    for (data, split), table in _PAPER_TABLES.items()
    for pair, solvers in table.items()
    for solver, values in solvers.items()
}
# What the paper says of its data: features, and windows of training, validation and test by pair. Times of Retweet are
# in another unit, and its sequences are others: no figure of it stands beside retweet_seismic738.
PAPER_DATA: dict[str, dict[str | None, dict[str, float]]] = {
    "stackoverflow": {
        None: {"num_sequences": 6633, "num_events": 480_414, "num_marks": 22}
        | {"interval_mean": 0.8747, "interval_std": 1.2091, "t0": 1324.0, "T": 1390.0},
        "15-40": {"train": 99_791, "validation": 10_826, "test": 29_232},
        "15-45": {"train": 87_623, "validation": 9_451, "test": 25_824},
        "15-50": {"train": 77_341, "validation": 8_307, "test": 22_951},
        "20-50": {"train": 68_635, "validation": 7_350, "test": 20_504},
        "25-50": {"train": 61_254, "validation": 6_512, "test": 18_385},
    }
}
PAPER_DS = {
    (data, pair): values["ds"]
    for (data, split, pair, solver), values in PAPER.items()
    if split == "test_sampled" and solver == _DISTILLER
}

# Masks tried per window, EHED / EMHD (table 1): history L, size P, draws M, permutations R, gradients G.
COMPLEXITY = {
    _DISTILLER: "1 / 1",
    _RECENCY: "1 / L",
    _RANDOM: "M / M L",
    _GREEDY: "P L / L²",
    "leave_one_out": "L / L",
    "shapley": "R L / R L",
    "integrated_gradient": "G / G + L",
    "backward_elimination": "L² / L²",
    "refine": "L² / L²",
    "exact_search": "C(L, P) / 2^L",
}


def groups_by(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    """Rows that agree in the values of `keys`, in the order of their first."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(key) for key in keys), []).append(row)
    return groups


# --- the results page


class Table(NamedTuple):
    """A table of a page: a title, rows and columns, and a note below."""

    title: str
    rows: list[dict[str, Any]]
    columns: list[Column]
    note: str = ""


def score_table(task: str, rows: Rows) -> Table:
    """DS or LMHS in the paper's shape: a line per (K, L), mean ± std per solver, the paper's in the column after."""
    metric, spec = _METRIC[task]
    lines: list[dict[str, Any]] = []
    for group in _settings(rows):
        line: dict[str, Any] = {"pair": _pair(group[0]), "model": group[0]["model"]}
        for row in group:
            solver = row["solver"]
            line[solver] = f"{row[metric]:{spec}} ± {row[f'{metric}_std']:{spec}}"
            paper = _paper(row)
            if metric in paper:
                line[f"paper {solver}"] = f"{paper[metric]:{spec}} ± {paper[f'{metric}_std']:{spec}}"
        lines.append(line | {"num_windows": group[0]["num_windows"]})
    lines += _seed_lines(rows, metric, spec)
    lines.sort(key=lambda line: (*map(int, re.findall(r"\d+", line["pair"])), line["model"]))
    columns = [Column("pair", "(K, L)")]
    if len({line["pair"] for line in lines}) < len(lines):
        columns.append(Column("model", "checkpoint"))
    for solver in _solvers(rows):
        columns.append(Column(solver, SHORT.get(solver, solver)))
        if any(f"paper {solver}" in line for line in lines):
            columns.append(Column(f"paper {solver}", f"{SHORT.get(solver, solver)}, paper"))
    columns.append(Column("num_windows", "windows", ",d"))
    best = "higher" if task == "ehed" else "lower"
    note = (
        "In a line of several seeds, mean ± std over the seeds." if any("seeds" in x["model"] for x in lines) else ""
    )
    return Table(f"{metric.upper()}, mean ± std over windows ({best} is better)", lines, columns, note)


def _seed_lines(rows: Rows, metric: str, spec: str) -> Iterator[dict[str, Any]]:
    """A line for each distiller of several seeds: the mean of each solver, ± the deviation over these seeds."""
    for group in groups_by(rows, "pair", "num_windows").values():
        for run in dict.fromkeys(map(run_name, group)):
            seeds = [row for row in group if run_name(row) == run]
            if (number := len({row["checkpoint"] for row in seeds})) > 1:
                line = {"pair": _pair(seeds[0]), "model": f"{run}, {number} seeds"}
                for (solver,), same in groups_by(seeds, "solver").items():
                    if len(same) == number:
                        values = [row[metric] for row in same]
                        line[solver] = f"{statistics.mean(values):{spec}} ± {statistics.stdev(values):{spec}}"
                yield line | {"num_windows": seeds[0]["num_windows"]}


def detail_table(task: str, rows: Rows) -> Table:
    """Every solver in every setting: the mean with its interval, the difference from the distiller with its own."""
    metric, spec = _METRIC[task]
    lines = []
    for group in _settings(rows):
        for row in group:
            line = {"pair": _pair(row), "solver": SHORT.get(row["solver"], row["solver"])}
            line |= {"mean": _with_interval(row, metric, spec), "difference": _with_interval(row, "difference", spec)}
            shares = ("reached", "size", "dppl_left", "dppl_distilled")
            lines.append(line | {key: row[key] for key in shares})
    columns = [
        Column("pair", "(K, L)"),
        Column("solver", "solver"),
        Column("mean", f"{metric.upper()} [95 %]"),
        Column("difference", "minus the distiller's [95 %]"),
        *([Column("reached", "reached", ".1%")] if task == "emhd" else []),
        Column("size", "size", ".2f"),
        Column("dppl_left", "dppl_left"),
        Column("dppl_distilled", "dppl_distilled"),
    ]
    note = (
        "Intervals of means by bootstrap over sequences, whose windows overlap; differences on the same windows."
        + (" A solver that does not reach the distiller's values counts as L." if task == "emhd" else "")
    )
    return Table(f"{metric.upper()} in detail", lines, columns, note)


def cost_tables(rows: Rows) -> list[Table]:
    """Complexity (the paper's table 1, measured) and time as ratios to the distiller's (its table 2)."""
    counts: dict[str, dict[str, Any]] = {
        solver: {"solver": SHORT.get(solver, solver), "masks": COMPLEXITY.get(solver)} for solver in _solvers(rows)
    }
    pairs, times = [], []
    for group in _settings(rows):
        pair = _pair(group[0])
        pairs += [pair] if pair not in pairs and not _is_timing(group[0]) else []
        line: dict[str, Any] = {"pair": pair, "at_once": group[0]["batch_size"], "threads": group[0]["threads"]}
        own = {row["task"]: row["seconds_per_window"] for row in group if row["solver"] == _DISTILLER}
        seconds = []
        for solver in counts:
            answers = {row["task"]: row for row in group if row["solver"] == solver}
            if not answers:
                continue
            tasks = [answers.get(task) for task in _METRIC]
            if not _is_timing(group[0]):
                counts[solver][pair] = _slashed([row and row["evaluations"] for row in tasks], ",.0f")
            ratios = [row and own.get(row["task"]) and row["seconds_per_window"] / own[row["task"]] for row in tasks]
            line[solver] = _slashed(ratios, ".1f")
            paper = _paper(next(iter(answers.values())))
            if "ehed_time" in paper and solver != _DISTILLER and _is_timing(group[0]):
                line[f"paper {solver}"] = _slashed([paper["ehed_time"], paper["emhd_time"]], ".4g")
            if solver == _DISTILLER:
                seconds = [1e3 * row["seconds_per_window"] for row in tasks if row]
        times.append(line | {"milliseconds": sum(seconds) / len(seconds) if seconds else None})
    complexity = [Column("solver", "solver"), Column("masks", "masks tried"), *(Column(pair, pair) for pair in pairs)]
    columns = [Column("pair", "(K, L)"), Column("at_once", "windows at once", "d")]
    for solver in counts:
        if solver != _DISTILLER:
            columns.append(Column(solver, SHORT.get(solver, solver)))
            if any(f"paper {solver}" in line for line in times):
                columns.append(Column(f"paper {solver}", f"{SHORT.get(solver, solver)}, paper"))
    columns += [Column("milliseconds", "distiller, ms per window", ".2f"), Column("threads", "threads", "d")]
    return [
        Table(
            "Complexity: evaluations of the MTPP per window, EHED / EMHD",
            list(counts.values()),
            complexity,
            "An evaluation is one likelihood of one window given one mask. Counted are all that were made: the full "
            "history's, one for every mask tried or two where H_d is asked for too, and those of the values reported. "
            "L is the history's length, P the size given, M = 4 random masks, R = 16 permutations, G gradients "
            "(forward and backward). The paper writes O(P²) for greedy search on EHED; P rounds over up to L events "
            "are O(P L).",
        ),
        Table(
            "Time per window as a multiple of the distiller's, EHED / EMHD",
            times,
            columns,
            "The paper's ratios are for one window at a time and stand there. The distiller's time includes values "
            "reported, as a solver's does. Times are CPU times.",
        ),
    ]


def data_tables(rows: Rows) -> Iterator[str]:
    """What a data set is made of, beside what the paper says of its own."""
    for group in ([row for row in rows if "pair" not in row], [row for row in rows if "pair" in row]):
        beside: list[Row] = []
        for row in group:
            beside.append({**row, "whose": "here"})
            if paper := PAPER_DATA.get(row["data"], {}).get(row.get("pair")):
                beside.append({"pair": row.get("pair"), "whose": "the paper's", **paper})
        if beside:
            yield plain_table("data", beside)


def peers_table(rows: Rows) -> Table:
    """NLL of every point process on every data set: mean ± std over seeds, where there are several."""
    lines: dict[tuple[str, str], dict[str, Any]] = {}
    for (package, model, data), same in groups_by(rows, "package", "model", "data").items():
        is_trivial = "seed" not in same[0]
        lines.setdefault((package, model), {"model": model, "package": "trivial" if is_trivial else package})
        values = [row["test_nll"] for row in same]
        spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        best = " *" if same[0].get("is_best") else ""
        lines[package, model][data] = f"{statistics.mean(values):.3f}{spread}{best}"
    columns = [Column("model", "point process"), Column("package", "of")]
    columns += [Column(data, data) for data in dict.fromkeys(row["data"] for row in rows)]
    ordered = sorted(lines.values(), key=lambda line: line["package"] != "trivial")
    title = (
        f"NLL per event, the whole test split (lower is better), after {rows[0]['seconds']:g} CPU seconds of training"
    )
    note = "*: the best trivial model by validation."
    if any("minutes" in row.get("command", "") for row in rows):
        note += " `auto` is what `ehd-hf train` makes of the data by the clock."
    return Table(title, ordered, columns, note)


def case_study_tables(rows: Rows) -> list[Table]:
    """What the distilled events have in common, from `case_study` rows."""
    spec = ".3f"
    moved = [
        {"pair": _pair(row), "num_slides": row["num_slides"]}
        | {key: _with_interval(row, key, spec) for key in ("adds_one", "adds_several", "ejects_several")}
        | {key: _with_interval(row, key, spec) for key in ("ejects_rather", "run_length", "in_runs")}
        for row in sorted(rows, key=_order)
    ]
    slide_columns = [
        Column("pair", "(K, L)"),
        Column("adds_one", "adds exactly one"),
        Column("adds_several", "adds 3 or more"),
        Column("ejects_several", "ejects 3 or more"),
        Column("ejects_rather", "difference"),
        Column("run_length", "mean ejected segment"),
        Column("in_runs", "of the ejected, with a neighbour"),
        Column("num_slides", "slides", ",d"),
    ]
    marked: dict[str, dict[str, Any]] = {}
    pairs = []
    for row in sorted(rows, key=_order):
        pair = _pair(row)
        pairs.append(pair)
        for mark in row["mark_shares"]:
            line = marked.setdefault(mark["label"], {"label": mark["label"]})
            star = " *" if mark["significant"] else ""
            line[pair] = f"{mark['share']:.1%} ({mark['expected']:.1%}, {mark['recency']:.1%}){star}"
    return [
        Table(
            "One in, segments out: what one slide of the window changes",
            moved,
            slide_columns,
            "Shares of slides, means over events; 95 % intervals by bootstrap over sequences. An event that left the "
            "window is not counted as ejected.",
        ),
        Table(
            "Share of each mark's events that is distilled (at random, if the last events were taken)",
            list(marked.values()),
            [Column("label", "mark"), *(Column(pair, pair) for pair in dict.fromkeys(pairs))],
            "* differs from random distillation of the same sizes: two-sided, clustered by sequence, Holm-corrected "
            "over the marks at 5 %. A preference that the last events show too is one for where a mark stands.",
        ),
    ]


def short_answers(rows: Rows) -> list[str]:
    """Does the distiller beat greedy search? Recency? At what cost? One line each, from ehed and emhd rows."""
    lines = []
    for rival, question in ((_GREEDY, "greedy search"), (_RECENCY, "the most recent events")):
        parts = []
        for task, (metric, spec) in _METRIC.items():
            group = [row for row in rows if row["task"] == task and row["solver"] == rival]
            if not group:
                continue
            verdicts = [verdict(row) for row in group]
            gaps = [-row["difference"] for row in group]
            parts.append(
                f"{metric.upper()}: better in {verdicts.count(1)}, level in {verdicts.count(0)}, worse in "
                f"{verdicts.count(-1)} of {len(group)} runs (distiller minus {SHORT[rival]}: "
                f"{_range(gaps, '+' + spec)})"
            )
        if parts:
            lines.append(f"**Does the distiller beat {question}?** {'. '.join(parts)}.")
    costs = []
    own = {_setting(row): row for row in rows if row["solver"] == _DISTILLER}
    for rival in (_GREEDY, _RECENCY):
        group = [row for row in rows if row["solver"] == rival and _setting(row) in own]
        if group:
            times = [row["seconds_per_window"] / own[_setting(row)]["seconds_per_window"] for row in group]
            counts = [row["evaluations"] for row in group]
            costs.append(
                f"{SHORT[rival]} takes {_range(counts, ',.0f')} evaluations of the MTPP per window and "
                f"{_range(times, '.1f')} times the distiller's time"
            )
    if costs:
        counts = [row["evaluations"] for row in own.values()]
        lines.append(
            f"**At what cost?** {'; '.join(costs)}. The distiller takes {_range(counts, ',.0f')} evaluations, all of "
            "them to state how good its answer is; its training comes on top."
        )
    return lines


def results_page(rows: Rows, *, command: str, figures: Mapping[str, Sequence[tuple[str, str]]] | None = None) -> str:
    """The whole page as Markdown.

    Args:
        rows: of `scripts/paper/evaluate.py`, any tasks.
        command: what makes this page.
        figures: (caption, path) by data set, "" for those of none.
    """
    figures = figures or {}
    parts = ["# Results", f"Made by `{command}`; do not edit, every number comes from a row.", _PREFACE]
    parts += [f"![{caption}]({path})" for caption, path in figures.get("", ())]
    if peers := _of_task(rows, "peers"):
        commands = "\n".join(dict.fromkeys(row["command"] for row in peers))
        parts += ["## Point processes beside those of EasyTPP", f"```bash\n{commands}\n```"]
        parts.append(_table_text(peers_table(peers)))
    for (data,), of_data in groups_by([row for row in rows if row["task"] != "peers"], "data").items():
        parts.append(f"## {data}")
        if data.startswith("retweet_seismic738"):
            parts.append("Retweet cascades of the same collection as the paper's Retweet, but not its sequences.")
        if described := _of_task(of_data, "data"):
            parts += ["### The data", _commands(described), *data_tables(described)]
        for part in _solver_sections(of_data):
            parts += part
        for task, heading in (("distiller", "The distiller beside recency"), ("mtpp", "The point process")):
            for (split,), group in groups_by(_of_task(of_data, task), "split").items():
                group.sort(key=_order)
                parts += [f"### {heading}, {split}", _commands(group), plain_table(task, group)]
        if runs := _of_task(of_data, "losses"):
            parts += [
                "### What each loss does alone, validation windows",
                _commands(runs),
                plain_table("losses", runs),
            ]
        if studies := _of_task(of_data, "case_study"):
            parts += ["### Case studies", _commands(studies)]
            parts += [_table_text(table) for table in case_study_tables(studies)]
        for part in _explanation_sections(of_data):
            parts += part
        parts += [f"![{caption}]({path})" for caption, path in figures.get(data, ())]
    return "\n\n".join(part for part in parts if part) + "\n"


_METRIC = {"ehed": ("ds", ".4f"), "emhd": ("lmhs", ".2f")}
_PREFACE = (
    "The paper's figures stand beside ours where data set, split and (K, L) are the same. Its MTPP is another one, so "
    "they compare in kind, not digit by digit."
)


def _solver_sections(rows: Rows) -> Iterator[list[str]]:
    solved = [row for row in rows if row["task"] in _METRIC]
    for (split, conditioning), group in groups_by(solved, "split", "conditioning").items():
        answers = [row for row in group if not _is_timing(row)]
        tables = [score_table(task, _of_task(answers, task)) for task in _METRIC]
        tables += cost_tables(group)
        tables += [detail_table(task, _of_task(answers, task)) for task in _METRIC]
        parts = [f"### Solvers on {split}, {conditioning} conditioning", *short_answers(answers), _commands(group)]
        yield parts + [_table_text(table) for table in tables if table.rows]


def _explanation_sections(rows: Rows) -> Iterator[list[str]]:
    """Of the tasks that look at explanations themselves: a section per task and setting."""
    for task, heading in EXPLANATION_TASKS.items():
        for setting, group in explanation_settings(rows, task):
            shown = over_seeds(group) if task == "why" else [with_recalls(row) for row in group]
            parts = [f"### {heading} {setting}", _commands(group), plain_table(task, shown)]
            if task == "why":
                parts.insert(1, _why_in_words(shown))
            yield [*parts, _explanation_note(task, shown), _spread_over_seeds(task, shown)]


def explanation_settings(rows: Rows, task: str) -> list[tuple[str, list[Row]]]:
    """The rows of one of `EXPLANATION_TASKS` that were asked the same of the same windows, and what that was."""
    names = ("split", "conditioning", "target", "first", "limit", "pair", "batch_size")
    settings = []
    for (split, conditioning, target, first, limit, *_), group in groups_by(_of_task(rows, task), *names).items():
        number = f"the first {first:,d} windows" if first else f"{limit:,d} windows drawn" if limit else None
        single = "one window at a time" if _is_timing(group[0]) else None
        words = (f"{_pair(group[0])}, {split}", number, f"{conditioning} conditioning", target, single)
        settings.append((", ".join(filter(None, words)), group))
    return settings


def method_name(method: str) -> str:
    """A method of `evaluation.answers` for people: "integrated_gradient:per_round=2+drop" is "integrated gradient
    (per_round=2) + drop"."""
    name, _, process = method.partition(", ")
    name, _, refinement = name.partition("+")
    name, _, options = name.partition(":")
    text = SHORT.get(name, name.replace("_", " ")) + (f" ({options.replace(',', ', ')})" if options else "")
    return text + (f" + {refinement}" if refinement else "") + (f", {process}" if process else "")


def with_recalls(row: Row) -> dict[str, Any]:
    """The row, with the recall of the first 3, 5 and 10 events in keys of their own."""
    recall = row.get("recall")
    return {**row, **{f"recall_{k}": recall[k - 1] for k in (3, 5, 10) if recall and len(recall) >= k}}


def over_seeds(rows: Rows) -> list[dict[str, Any]]:
    """Rows of models that differ in their seed alone as one: means, and intervals that hold those of all."""
    ends = {"low": min, "high": max}
    lines = []
    for same in groups_by(
        [{**row, "model": row["model"] and run_name(row)} for row in rows], "model", "solver"
    ).values():
        line = {**same[0], "num_models": len(same) if same[0]["model"] else None}
        for key, value in same[0].items():
            if isinstance(value, float):
                line[key] = ends.get(key.rpartition("_")[2], statistics.mean)([row[key] for row in same])
        lines.append(line)
    return lines


def _why_in_words(rows: Rows) -> str:
    """What the table says, of the model that is likeliest, and of the one least so."""
    named = {row["solver"]: row for row in rows if not row["model"]}
    models = sorted((row for row in rows if row["model"] and "error" in row), key=lambda row: row["nll"])
    if not models or "true posterior" not in named:
        return ""
    texts = [
        f"{row['model']} (NLL {row['nll']:.3f}) names the cause first in {row['cause_first']:.1%} of cases; its "
        f"probabilities "
        f"of causes are off by {row['error']:.4f} on average, that of nothing by {row['error_none']:.3f}"
        for row in (models[0], *models[1:][-1:])
    ]
    limit = named["true posterior"]
    others = f"recency in {named['recency']['cause_first']:.1%}, pair lift in {named['pair lift']['cause_first']:.1%}"
    return (
        f"**How far can the probabilities be trusted?** As far as the model is likely. {'. '.join(texts)}. The limit, "
        f"the true posterior, names it in {limit['cause_first']:.1%} (NLL {limit['nll']:.3f}), {others}."
    )


def _explanation_note(task: str, rows: Rows) -> str:
    windows = f"{_range([row['num_windows'] for row in rows], ',d')} windows"
    if sequences := [row["num_sequences"] for row in rows if row.get("num_sequences")]:
        windows += f" of {_range(sequences, ',d')} sequences"
    if task == "explain":
        by_mean = any(row["solver"].startswith(_RANDOM) for row in rows)
        return (
            f"{windows}; {_range([row['explains_nothing'] for row in rows], '.1%')} of those asked for are left out: "
            "their history explains nothing. Size counts as L where the target is not reached. Differences are "
            "paired; intervals by bootstrap over sequences. Verified: of the answers that reach the target, how many "
            "do when the deleted sequence is built and scored from scratch in float64, outside the time. After a plus "
            "sign: drop, put back what can be spared; prune, and make one swap; swap, up to four."
            + (f" {_RANDOM} reaches a target by the mean of its draws; one of them is verified." if by_mean else "")
        )
    if task == "causes":
        without = _range([row["without_causes"] for row in rows], ".1%")
        return (
            f"{windows} with {_range([row['num_causes'] for row in rows], '.1f')} causes each "
            f"on average; {without} of the windows drawn have none and are left out. The oracle ranks by the true "
            "posterior of parenthood; 'true process' searches with the true likelihood in the trained model's place."
        )
    if task == "why":
        with_cause = _range([row["num_with_cause"] for row in rows], ",d")
        return (
            f"{windows}, each an event and the 25 before it; {with_cause} have their cause among these. Why: the "
            "probabilities of `explainer.why`; leave one out and integrated gradient order by dppl of the one event. "
            "The true posterior is what nobody can beat. Root first: of the triggered events of 100 sequences. Of "
            "several seeds the means, and intervals that hold those of all; bootstrap over sequences."
        )
    if task == "trust":
        return (
            f"{windows}. Overlap of two sets is their Jaccard index, mean over windows and pairs of models; beside it "
            "that of random sets of the same sizes. It should be high for other seeds, and near chance once the "
            "weights of the point process are shuffled. A set is empty where the history explains nothing to a model "
            "with shuffled weights; it overlaps with no other. Recency has the same order in any model: its overlap "
            "compares sizes. Intervals by bootstrap over sequences."
        )
    return (
        f"{windows}, whose history explains something. Mean over all sizes of dppl, in units of what the whole "
        "history explains. Deletion: the first events of the order are taken out; the lower the better. Insertion: "
        "they alone are kept; the higher the better."
    )


def _spread_over_seeds(task: str, rows: Rows) -> str:
    """Mean and deviation over the seeds of a distiller's training, where there are several: models that are named
    alike but for a "seed1" at the end."""
    metric = {"explain": "size", "causes": "ap"}.get(task)
    groups: dict[tuple[str, str], dict[Any, float]] = {}
    for row in rows:
        if metric and row["solver"].startswith(_DISTILLER):
            groups.setdefault((row["solver"], run_name(row)), {})[row["checkpoint"]] = row[metric]
    several = len({run for _, run in groups}) > 1
    lines = []
    for (solver, run), values in groups.items():
        if len(values) > 1:
            spread = f"{statistics.mean(values.values()):.3f} ± {statistics.stdev(values.values()):.3f}"
            who = f"{solver} ({run})" if several else solver
            lines.append(f"{who}: {metric} {spread} over {len(values)} seeds.")
    return " ".join(lines)


def run_name(row: Row) -> str:
    """The model's name without the number of its seed."""
    return re.sub(r"_?seed\d+$", "", str(row["model"]))


def _of_task(rows: Rows, task: str) -> list[Row]:
    return [row for row in rows if row["task"] == task]


def _is_timing(row: Row) -> bool:
    """Whether windows were searched one at a time: done to take the time, on a few windows."""
    return row.get("batch_size") == 1


def _settings(rows: Rows) -> list[list[Row]]:
    """Rows that share windows and checkpoint, in the order of (K, L); within, in the order of solvers."""
    solvers = _solvers(rows)
    ordered = sorted(rows, key=lambda row: (_order(row), solvers.index(row["solver"])))
    return list(groups_by(ordered, "pair", "model", "checkpoint", "num_windows", "batch_size").values())


def _setting(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in ("task", "pair", "checkpoint", "num_windows", "batch_size"))


def _solvers(rows: Rows) -> list[str]:
    there = dict.fromkeys(row["solver"] for row in rows if row.get("solver"))
    return [solver for solver in SHORT if solver in there] + [solver for solver in there if solver not in SHORT]


def _order(row: Row) -> tuple[Any, ...]:
    future, _, history = str(row.get("pair") or "0-0").partition("-")
    return int(future), int(history), bool(row.get("checkpoint")), str(row.get("model"))


def _pair(row: Row) -> str:
    return "({}, {})".format(*str(row["pair"]).split("-"))


def _paper(row: Row) -> Mapping[str, float]:
    if row.get("conditioning") != "paper":
        return {}
    return PAPER.get((row["data"], row["split"], row["pair"], row["solver"]), {})


def _with_interval(row: Row, key: str, spec: str) -> str:
    if row.get(key) is None:
        return MISSING
    text = f"{row[key]:{spec}}"
    if row.get(f"{key}_low") is not None:
        text += f" [{row[f'{key}_low']:{spec}}, {row[f'{key}_high']:{spec}}]"
    return text


def _slashed(values: Sequence[Any], spec: str) -> str:
    return " / ".join(MISSING if value is None else format(value, spec) for value in values)


def _range(values: Sequence[float], spec: str) -> str:
    low, high = format(min(values), spec), format(max(values), spec)
    return low if low == high else f"{low} to {high}"


def _commands(rows: Rows) -> str:
    """What computes the rows."""
    commands = dict.fromkeys(row["command"] for row in rows if row.get("command"))
    old = sum(not is_current(row) for row in rows)
    note = f"\n\n{EARLIER_CODE} {old} of {len(rows)}." if old else ""
    return "\n".join(["```bash", *commands, "```"]) + note if commands else ""


def _table_text(table: Table) -> str:
    return "\n\n".join(filter(None, [f"**{table.title}**", markdown_table(table.rows, table.columns), table.note]))


def plain_table(task: str, rows: Rows) -> str:
    """Without the columns of which no row has a value; explanations of a single model do not name it in every row."""
    columns = [column for column in TASK_COLUMNS[task] if any(row.get(column.key) is not None for row in rows)]
    if task in EXPLANATION_TASKS and len({row.get("model") for row in rows}) == 1:
        columns = [column for column in columns if column.key != "model"]
    return markdown_table(rows, columns)
