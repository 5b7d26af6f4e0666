"""The table of figures in the README, from rows: nothing in it is written by hand."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ehd_hf.present.tables import Column, markdown_table
from page import PAPER

Rows = Sequence[Mapping[str, Any]]
BEGIN = "<!-- figures: made by scripts/paper/report.py --readme -->"
END = "<!-- end of figures -->"
COLUMNS = [Column("what", ""), Column("ours", "ours"), Column("beside", "beside"), Column("command", "command")]


def headlines(rows: Rows) -> str:
    """The table, between the lines that mark its place."""
    rows = [row for row in rows if row.get("split") != "test" or row["task"] in ("mtpp", "causes")]
    table = [_process(rows), _simulated(rows), _retweet(rows), _paper_distiller(rows)]
    table += [_explained(rows, "stackoverflow", "15-40"), _explained(rows, "stackoverflow", "15-40", first=1000)]
    table += [_explained(rows, "retweet_seismic738_segments", "10-25", first=1000)]
    return "\n".join([BEGIN, "", markdown_table([*table, _causes(rows)], COLUMNS), "", END])


def put_headlines(text: str, rows: Rows) -> str:
    """A page with its table made anew."""
    before, _, rest = text.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the page must have the lines {BEGIN} and {END}; it has not. Put them where the table goes.")
    return before + headlines(rows) + after


def _of(rows: Rows, **wanted: Any) -> list[Mapping[str, Any]]:
    found = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    if not found:
        raise ValueError(f"there must be a row with {wanted}; got none. Make it with scripts/paper/evaluate.py.")
    return found


def _over_seeds(rows: Iterable[Mapping[str, Any]], key: str, spec: str) -> str:
    """The mean over models, and their spread if there are several."""
    values = [row[key] for row in rows]
    spread = f" ± {statistics.stdev(values):{spec}}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{spec}}{spread}"


def _seeds(rows: Sequence[Any]) -> str:
    return f"{len(rows)} seeds" if len(rows) > 1 else "1 seed"


def _likelihood(rows: Rows, what: str, command: str, data: str, model: str) -> dict[str, str]:
    rows = _of(rows, task="mtpp", data=data)
    ours = [row for row in rows if row["model"].partition("_seed")[0] == f"runs/{model}"]
    beside = ", ".join(
        f"{row['model']} {row['nll']:.3f}" for row in sorted(rows, key=lambda row: row["nll"]) if not row["checkpoint"]
    )
    what = f"{what}, {_seeds(ours)}"
    return {"what": what, "ours": _over_seeds(ours, "nll", ".3f"), "beside": beside, "command": f"`{command}`"}


def _process(rows: Rows) -> dict[str, str]:
    command = "--task mtpp --model runs/stackoverflow_fullynn ... --pair 15-40"
    what = "The point process: NLL per event, StackOverflow"
    return _likelihood(rows, what, command, "stackoverflow", "stackoverflow_fullynn")


def _simulated(rows: Rows) -> dict[str, str]:
    command = "--task mtpp --model runs/simulated_fullynn --data simulated:delayed"
    what = "on simulated events, where the truth is known"
    return _likelihood(rows, what, command, "simulated:delayed", "simulated_fullynn")


def _retweet(rows: Rows) -> dict[str, str]:
    command = "--task mtpp --data data/retweet_seismic738_segments --jitter-seed 0 --pair 10-25"
    what = "on retweet_seismic738 (not the paper's Retweet)"
    return _likelihood(rows, what, command, "retweet_seismic738_segments", "retweet_seismic738_segments_fullynn")


def _paper_distiller(rows: Rows) -> dict[str, str]:
    found = {}
    for task, key in (("ehed", "ds"), ("emhd", "lmhs")):
        most = max(_of(rows, task=task, data="stackoverflow", pair="15-40"), key=lambda row: row["num_windows"])
        same = _of(rows, task=task, data="stackoverflow", pair="15-40", num_windows=most["num_windows"])
        found |= {f"{solver} {key}": _of(same, solver=solver) for solver in ("distiller", "greedy_search", "recency")}
    paper = PAPER["stackoverflow", "test_sampled", "15-40", "distiller"]
    ds, lmhs = (
        {name: _over_seeds(found[f"{name} {key}"], key, spec) for name in ("distiller", "greedy_search", "recency")}
        for key, spec in (("ds", ".3f"), ("lmhs", ".2f"))
    )
    return {
        "what": f"The paper's distiller, StackOverflow (15, 40), {_seeds(found['distiller ds'])}: DS (higher is "
        "better); events needed, LMHS (fewer is better)",
        "ours": f"{ds['distiller']}; {lmhs['distiller']}",
        "beside": f"paper {paper['ds']:.3f}; {paper['lmhs']:.2f}. Greedy search {ds['greedy_search']}; "
        f"{lmhs['greedy_search']}. **The last k events {ds['recency']}; {lmhs['recency']}**",
        "command": "`--tasks ehed emhd --solvers greedy_search ... --split test_sampled`",
    }


def _explained(rows: Rows, data: str, pair: str, first: int | None = None) -> dict[str, str]:
    """Of the first so many windows, or of all."""
    asked = {"task": "explain", "data": data, "target": "share 0.7", "conditioning": "survival", "pair": pair}
    asked |= {"first": first}
    rows = [row for row in _of(rows, **asked) if row["model"].partition("_seed")[0].endswith("_ranking")]
    sizes = {}
    for name in ("distiller", "greedy_search", "integrated_gradient"):
        parts = [_of(rows, solver=solver) for solver in (name, f"{name}+prune")]
        parts = [part if name == "distiller" else part[:1] for part in parts]  # the others do not depend on its seed
        sizes[name] = ", pruned ".join(_over_seeds(part, "size", ".2f") for part in parts)
    ours = _of(rows, solver="distiller+prune")
    future, _, history = pair.partition("-")
    windows = f"--first {first} " if first else ""
    return {
        "what": f"Certified explanations, {data.removesuffix('_segments')} ({future}, {history}), {_seeds(ours)}: "
        f"events needed for 70 %, {f'first {first:,}' if first else 'all 5,000'} windows",
        "ours": sizes["distiller"],
        "beside": f"greedy search {sizes['greedy_search']}; integrated gradients {sizes['integrated_gradient']}; the "
        f"last k {_of(rows, solver='recency')[0]['size']:.2f}",
        "command": f"`--task explain --model runs/{ours[0]['model']} ... {windows}--share 0.7`",
    }


def _causes(rows: Rows) -> dict[str, str]:
    rows = _of(rows, task="causes", data="simulated:delayed")
    ours = _of(rows, solver="distiller")
    named = {"recency": "recency", "greedy_search": "greedy search", "integrated_gradient": "integrated gradients"}
    named |= {"random": "chance", "oracle": "true posterior"}
    return {
        "what": f"Known causes, simulated, {_seeds(ours)}: average precision",
        "ours": _over_seeds(ours, "ap", ".3f"),
        "beside": ", ".join(f"{name} {_of(rows, solver=solver)[0]['ap']:.3f}" for solver, name in named.items()),
        "command": "`--task causes --data simulated:delayed`",
    }
