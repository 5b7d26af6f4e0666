"""Model cards made from evaluation rows, and the check that a card of a model or a data set can be published."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from huggingface_hub import DatasetCard, EvalResult, ModelCard, ModelCardData
from transformers import PreTrainedConfig

from ..data.export import plain_markdown
from ..evaluation.scores import OURS, compare_with_trivial
from ..models.hf_pipeline import TASK
from .tables import PROCESS_COLUMNS, SHORT, Column, markdown_table, verdict

Row = Mapping[str, Any]
SHOWN_TASKS = ("mtpp", "distiller", "ehed", "emhd", "explain")
_SHOWN_MARKS = 60
_TRAINED_WITH = ("steps", "warmup_steps", "batch_size", "learning_rate", "weight_decay", "schedule", "max_grad_norm")
# What the front matter and the text of a card must hold.
_FIELDS = {
    "model": ("license", "library_name", "tags", "model-index"),
    "dataset": ("pretty_name", "license", "tags", "size_categories", "configs"),
}
_SECTIONS = {
    "model": ("How to use it", "What it knows", "What it was trained on", "How good it is", "What it is for"),
    "dataset": ("How to use it", "Source", "Contents", "Marks", "What it is for"),
}
# The metrics in `model-index`, by task and key of the model's own rows.
_METRIC_NAMES = {
    ("mtpp", "nll"): "NLL per event",
    ("mtpp", "future_nll"): "NLL per event of the futures",
    ("distiller", "ds"): "DS",
    ("distiller", "size"): "events distilled",
    ("distiller", "constraint_met"): "share of windows whose constraint is met",
    ("emhd", "lmhs"): "LMHS",
    ("explain", "size"): "certified size",
}


def model_card(
    name: str,
    model: Any,
    *,
    data: Mapping[str, Any],
    rows: Sequence[Row],
    training: Mapping[str, Any] | None = None,
    commands: Sequence[str] = (),
    dataset: str | None = None,
) -> str:
    """The card of a distiller or a point process.

    Args:
        name: what users pass to `from_pretrained`.
        data: texts about the data set: pretty_name, license, provenance, citation (see `dataset_cards/`).
        rows: evaluation rows of the model (see `hub.push.rows_of`); at least one is needed.
        training: contents of the run's `training.json`.
        commands: the commands that trained it, in order.
        dataset: the data set's Hub id.
    """
    is_distiller, config = hasattr(model, "mtpp"), model.config
    needed = ("distiller", "ehed", "explain") if is_distiller else ("mtpp",)
    if not any(row["task"] in needed and row.get("checkpoint") for row in rows):
        asked, got = " or ".join(needed), ", ".join(sorted({row["task"] for row in rows})) or "none"
        fix = "Run scripts/paper/evaluate.py first."
        raise ValueError(f"A card needs evaluation rows of the checkpoint (task {asked}); got {got}. {fix}")
    process, title = config.mtpp_config if is_distiller else config, name.rpartition("/")[2]
    labels = [process.id2label[mark] for mark in range(process.num_marks)]
    shown = [*map(plain_markdown, labels[:_SHOWN_MARKS]), *(["..."] if len(labels) > _SHOWN_MARKS else [])]
    header = ModelCardData(
        license=data["license"],
        library_name="transformers",
        tags=["ehd_hf", "marked-temporal-point-process", *([TASK, "explainability"] if is_distiller else [])],
        datasets=[dataset] if dataset else None,
        model_name=title,
        eval_results=_eval_results(rows, data["pretty_name"]),
    )
    card = ModelCard.from_template(
        header,
        template_str=(files(__package__) / "templates" / "model_card.md.j2").read_text(encoding="utf-8"),
        name=name,
        title=title,
        task=TASK,
        is_distiller=is_distiller,
        config=config,
        data=data,
        training=training,
        commands=commands,
        model_class=type(model).__name__,
        mtpp_class=type(getattr(model, "mtpp", model)).__name__,
        num_parameters=f"{model.num_parameters():,}",
        num_marks=f"{len(labels):,}",
        marks=", ".join(shown),
        context=", ".join(map(plain_markdown, process.context_marks or ())),
        pairs=", ".join(f"({0.5 * i}, {json.dumps(labels[i % len(labels)])})" for i in range(4)),
        time_unit=plain_markdown(process.time_unit or "the unit of the data"),
        hyperparameters=_hyperparameters(config, training),
        **_process_results(rows),
        **_solver_results(rows),
        distilled=max((row for row in rows if row["task"] == "distiller"), key=_num_windows, default=None),
        size_table=_certified_sizes(rows),
    )
    return re.sub(r"\n{3,}", "\n\n", str(card)).rstrip("\n") + "\n"


def check_card(text: str, repo_type: str = "model") -> None:
    """Refuse a card that lacks what a reader or the Hub needs; the error lists everything that is wrong."""
    try:
        card: Any = (ModelCard if repo_type == "model" else DatasetCard)(text)
        header = card.data.to_dict()
        wrong = [f"no {field}" for field in _FIELDS[repo_type] if not header.get(field)]
        wrong += _wrong_values(header)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"The card is not fit to be published: its front matter cannot be read ({error}).") from error
    sections = (*_SECTIONS[repo_type], "Licence")
    wrong += [f"no section {title!r}" for title in sections if f"\n## {title}" not in card.text]
    wrong += [f"nothing under {title!r}" for title in re.findall(r"\n##+ (.+)\n\s*(?=## |\Z)", card.text)]
    wrong += [f"a local path, {path}" for path in re.findall(r"(?<![\w.:/])/(?:tmp|home|root|Users)/\S*", text)]
    if wrong:
        raise ValueError(f"The card is not fit to be published: {'; '.join(wrong)}. Make it anew from data.")


def _wrong_values(header: Mapping[str, Any]) -> Iterator[str]:
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", str(header.get("license", "unknown"))):
        yield f"license must be an identifier of the Hub, such as apache-2.0, got {header['license']!r}"
    if header.get("library_name", "transformers") != "transformers":
        yield f"library_name must be transformers, got {header['library_name']!r}"
    for model in header.get("model-index", []):
        for metric in (metric for result in model["results"] for metric in result["metrics"]):
            value = metric["value"]
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                yield f"{metric['type']} must be a number, got {value!r}"
    for config in header.get("configs", []):
        if not re.fullmatch(r"sequences|\d+-\d+", str(config.get("config_name"))):
            yield f"config_name must be sequences or K-L, got {config.get('config_name')!r}"
        for file in config.get("data_files", []):
            if not str(file.get("path")).endswith(".parquet"):
                yield f"data_files must be Parquet, got {file.get('path')!r}"


# --- from rows to results


def _eval_results(rows: Sequence[Row], data_name: str) -> list[EvalResult]:
    """The model's own results; of several on one split, the one on most windows."""
    results: dict[tuple[Any, ...], tuple[int, EvalResult]] = {}
    own = [row for row in rows if row.get("checkpoint") and row.get("solver", "distiller") == "distiller"]
    for row in own:
        for (task, metric), metric_name in _METRIC_NAMES.items():
            if row["task"] != task or row.get(metric) is None:
                continue
            name = f"{metric_name}, {row['target']}" if row.get("target") else metric_name
            result = EvalResult(
                task_type="event-sequence-modeling" if task == "mtpp" else TASK,
                dataset_type=row["data"],
                dataset_name=data_name,
                dataset_config=row.get("pair"),
                dataset_split=row.get("split"),
                metric_type=metric,
                metric_name=name,
                metric_value=round(float(row[metric]), 4),
            )
            key = (name, row["data"], row.get("pair"), row.get("split"))
            if key not in results or _num_windows(row) > results[key][0]:
                results[key] = (_num_windows(row), result)
    return [result for _, result in results.values()]


def _hyperparameters(config: Any, training: Mapping[str, Any] | None) -> dict[str, dict[str, Any]]:
    """Every field that our configs declare, and the arguments of the training."""
    skipped = {*PreTrainedConfig.__dataclass_fields__, "mtpp_config", "num_marks", "time_unit"}
    parts = {
        part.model_type: {key: getattr(part, key) for key in type(part).__dataclass_fields__ if key not in skipped}
        for part in (config, getattr(config, "mtpp_config", None))
        if part is not None
    }
    if training is not None:
        parts["training"] = {key: training["args"].get(key) for key in _TRAINED_WITH}
    return parts


def _process_results(rows: Sequence[Row]) -> dict[str, Any]:
    """The rows of the point process, of the best trivial one and of the true one, and the table of all."""
    scored = [row for row in rows if row["task"] == "mtpp"]
    own = next((row for row in scored if row.get("checkpoint")), None)
    truth = [row for row in scored if row["model"] == "true process"]
    trivial = [row for row in scored if not row.get("checkpoint") and row not in truth]
    lines = [*trivial, *truth, {**own, "model": OURS}] if own else []
    return {
        "own": own,
        "standing": compare_with_trivial(own, trivial) if own else None,
        "truth": truth[0] if truth else None,
        "process_table": _table(lines, *PROCESS_COLUMNS, Column("future_nll", "NLL of the futures")),
    }


def _solver_results(rows: Sequence[Row]) -> dict[str, Any]:
    """The distiller beside the solvers that were run on the same windows: the setting with most solvers."""
    settings: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["task"] in ("ehed", "emhd") and row.get("batch_size") != 1:  # batches of one measure the time
            settings.setdefault((row["split"], row["num_windows"], row["conditioning"]), []).append(row)
    compared = max(
        settings.values(),
        key=lambda group: (len({row["solver"] for row in group}), _num_windows(group[0])),
        default=[],
    )
    lines: dict[str, dict[str, Any]] = {}
    for row in compared:
        metric, spec = ("ds", ".3f") if row["task"] == "ehed" else ("lmhs", ".2f")
        line = lines.setdefault(row["solver"], {"solver": _solver_name(row)})
        line |= {metric: _with_interval(row, metric, spec), f"{metric}_evaluations": row.get("evaluations")}
        if row.get("difference_low") is not None:
            line[f"{metric}_verdict"] = {1: "worse", 0: "level", -1: "better"}[verdict(row)]
    columns = [Column("solver", "answers by")]
    for metric, title in (("ds", "DS [95 %]"), ("lmhs", "LMHS [95 %]")):
        columns += [Column(metric, title), Column(f"{metric}_verdict", "against this model")]
        columns += [Column(f"{metric}_evaluations", "evaluations", ",.0f")]
    ordered = [lines[name] for name in sorted(lines, key=lambda name: [*SHORT, name].index(name))]
    return {"compared": compared[0] if compared else None, "solver_table": _table(ordered, *columns)}


def _certified_sizes(rows: Sequence[Row]) -> str:
    """The table of the task "explain": the smallest sets known to reach a target."""
    lines = [
        {**row, "solver": _solver_name(row), "size": _with_interval(row, "size", ".2f")}
        for row in rows
        if row["task"] == "explain" and row.get("size") is not None
    ]
    return _table(
        lines,
        Column("target", "target"),
        Column("solver", "answers by"),
        Column("size", "certified size [95 %]"),
        Column("reached", "reached", ".1%"),
        Column("num_windows", "windows", ",d"),
    )


def _table(lines: Sequence[Row], *columns: Column) -> str:
    """A table without the columns that no line has; nothing if there are no lines."""
    used = [column for column in columns if any(line.get(column.key) is not None for line in lines)]
    return markdown_table(lines, used) if lines else ""


def _solver_name(row: Row) -> str:
    return OURS if row["solver"] == "distiller" else str(SHORT.get(row["solver"], row["solver"]))


def _num_windows(row: Row) -> int:
    return row.get("num_windows") or 0


def _with_interval(row: Row, key: str, spec: str) -> str:
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    return f"{row[key]:{spec}}" + (f" [{low:{spec}}, {high:{spec}}]" if None not in (low, high) else "")
