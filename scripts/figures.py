"""The figures of `scripts/report.py --figures`: rows in, pictures out, and where they are."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Drawn = tuple[str, str, str, Any]  # data set, file name, caption, figure


def draw(rows: list[Row], folder: Path, page: Path) -> dict[str, list[tuple[str, str]]]:
    """Draw what there are rows for; captions and paths as seen from `page`, by data set."""
    from ehd_hf.present.picture import save_figure

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
    from ehd_hf.present import picture as plotting

    studies = [row for row in rows if row["task"] == "case_study"]
    for data in dict.fromkeys(row["data"] for row in studies):
        mine = [row for row in studies if row["data"] == data]
        pdfs = {f"({row['pair'].replace('-', ', ')})": row["length_pdf"] for row in mine}
        lengths = plotting.length_plot(pdfs, data)
        yield data, f"lengths_{data}", f"How many events are distilled, {data}", lengths
        for row in mine:
            title, name = f"{data} ({row['pair'].replace('-', ', ')})", f"{data}_{row['pair']}"
            marks = plotting.mark_share_plot(row["mark_shares"], title)
            yield data, f"marks_{name}", f"Share of each mark's events that is distilled, {title}", marks
            moved = plotting.slide_plot(row["added"], row["ejected"], title)
            yield data, f"slides_{name}", f"Events ejected and added as the window slides, {title}", moved
            along = {sequence: (where, size) for sequence, where, size in row["along"]}
            sizes = plotting.sizes_plot(along, title)
            yield data, f"along_{name}", f"Size along four sequences, {title}", sizes


def _explanations(rows: list[Row]) -> Iterator[Drawn]:
    """A figure for every setting of the tasks explain, causes, trust and curves; of several seeds, the first."""
    from ehd_hf.present import picture as plotting
    from ehd_hf.present.tables import explanation_settings, method_name, run_name

    plots = {
        "explain": ("sizes", "Size of the sets that meet the target, and the time they take", plotting.size_time_plot),
        "causes": ("causes", "Average precision against the true causes", plotting.precision_plot),
        "trust": ("trust", "Overlap of two explanations of the same window", plotting.overlap_plot),
        "curves": ("curves", "Deletion and insertion", plotting.curves_plot),
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
    from ehd_hf.present import picture as plotting
    from ehd_hf.present.tables import method_name

    curves = [{**row, "solver": method_name(row["solver"])} for row in rows if row["task"] == "curves"]
    for data, pair in dict.fromkeys((row["data"], row["pair"]) for row in curves):
        here = [row for row in curves if (row["data"], row["pair"]) == (data, pair)]
        if len({row["conditioning"] for row in here}) == 2:
            title = f"{data} ({pair.replace('-', ', ')})"
            caption = f"What is lost as events are removed, under both conditionings, {title}"
            yield data, f"conditioning_{data}_{pair}", caption, plotting.conditioning_plot(here, title)
