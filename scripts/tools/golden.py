# ruff: noqa
"""Golden answers: digests of what the package gives for fixed inputs, to be compared before and after a change.

    python golden.py write golden.json      python golden.py check golden.json [--only answers]

Works on the old and the new layout: names are looked up where they are.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

torch.set_num_threads(1)
os.environ["HF_HUB_OFFLINE"] = "1"
import ehd_hf


def get(name, *homes):
    for home in homes:
        try:
            return getattr(importlib.import_module(f"ehd_hf.{home}"), name)
        except (ImportError, AttributeError):
            continue
    raise ImportError(name)


load_events = get("load_events", "data.sequences", "events")
make_windows = get("make_windows", "data.windows", "windows")
make_crops = get("make_crops", "data.windows", "windows")
export_windows = get("export_windows", "data.export", "windows")
simulated_splits = get("simulated_splits", "data.synthetic", "synthetic")
EHDDistiller = ehd_hf.EHDDistiller
RAW = Path(os.environ.get("GOLDEN_RAW", "/tmp/golden_raw"))


def digest(*parts):
    h = hashlib.sha256()
    for part in parts:
        h.update(
            part
            if isinstance(part, bytes)
            else np.ascontiguousarray(part).tobytes()
            if isinstance(part, np.ndarray)
            else str(part).encode()
        )
    return h.hexdigest()[:16]


def sequences_for(explainer, number, seed=0):
    config, inner = explainer.model.config, explainer.mtpp.config
    rng = np.random.default_rng(seed)
    scale = float(explainer.mtpp.mean_interval)
    length = config.history + config.future + 1
    out = []
    names = [inner.id2label[m] for m in range(inner.num_marks)]
    for _ in range(number):
        gaps = rng.gamma(0.7, scale / 0.7, size=length)
        times = np.cumsum(gaps)
        marks = rng.choice(inner.num_marks, size=length, p=rng.dirichlet(np.full(inner.num_marks, 0.5)))
        out.append([(float(t), names[m]) for t, m in zip(times, marks)])
    return out


TARGETS = {
    "epsilon": {"epsilon": 0.5},
    "share": {"share": 0.7},
    "size": {"size": 3},
    "delta": {"share": 0.7, "delta": 0.1},
}


def answers():
    for name in ehd_hf.list_pretrained():
        first = EHDDistiller.from_pretrained(name)
        number = 200
        for conditioning in ("paper", "survival"):
            explainer = EHDDistiller(first.model, conditioning=conditioning)
            windows = sequences_for(explainer, number)
            settings = {
                f"{t}/{r}": {**asked, "refine": r} for t, asked in TARGETS.items() for r in ("prefix", "prune")
            }
            if conditioning == first.model.config.conditioning:
                settings["own/none"] = {"refine": "none"}
            for label, asked in settings.items():
                found = explainer.explain(windows, history=first.model.config.history, progress=False, **asked)
                values = np.array(
                    [[e.dppl_left, e.dppl_distilled, e.dppl_empty, e.dppl_left_time, e.dppl_left_mark] for e in found]
                )
                masks = np.array([e.distill_mask for e in found])
                scores = np.array([[v.score for v in e.history] for e in found])
                state = [(e.status, e.certified, e.one_minimal, e.constraint_met, e.is_most_recent) for e in found]
                curves = [e.curve for e in found]
                key = f"answers/{name}/{conditioning}/{label}"
                RAW.mkdir(exist_ok=True, parents=True)
                np.savez(RAW / (key.replace("/", "_") + ".npz"), values=values, masks=masks, scores=scores)
                yield (
                    key,
                    {
                        "values": digest(values),
                        "masks": digest(masks),
                        "scores": digest(scores),
                        "state": digest(state),
                        "curves": digest(curves),
                        "mean_size": float(masks.sum(1).mean()),
                    },
                )


def events_frame():
    splits = simulated_splits("incident")
    test = splits["test"].select(np.arange(8))
    return test


def pages():
    write_report = get("write_report", "present.report", "html_report")
    explainer = EHDDistiller.from_pretrained("incidents")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.html"
        write_report(explainer, events_frame(), out, title="golden", max_explanations=12, progress=False)
        text = out.read_text("utf-8")
        (RAW / "report.html").write_text(text)
        yield "page/report", {"digest": digest(text.encode()), "chars": len(text)}
    one = explainer.explain(ehd_hf.load_example("incidents"), future=5, history=25, intensities=True)
    (RAW / "one.html").write_text(one.to_html(title="t"))
    yield (
        "page/one",
        {"digest": digest(one.to_html(title="t").encode()), "text": digest(str(one)), "dict": digest(one.to_json())},
    )


def export():
    splits = {k: v.select(np.arange(20)) for k, v in simulated_splits("incident").items()}
    with tempfile.TemporaryDirectory() as folder:
        out = export_windows(splits, Path(folder) / "w", [(5, 25), (8, 20)], name="golden", card={"license": "mit"})
        for file in sorted(out.rglob("*")):
            if file.is_file():
                content = file.read_bytes()
                if file.suffix == ".md":
                    (RAW / "export_README.md").write_bytes(content)
                yield f"export/{file.relative_to(out)}", {"digest": digest(content)}


def cards():
    for kind in ("incidents", "stackoverflow-15-40"):
        model_card = get("model_card", "present.cards", "cards")
        model = EHDDistiller.from_pretrained(kind).model
        row = {
            "task": "distiller",
            "data": "log",
            "split": "test",
            "pair": "5-25",
            "checkpoint": "abc",
            "num_windows": 2000,
            "ds": 1.25,
            "recency_ds": 1.2,
            "size": 6.0,
            "constraint_met": 0.98,
            "is_last_k": 0.25,
        }
        mtpp = {"task": "mtpp", "data": "log", "split": "test", "pair": "5-25", "num_events": 4321, "checkpoint": None}
        rows = [
            row,
            mtpp
            | {"model": "Gamma + bigram", "nll": 2.5, "time_nll": 1.0, "mark_nll": 1.5, "ks": 0.1, "future_nll": 2.4},
            mtpp | {"model": "runs/m", "checkpoint": "def", "nll": 2.125, "ks": 0.05, "future_nll": 2.1},
        ]
        text = model_card(
            "somebody/" + kind,
            model,
            data={"license": "mit", "pretty_name": "A log", "provenance": "P.", "citation": "C."},
            training={
                "args": {
                    "steps": 12,
                    "batch_size": 7,
                    "learning_rate": 0.003,
                    "seed": 5,
                    "metric": "size_or_all",
                    "out": "x",
                },
                "steps_run": 12,
                "best": {"step": 9},
            },
            rows=rows,
        )
        (RAW / f"card_{kind}.md").write_text(text)
        yield f"card/{kind}", {"digest": digest(text.encode())}


def streamed():
    run = get("explain_to_parquet", "explain.many", "streaming")
    import pyarrow.parquet as pq

    explainer = EHDDistiller.from_pretrained("incidents")
    splits = {"train": simulated_splits("incident")["test"].select(np.arange(12))}
    with tempfile.TemporaryDirectory() as folder:
        out = export_windows(splits, Path(folder) / "w", [(5, 25)], name="golden")
        done = run(
            explainer,
            str(out / "sequences" / "train.parquet"),
            Path(folder) / "a",
            windows=True,
            share=0.7,
            progress=False,
        )
        table = pq.read_table(Path(folder) / "a")
        for name in (
            "seq_id",
            "window",
            "num_history",
            "num_future",
            "num_distilled",
            "positions",
            "dppl_left",
            "dppl_distilled",
            "dppl_empty",
            "dppl_left_time",
            "dppl_left_mark",
            "status",
            "certified",
            "one_minimal",
            "constraint_met",
            "is_most_recent",
        ):
            yield f"streamed/{name}", {"digest": digest(table.column(name).to_pylist())}


def trained():
    Trainer, Args = ehd_hf.Trainer, ehd_hf.TrainingArguments
    splits = simulated_splits("delayed")
    train, valid = splits["train"].select(np.arange(60)), splits["validation"].select(np.arange(20))
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        config = ehd_hf.FullyNNConfig(num_marks=train.num_marks, hidden_size=16, time_unit=train.time_unit)
        mtpp = ehd_hf.FullyNNModel(config)
        mtpp.fit_time_scale(torch.from_numpy(train.intervals()))
        args = dict(steps=12, batch_size=16, eval_every=6, save_every=6, seed=1, num_threads=1, progress=False)
        Trainer(
            mtpp,
            Args(out=f"{folder}/m", **args),
            make_crops(train, length=60),
            make_crops(valid, length=60).sample(50),
        ).train()
        yield "trained/mtpp", {"digest": digest(*(v.numpy() for v in mtpp.state_dict().values()))}
        for cls, metric in ((ehd_hf.EHDDistillerModel, "size_or_all"), (ehd_hf.RankingDistillerModel, "size")):
            torch.manual_seed(0)
            model = cls.from_mtpp(mtpp, history=20, future=5)
            windows = [make_windows(s, future=5, history=20) for s in (train, valid)]
            Trainer(
                model, Args(out=f"{folder}/{cls.__name__}", metric=metric, **args), windows[0], windows[1].sample(50)
            ).train()
            yield f"trained/{cls.__name__}", {"digest": digest(*(v.numpy() for v in model.state_dict().values()))}


PARTS = {f.__name__: f for f in (trained, export, cards, pages, streamed, answers)}

if __name__ == "__main__":
    mode, file = sys.argv[1], Path(sys.argv[2])
    only = sys.argv[sys.argv.index("--only") + 1].split(",") if "--only" in sys.argv else list(PARTS)
    RAW.mkdir(exist_ok=True, parents=True)
    golden = json.loads(file.read_text()) if file.exists() else {}
    bad = 0
    for part in only:
        for key, value in PARTS[part]():
            value = json.loads(json.dumps(value))
            if mode == "write":
                golden[key] = value
                file.write_text(json.dumps(golden, indent=1))
                print("wrote", key, flush=True)
            elif golden.get(key) != value:
                bad += 1
                wrong = [k for k in value if golden.get(key, {}).get(k) != value[k]]
                print("DIFFERENT", key, wrong, flush=True)
            else:
                print("same", key, flush=True)
    print("done", "bad:", bad)
    sys.exit(bool(bad))
