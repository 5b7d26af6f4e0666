"""What clients of the loopback Hub do, each in a process of its own whose environment names that Hub.

The functions run there, so libraries are imported inside them: the Hub's client reads its environment once.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from multiprocessing import get_context
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
_MARKS = ["deploy", "alert", "page on-call", "ticket", "health check"]
EVENTS = [(0.3 * i + 0.05 * (i % 4), _MARKS[i % 5]) for i in range(12)]
DATA = {"pretty_name": "A drawn log", "license": "apache-2.0", "provenance": "Drawn by lot,\nfor a test."}
SIZES = {"hidden_size": 6, "embedding_size": 5, "num_components": 4, "num_layers": 1}


@contextmanager
def start_client(environment: dict[str, str]) -> Iterator[Callable[..., Any]]:
    """Start a process that knows only this Hub; yields a function that calls another one there."""
    before = dict(os.environ)
    kept = {key: value for key, value in before.items() if not key.startswith(("HF_", "HUGGING"))}
    quiet = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    try:
        os.environ.clear()
        os.environ.update(kept | quiet | environment)
        client = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        client.submit(os.getpid).result()  # the process starts here, with this environment
    finally:
        os.environ.clear()
        os.environ.update(before)
    yield lambda function, *args, **options: client.submit(function, *args, **options).result()
    client.submit(leave_at_once).result()
    client.shutdown()


def leave_at_once() -> None:
    """End this process without the tidying up of the libraries it has loaded, which takes seconds."""
    from multiprocessing.util import Finalize

    Finalize(None, os._exit, args=(0,), exitpriority=100)


def train(folder: Path) -> None:
    """Two steps of a point process, two of a distiller on it, and the rows both are measured by."""
    import torch

    sys.path.insert(0, str(SCRIPTS / "paper"))
    from ehd_hf import EHDDistillerModel, FullyNNConfig, FullyNNModel, Trainer, TrainingArguments
    from ehd_hf.data.export import export_windows
    from ehd_hf.data.synthetic import simulated_splits
    from ehd_hf.data.windows import make_crops, make_windows
    from ehd_hf.evaluation.scores import trivial_baselines
    from ehd_hf.files import append_row, checkpoint_stamp
    from tasks import Run
    from tasks.mtpp import score_row
    from tasks.windows import PaperTasks

    torch.manual_seed(0)
    splits = simulated_splits("incident", num_sequences={"train": 9, "validation": 3, "test": 3}, horizon=30.0, seed=0)
    events = splits["train"]
    names = {"num_marks": events.num_marks, "id2label": dict(events.id2label), "time_unit": events.time_unit}
    mtpp = FullyNNModel(FullyNNConfig(**SIZES, **names))
    mtpp.fit_time_scale(torch.from_numpy(events.intervals()))
    arguments = {"steps": 2, "warmup_steps": 1, "batch_size": 3, "eval_every": 1, "num_threads": 1, "progress": False}

    def fit(model: Any, name: str, metric: str, *stores: Any) -> None:
        Trainer(model, TrainingArguments(out=str(folder / name), metric=metric, **arguments), *stores).train()

    fit(mtpp, "process", "loss", *(make_crops(splits[name], length=8) for name in ("train", "validation")))
    distiller = EHDDistillerModel.from_mtpp(mtpp, history=7, future=4, hidden_size=8, attention_size=8, num_heads=2)
    windows = {name: make_windows(split, future=4, history=7) for name, split in splits.items()}
    fit(distiller, "explainer", "size_or_all", windows["train"], windows["validation"])

    stamp = {"data": "simulated:incident", "data_digest": "0", "split": "test", "jitter_seed": None}
    scored = {**trivial_baselines(events), "runs/process": mtpp}
    for name, model in scored.items():
        seen = checkpoint_stamp(folder / "process") if model is mtpp else {"checkpoint": None, "seed": None}
        append_row(folder / "rows.jsonl", score_row(name, model, splits["test"], "4-7", **stamp, **seen))
    stamp |= checkpoint_stamp(folder / "explainer") | {"model": "explainer"}
    tasks = PaperTasks(distiller, windows["test"].sample(10), Run(conditioning="paper", stamp=stamp))
    for row in tasks.rows(["distiller", "ehed", "emhd"], ["greedy_search"]):
        append_row(folder / "rows.jsonl", row)
    export_windows(splits, folder / "windows", [(4, 7), (2, 9)], name="log", card=DATA)
    (folder / "data.yaml").write_text(json.dumps(DATA))


def explain(name: str, **options: Any) -> dict[str, Any]:
    from ehd_hf import EHDDistiller

    explanation = EHDDistiller.from_pretrained(name, **options).explain(EVENTS, future=3)
    return json.loads(json.dumps(explanation.to_dict()))


def push(folder: Path, name: str, repo_id: str, **options: Any) -> Any:
    """Push a trained model, windows or an app."""
    from ehd_hf.hub.push import push_folder

    options = {"rows": [folder / "rows.jsonl"], "card": folder / "data.yaml", **options}
    return tuple(push_folder(folder / name, repo_id, **options))


def push_into(folder: Path, name: str, repo_id: str, subfolder: str, revision: str) -> None:
    """Put the weights and the config of a model into a subfolder."""
    from ehd_hf.hub.push import upload

    names = ("config.json", "model.safetensors")
    upload({f"{subfolder}/{file}": folder / name / file for file in names}, repo_id, revision=revision)


def error_of(function: Any, *arguments: Any, token: str | None = None, hurry: bool = False, **options: Any) -> str:
    """Kind and text of the error that a function ends with; `token` "" is none at all."""
    sleep, kept = time.sleep, os.environ.get("HF_TOKEN")
    if token is not None:
        os.environ.pop("HF_TOKEN", None)
        os.environ.update({"HF_TOKEN": token} if token else {})
    if hurry:  # the client waits longer and longer between its attempts
        time.sleep = lambda seconds: None
    try:
        function(*arguments, **options)
        return "no error"
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        time.sleep = sleep
        os.environ.update({"HF_TOKEN": kept} if kept else {})


def run_script(name: str, *arguments: str) -> tuple[int, str]:
    """A script's `main` in this process: its code, and what it printed as errors."""
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    errors = io.StringIO()
    with redirect_stdout(io.StringIO()), redirect_stderr(errors):
        return module.main(list(arguments)), errors.getvalue()


def run_code(code: str) -> str:
    """What a piece of a card prints."""
    out = io.StringIO()
    with redirect_stdout(out):
        exec(code, {})
    return out.getvalue()


def plain_push(folder: Path, repo_id: str) -> None:
    """What every transformers model can: weights and config, and a card with little in it."""
    from ehd_hf import EHDDistillerModel

    EHDDistillerModel.from_pretrained(folder / "explainer").push_to_hub(repo_id)


def save_portable(folder: Path) -> list[str]:
    """Every backbone, and every distiller on each of them, small and untrained, with the code to open it."""
    import torch
    from transformers import AutoConfig, AutoModel

    from ehd_hf.hub import push as hub
    from ehd_hf.models.distiller import DistillerModel
    from ehd_hf.models.point_process import MTPPModel

    def kinds(base: Any) -> list[str]:
        subclasses = base.__subclasses__()
        names = {name for cls in subclasses for name in (cls.config_class.model_type, *kinds(cls)) if name}
        return sorted(names)

    torch.manual_seed(0)
    models = {kind: AutoModel.from_config(AutoConfig.for_model(kind, num_marks=6)) for kind in kinds(MTPPModel)}
    for kind in kinds(DistillerModel):
        distiller = type(AutoModel.from_config(AutoConfig.for_model(kind)))
        for name in kinds(MTPPModel):
            models[f"{kind}_{name}"] = distiller.from_mtpp(models[name], history=7, future=4)
    for name, model in models.items():
        (folder / name).mkdir(parents=True)
        for path, content in hub.portable_files(model).items():
            (folder / name / path).write_bytes(content)
    return [str(folder / name) for name in models]


# --- data sets


def read_dataset(name: str, pair: str, **options: Any) -> dict[str, Any]:
    """The same windows three ways: all at once, streamed, and in memory to train on; by folder or by id."""
    import datasets

    from ehd_hf import load_windows

    whole = datasets.load_dataset(name, pair, **options)
    streamed = datasets.load_dataset(name, pair, split="train", streaming=True, **options)
    store = load_windows(name, pair, **options)
    batch = store.__getitems__(range(5))
    return {
        "rows": {split: rows.num_rows for split, rows in whole.items()},
        "first": whole["train"][0],
        "streamed": next(iter(streamed)),
        "marks": whole["train"].features["history_marks"].feature.names,
        "windows": len(store),
        "times": batch["times"].tolist(),
        "labels": dict(store.sequences.id2label),
        "unit": store.sequences.time_unit,
    }


def read_events(name: str, pair: str, **options: Any) -> list[Any]:
    from ehd_hf import load_windows

    store = load_windows(name, pair, **options)
    return [len(store), store[0]["times"].tolist(), store[0]["marks"].tolist(), store.sequences.num_marks]


# --- without ehd_hf


def block_package() -> None:
    """From here on, importing ehd_hf fails as if it were not installed."""

    class Absent:
        def find_spec(self, name: str, *_: Any) -> None:
            if name.partition(".")[0] == "ehd_hf":
                raise ModuleNotFoundError(f"No module named {name!r}")

    assert "ehd_hf" not in sys.modules
    if type(sys.meta_path[0]).__name__ != "Absent":
        sys.meta_path.insert(0, Absent())


def outputs_of(name: str, **options: Any) -> dict[str, Any]:
    """What a model computes on a fixed batch, number for number; opened by the Auto class."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(name, **options).eval()
    generator = torch.Generator().manual_seed(0)
    times = torch.rand(3, 11, generator=generator).cumsum(1)
    marks = torch.randint(0, 6, (3, 11), generator=generator)
    mask = torch.ones_like(marks, dtype=torch.bool)
    if not hasattr(model, "mtpp"):
        return {"log_prob": model(times, marks, mask).log_prob.tolist()}
    window = sys.modules[type(model).__module__.rpartition(".")[0] + ".window"].Window(times, marks, mask, 4)
    chosen, shown = model.distill(window)
    likelihood = model.mtpp(times, marks, mask)
    return {"chosen": chosen.tolist(), "shown": shown.tolist(), "log_prob": likelihood.log_prob.tolist()}


def remote_outputs(names: list[str]) -> dict[str, Any]:
    """`outputs_of` by code that came with the models."""
    block_package()
    found = {name: outputs_of(name, trust_remote_code=True) for name in names}
    assert not [name for name in sys.modules if name.partition(".")[0] == "ehd_hf"]
    return found


def explain_after_remote_code(name: str) -> tuple[str, dict[str, Any]]:
    """Remote code first, then the package in the same process: its own classes take over."""
    block_package()
    outputs_of(name, trust_remote_code=True)
    sys.meta_path.pop(0)
    answer = explain(name)
    from ehd_hf import EHDDistiller

    return type(EHDDistiller.from_pretrained(name).model).__module__, answer


def remote_pipeline(name: str) -> dict[str, Any]:
    from transformers import pipeline

    block_package()
    columns = dict(zip(("times", "marks"), zip(*EVENTS, strict=True), strict=True))
    explain = pipeline("event-history-distillation", model=name, trust_remote_code=True)
    answer = explain(columns, future=3)
    assert explain(EVENTS, future=3) == answer and explain([EVENTS, EVENTS], future=3) == [answer, answer]
    assert pipeline(model=name, trust_remote_code=True)(EVENTS, future=3) == answer
    return answer


def refused_without_trust(name: str) -> list[str]:
    from transformers import AutoModel, pipeline

    block_package()
    errors = [error_of(AutoModel.from_pretrained, name, trust_remote_code=False)]
    return [*errors, error_of(pipeline, "event-history-distillation", model=name, trust_remote_code=False)]
