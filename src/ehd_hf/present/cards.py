"""Cards from data: what a checkpoint explains, what it was trained on, how good its answers are; and whether a card,
of a model or of a data set, is fit to be published."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from string import Template
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCardData
from transformers import PreTrainedConfig

from .tables import SHORT, Column, markdown_table, plain_markdown, verdict

TASK = "event-history-distillation"
Rows = Sequence[Mapping[str, Any]]
SHOWN_TASKS = ("mtpp", "distiller", "ehed", "emhd", "explain")
_SHOWN_MARKS = 60

# What the front matter of a card must hold: texts as patterns, `float` for a number, a list for one or more entries.
_TEXT, _LICENSE = r"\S.*", r"[a-z0-9][a-z0-9.-]*"
_METRIC = {"type": _TEXT, "name": _TEXT, "value": float}
_RESULT = {"task": {"type": _TEXT}, "dataset": {"name": _TEXT, "type": _TEXT}, "metrics": [_METRIC]}
_CONFIG = {"config_name": r"sequences|\d+-\d+", "data_files": [{"split": r"\w+", "path": r"\S+\.parquet"}]}
CARD_SCHEMA: dict[str, Any] = {
    "model": {
        "license": _LICENSE,
        "library_name": "transformers",
        "tags": [_TEXT],
        "model-index": [{"name": _TEXT, "results": [_RESULT]}],
    },
    "dataset": {
        "pretty_name": _TEXT,
        "license": _LICENSE,
        "tags": [_TEXT],
        "size_categories": [r"n<1K|\d+[KM]<n<\d+[KM]"],
        "configs": [_CONFIG],
    },
}
CARD_SECTIONS = {
    "model": (
        "How to use it",
        "What it knows",
        "What it was trained on",
        "How good it is",
        "What it is for",
        "Licence",
    ),
    "dataset": ("How to use it", "Source", "Contents", "Marks", "What it is for", "Licence"),
}
# What `model-index` tells, by task and key of the model's own rows.
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
    rows: Rows,
    training: Mapping[str, Any] | None = None,
    commands: Sequence[str] = (),
    dataset: str | None = None,
) -> str:
    """The card of a distiller or a point process.

    Args:
        name: what users pass to `from_pretrained`.
        model: the model.
        data: the data set's own words: pretty_name, license, provenance, citation (see `dataset_cards/`).
        rows: evaluation rows of it (see `hub.rows_of`); a card without results is refused.
        training: contents of the run's `training.json`.
        commands: what trained it, in order.
        dataset: the data set's Hub id.
    """
    is_distiller, config = hasattr(model, "mtpp"), model.config
    needed = ("distiller", "ehed", "explain") if is_distiller else ("mtpp",)
    if not any(row["task"] in needed and row.get("checkpoint") for row in rows):
        raise ValueError(
            f"A card needs evaluation rows of the checkpoint (task {' or '.join(needed)}); got "
            f"{', '.join(sorted({row['task'] for row in rows})) or 'none'}. Run scripts/evaluate.py first."
        )
    process = config.mtpp_config if is_distiller else config
    labels = [process.id2label[mark] for mark in range(process.num_marks)]
    title = name.rpartition("/")[2]
    pairs = ", ".join(f"({0.5 * i}, {json.dumps(labels[i % len(labels)])})" for i in range(4))
    header = ModelCardData(
        license=data["license"],
        library_name="transformers",
        tags=["ehd_hf", "marked-temporal-point-process", *([TASK, "explainability"] if is_distiller else [])],
        datasets=[dataset] if dataset else None,
        model_name=title,
        eval_results=_eval_results(rows, data["pretty_name"]),
    )
    facts = {
        "header": header.to_yaml().rstrip(),
        "title": title,
        "name": name,
        "model_class": type(model).__name__,
        "mtpp_class": type(getattr(model, "mtpp", model)).__name__,
        "num_parameters": f"{model.num_parameters():,}",
        "pairs": pairs,
        "remote": _remote_use(name, pairs if is_distiller else None),
        "num_marks": f"{len(labels):,}",
        "marks": ", ".join(map(plain_markdown, labels[:_SHOWN_MARKS]))
        + (", ..." if len(labels) > _SHOWN_MARKS else ""),
        "time_unit": plain_markdown(process.time_unit or "the unit of the data"),
        "data_name": data["pretty_name"],
        "provenance": " ".join(data["provenance"].split()),
        "training": _training(training),
        "commands": "\n".join(["\n```bash", *commands, "```"]) if commands else "",
        "hyperparameters": _hyperparameters(config, training),
        "process_results": _process_results(rows),
        "license": data["license"],
        "citation": " ".join(data.get("citation", "").split()),
    }
    if is_distiller:
        facts |= {key: getattr(config, key) for key in ("history", "future", "max_length", "conditioning")}
        facts["asked"] = (
            f"that without it each future event becomes less than {config.epsilon} times as likely on average "
            f"(dppl_left < log {config.epsilon})"
            if config.epsilon is not None
            else f"that without it {config.share:.0%} of what the whole history explains is lost (dppl_left <= "
            f"{config.share} dppl(empty history))"
        )
        facts["explanation_results"] = _explanation_results(config, rows)
    template = files(__package__) / "templates" / ("model_card.md" if is_distiller else "mtpp_card.md")
    return re.sub(r"\n{3,}", "\n\n", Template(template.read_text(encoding="utf-8")).substitute(facts))


def check_card(text: str, repo_type: str = "model") -> None:
    """Refuse a card that lacks what a reader or the Hub needs, saying all that is wrong with it at once."""
    front = re.match(r"---\n(.*?)\n---\n(.*)", text, re.DOTALL)
    body = front[2] if front else text
    wrong = list(_mismatches(yaml.safe_load(front[1]), CARD_SCHEMA[repo_type])) if front else ["no YAML front matter"]
    wrong += [f"no section {title!r}" for title in CARD_SECTIONS[repo_type] if f"\n## {title}" not in body]
    wrong += [f"nothing under {title!r}" for title in re.findall(r"\n##+ (.+)\n\s*(?=## |\Z)", body)]
    wrong += [f"a local path, {path}" for path in re.findall(r"(?<![\w.:/])/(?:tmp|home|root|Users)/\S*", text)]
    if wrong:
        raise ValueError(f"The card is not fit to be published: {'; '.join(wrong)}. Make it anew from data.")


def _mismatches(value: Any, schema: Any, where: str = "") -> Iterator[str]:
    if isinstance(schema, dict):
        for key, inner in schema.items():
            if isinstance(value, dict) and key in value:
                yield from _mismatches(value[key], inner, f"{where}.{key}".lstrip("."))
            else:
                yield f"no {key}" + (f" in {where}" if where else "")
    elif isinstance(schema, list):
        if not isinstance(value, list) or not value:
            yield f"{where} without an entry"
        else:
            for entry in value:
                yield from _mismatches(entry, schema[0], where)
    elif schema is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            yield f"{where} must be a number, got {value!r}"
    elif not isinstance(value, str) or not re.fullmatch(schema, value):
        yield f"{where} must read {schema}, got {value!r}"


# --- from rows to words


def _eval_results(rows: Rows, data_name: str) -> list[EvalResult]:
    """The model's own results; of several on one split, that of most windows."""
    found: dict[tuple[Any, ...], tuple[int, EvalResult]] = {}
    for row in rows:
        for (task, metric), metric_name in _METRIC_NAMES.items():
            is_own = row.get("checkpoint") and row.get("solver", "distiller") == "distiller"
            if not is_own or row["task"] != task or row.get(metric) is None:
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
            key, size = (name, row["data"], row.get("pair"), row.get("split")), row.get("num_windows") or 0
            if key not in found or size > found[key][0]:
                found[key] = (size, result)
    return [result for _, result in found.values()]


def _training(training: Mapping[str, Any] | None) -> str:
    if training is None:
        return ""
    args = training["args"]
    return (
        f"{training['steps_run']:,} steps of {args['batch_size']} items, seed {args['seed']}; the weights are "
        f"those of step {training['best']['step']:,}, the best on the validation split by `{args['metric']}`."
    )


def _remote_use(name: str, pairs: str | None) -> str:
    """How to do without this package; a bundled model has no repository to take the code from."""
    if "/" not in name:
        return ""
    call = "transformers.AutoModel.from_pretrained(" if pairs is None else f'transformers.pipeline("{TASK}", model='
    lines = ["import transformers", "", f'model = {call}"{name}", trust_remote_code=True)']
    lines += [] if pairs is None else [f"print(model([{pairs}], future=1))"]
    return "\n".join(
        ["\nWithout the package, the code in this repository serves; read it first, `trust_remote_code` runs it:\n"]
        + ["```python", *lines, "```"]
    )


def _hyperparameters(config: Any, training: Mapping[str, Any] | None) -> str:
    """Every field that our configs declare, and how it was trained."""
    inner = getattr(config, "mtpp_config", None)
    skipped = {*PreTrainedConfig.__dataclass_fields__, "mtpp_config", "num_marks", "time_unit"}
    parts = {
        part.model_type: {key: getattr(part, key) for key in type(part).__dataclass_fields__ if key not in skipped}
        for part in (config, inner)
        if part is not None
    }
    if training is not None:
        kept = ("steps", "warmup_steps", "batch_size", "learning_rate", "weight_decay", "schedule", "max_grad_norm")
        parts["training"] = {key: training["args"].get(key) for key in kept}
    return "\n".join(
        f"- {part}: " + ", ".join(f"{key} {value}" for key, value in values.items() if value is not None)
        for part, values in parts.items()
    )


def _process_results(rows: Rows) -> str:
    """The point process beside trivial ones, on the same events."""
    scored = [row for row in rows if row["task"] == "mtpp"]
    own = next((row for row in scored if row.get("checkpoint")), None)
    if own is None:
        return "Not measured by itself."
    true = [row for row in scored if row["model"] == "true process"]
    trivial = [row for row in scored if not row.get("checkpoint") and row not in true]
    said = f"On the {own['num_events']:,} events of the {own['split']} split it needs {own['nll']:.3f} nats per event"
    if trivial:
        best = min(trivial, key=lambda row: row["nll"])
        gain = best["nll"] - own["nll"]
        said += f", {abs(gain):.3f} {'less' if gain >= 0 else 'more'} than the better trivial model ({best['model']})"
    said += f"; the process that drew them needs {true[0]['nll']:.3f}" if true else ""
    lines = [{**row, "who": row["model"]} for row in [*trivial, *true]] + [{**own, "who": "this model"}]
    columns = [
        Column("who", "model"),
        Column("nll", "NLL"),
        Column("time_nll", "of the time"),
        Column("mark_nll", "of the mark"),
        Column("ks", "KS"),
        Column("future_nll", "NLL of the futures"),
    ]
    columns = [column for column in columns if any(line.get(column.key) is not None for line in lines)]
    note = (
        "NLL in nats per event, first events left out, in the data's own unit of time; KS: how far the rescaled "
        "times are from Exp(1)."
    )
    if own.get("future_nll") is not None:
        note += f" Futures: the last {own['pair'].partition('-')[0]} events of every ({_pair(own)}) window."
    return f"{said}.\n\n{markdown_table(lines, columns)}\n\n{note}"


def _explanation_results(config: Any, rows: Rows) -> str:
    """The distiller beside recency, greedy search and whatever else was measured on the same windows."""
    parts = []
    if mine := [row for row in rows if row["task"] == "distiller"]:
        row = max(mine, key=lambda row: row["num_windows"])
        trivial = (
            ": such an answer says little more than what happened last."
            if row["is_last_k"] > 0.5
            else ", which is the trivial answer."
        )
        parts.append(
            f"On {row['num_windows']:,} test windows it distils {row['size']:.1f} of {config.history} events on "
            f"average and meets what is asked in {row['constraint_met']:.1%} of them. Its DS is {row['ds']:.3f}, that "
            f"of as many of the most recent events {row['recency_ds']:.3f}. {row['is_last_k']:.1%} of its answers are "
            f"exactly the most recent events{trivial}"
        )
    return "\n\n".join([*parts, *_solver_results(rows), *_certified_sizes(rows)])


def _solver_results(rows: Rows) -> list[str]:
    settings: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["task"] in ("ehed", "emhd") and row.get("batch_size") != 1:  # those were made to take the time
            settings.setdefault((row["split"], row["num_windows"], row["conditioning"]), []).append(row)
    if not settings:
        return []
    setting = max(settings, key=lambda key: (len({row["solver"] for row in settings[key]}), key[1]))
    lines: dict[str, dict[str, Any]] = {}
    for row in settings[setting]:
        name = "this model" if row["solver"] == "distiller" else SHORT.get(row["solver"], row["solver"])
        metric, spec = ("ds", ".3f") if row["task"] == "ehed" else ("lmhs", ".2f")
        line = lines.setdefault(row["solver"], {"solver": name})
        line |= {metric: _with_interval(row, metric, spec), f"{metric}_evaluations": row.get("evaluations")}
        if row.get("difference_low") is not None:
            line[f"{metric}_verdict"] = {1: "worse", 0: "level", -1: "better"}[verdict(row)]
    columns = [
        Column("solver", "answers by"),
        Column("ds", "DS [95 %]"),
        Column("ds_verdict", "against this model"),
        Column("ds_evaluations", "evaluations", ",.0f"),
        Column("lmhs", "LMHS [95 %]"),
        Column("lmhs_verdict", "against this model"),
        Column("lmhs_evaluations", "evaluations", ",.0f"),
    ]
    ordered = [lines[name] for name in sorted(lines, key=lambda name: [*SHORT, name].index(name))]
    columns = [column for column in columns if any(line.get(column.key) is not None for line in ordered)]
    split, num_windows, conditioning = setting
    return [
        markdown_table(ordered, columns),
        f"{num_windows:,} windows of {split}, {conditioning} conditioning. DS (higher is better): how much better the "
        "distilled events predict the future than those left, all of the size that this model chose. LMHS (lower is "
        "better): how many events it takes to reach this model's values. Intervals by bootstrap over sequences; level "
        "means that the interval of the difference on the same windows holds 0. Evaluations of the point process are "
        "per window. Recency takes the most recent events and knows nothing else.",
    ]


def _certified_sizes(rows: Rows) -> list[str]:
    """Of rows of the task "explain": the smallest sets known to reach a target."""
    lines = [
        {
            "target": row.get("target"),
            "solver": "this model" if row["solver"] == "distiller" else SHORT.get(row["solver"], row["solver"]),
            "size": _with_interval(row, "size", ".2f"),
            "reached": row.get("reached"),
            "num_windows": row.get("num_windows"),
        }
        for row in rows
        if row["task"] == "explain" and row.get("size") is not None
    ]
    if not lines:
        return []
    columns = [
        Column("target", "target"),
        Column("solver", "answers by"),
        Column("size", "certified size [95 %]"),
        Column("reached", "reached", ".1%"),
        Column("num_windows", "windows", ",d"),
    ]
    columns = [column for column in columns if any(line[column.key] is not None for line in lines)]
    note = "Certified size: events distilled until the point process confirms the target; lower is better."
    return [markdown_table(lines, columns), note]


def _with_interval(row: Mapping[str, Any], key: str, spec: str) -> str:
    low, high = row.get(f"{key}_low"), row.get(f"{key}_high")
    return f"{row[key]:{spec}}" + (f" [{low:{spec}}, {high:{spec}}]" if None not in (low, high) else "")


def _pair(row: Mapping[str, Any]) -> str:
    return str(row["pair"]).replace("-", ", ")
