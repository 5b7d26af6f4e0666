"""Jobs that are struck at their n-th file operation, in forked children; a program, because only a fresh one may fork.

python tests/faults.py FOLDER JOB:WAY:POINTS ...      # prints how many operations there are, and how many were struck

An operation is anything that changes the disk below FOLDER: opening a file for writing, renaming, removing, making a
folder, a sync, and what safetensors writes natively. After every strike what is on the disk is checked, the job is run
again as a user would, and must end as if nothing had happened.
"""

import io
import json
import os
import shutil
import signal
import sys
from contextlib import redirect_stderr, redirect_stdout
from errno import EIO, ENOSPC, EROFS
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
sys.path.insert(0, str(ROOT / "scripts" / "paper"))

import numpy as np  # noqa: E402
import safetensors.torch  # noqa: E402
import torch  # noqa: E402
from transformers import AutoModel  # noqa: E402
from transformers.utils import logging  # noqa: E402

from ehd_hf import files  # noqa: E402
from ehd_hf.cli import app  # noqa: E402
from ehd_hf.data.export import export_windows  # noqa: E402
from ehd_hf.data.synthetic import delayed_hawkes, example_log  # noqa: E402
from ehd_hf.data.windows import make_crops, make_windows  # noqa: E402
from ehd_hf.models.ehd import EHDDistillerModel  # noqa: E402
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel  # noqa: E402
from ehd_hf.models.ranking import RankingDistillerModel  # noqa: E402
from ehd_hf.training import recipe  # noqa: E402
from ehd_hf.training.trainer import Trainer, TrainingArguments  # noqa: E402

WAYS = {
    "kill": None,  # the process is gone before the operation
    "tear": None,  # the process is gone, and what it wrote last has reached the disk in part
    "full": ENOSPC,  # from now on nothing can be made; things can be removed
    "read-only": EROFS,  # from now on nothing can be changed
    "broken": EIO,  # this operation fails, later ones do not
}


class Strikes:
    """Counts operations below `folder`, and strikes at number `at`."""

    def __init__(self, folder, way, at):
        self.folder, self.way, self.at, self.count, self.busy = str(folder), way, at, 0, False
        self.sync, self.exchange, self.serialize = os.fsync, files._exchanged, safetensors.torch.serialize_file
        os.fsync, files._exchanged, safetensors.torch.serialize_file = self.on_sync, self.on_exchange, self.on_save
        sys.addaudithook(self.on_event)

    def on_event(self, event, args):
        if event == "open":
            path, _, flags = args
            if not isinstance(path, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.meet(path)
        elif event in ("os.rename", "os.mkdir", "os.truncate", "os.chmod"):
            self.meet(args[0])
        elif event in ("os.remove", "os.rmdir"):
            self.meet(args[0] if args[1] == -1 else self.folder, removes=True)  # beside a folder's descriptor

    def on_sync(self, descriptor):
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self.meet(path, written=path if path.is_file() else None)
        self.sync(descriptor)

    def on_exchange(self, one, other):
        self.meet(one)
        return self.exchange(one, other)

    def on_save(self, tensors, path, **options):
        self.serialize(tensors, path, **options)
        self.meet(path, written=Path(path))

    def meet(self, path, *, removes=False, written=None):
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        if self.busy or not os.fspath(path).startswith(self.folder) or (self.way == "tear" and written is None):
            return
        self.count += 1
        if self.at is None or self.count < self.at:
            return
        if (number := WAYS[self.way]) is not None:
            if self.way == "read-only" or (self.way == "full" and not removes) or self.count == self.at:
                raise OSError(number, os.strerror(number), os.fspath(path))
            return
        if self.way == "tear":
            self.busy = True
            os.truncate(written, max(0, written.stat().st_size - 7))
        os.kill(os.getpid(), signal.SIGKILL)


def in_child(job, way, at):
    """Run the job in a child: ("ended", operations), ("killed", None) or ("refused", what it said)."""
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        strikes = Strikes(job.folder, way, at)
        try:
            job.run()
            answer = ["ended", strikes.count]
        except BaseException as error:
            answer = ["refused", f"{type(error).__name__}: {error}"]
        os.write(writes, json.dumps(answer).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        return "killed", None
    return tuple(json.loads(said))


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def rows_in(path):
    """Rows without what took how long."""
    rows = files.read_rows(path)
    return [{key: row[key] for key in row if "second" not in key and key != "time_ratio"} for row in rows]


def small_events():
    return delayed_hawkes().simulate(25.0, 8, np.random.default_rng(0)).sequences


def small_mtpp():
    events = small_events()
    torch.manual_seed(0)
    mtpp = FullyNNModel(FullyNNConfig(num_marks=6, id2label=dict(events.id2label), embedding_size=3, hidden_size=4))
    mtpp.fit_time_scale(torch.from_numpy(events.intervals()))
    return mtpp


def small_distiller(kind):
    sizes = {"input_size": 4, "hidden_size": 4}
    if kind is EHDDistillerModel:
        sizes |= {"attention_size": 4, "feed_forward_size": 4, "num_heads": 1}
    torch.manual_seed(0)
    return kind.from_mtpp(small_mtpp(), history=4, future=1, **sizes)


class Training:
    """Three steps of a stage; checkpoints after each, two evaluations."""

    def __init__(self, folder, stage):
        self.folder, self.stage = folder / "run", stage

    def run(self):
        events = small_events()
        if self.stage == "mtpp":
            model, items = small_mtpp(), make_crops(events, length=6)
        else:
            model = small_distiller({"ehd": EHDDistillerModel, "ranking": RankingDistillerModel}[self.stage])
            items = make_windows(events, future=1, history=4)
        args = {"steps": 3, "warmup_steps": 1, "batch_size": 3, "eval_every": 2, "save_every": 1, "num_threads": 1}
        arguments = TrainingArguments(out=str(self.folder), progress=False, learning_rate=0.05, **args)
        trainer = Trainer(model, arguments, items, items.sample(4, seed=0))
        begun = any(self.folder.glob("checkpoints/step-*[0-9]")) or (self.folder / "training.json").is_file()
        trainer.train(resume=begun)

    def check(self, reference):
        """Whatever stands under its name can be read to the end."""
        for checkpoint in self.folder.glob("checkpoints/step-*[0-9]"):
            json.loads((checkpoint / "progress.json").read_text())
            safetensors.torch.load_file(checkpoint / "state.safetensors")
        for model in (self.folder, self.folder / "best"):
            if (model / "config.json").is_file():
                AutoModel.from_pretrained(model, use_safetensors=True)
        files.read_rows(self.folder / "log.jsonl")

    def outcome(self):
        return contents(self.folder)


class Rows:
    """An evaluation of five rows."""

    def __init__(self, folder):
        self.given, self.folder = folder, folder / "rows"
        self.folder.mkdir()
        small_distiller(EHDDistillerModel).save_pretrained(folder / "model")
        export_windows({"train": small_events(), "test": small_events()}, folder / "data", [(1, 4)], name="small")

    def run(self):
        import evaluate

        words = ["--tasks", "distiller", "ehed", "--solvers", "greedy_search", "random_distillation"]
        words += ["--model", self.given / "model", "--data", self.given / "data", "--limit", "6"]
        arguments = evaluate.parse_arguments([*map(str, words), "--out", str(self.folder / "rows.jsonl")])
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            evaluate.evaluate(arguments, "")

    def check(self, reference):
        rows = rows_in(self.folder / "rows.jsonl")
        assert rows == reference["rows.jsonl"][: len(rows)], "rows that are there are the first ones"

    def outcome(self):
        return {file.name: rows_in(file) for file in self.folder.iterdir()}


class Replaced:
    """Something that is there is written anew: the old or the new is there at any moment."""

    def __init__(self, folder):
        self.folder = folder / "data"
        self.write_old()
        self.old = contents(self.folder)

    def prepare(self):
        shutil.rmtree(self.folder)
        self.write_old()

    def check(self, reference):
        found = {name: data for name, data in contents(self.folder).items() if ".partial" not in name}
        assert found in (self.old, reference), sorted(found)

    def outcome(self):
        found = contents(self.folder)
        assert found != self.old
        return found


class Windows(Replaced):
    def write_old(self):
        self.export(name="old", pairs=[(1, 3)])

    def run(self):
        self.export(name="new", pairs=[(2, 4)])

    def export(self, **options):
        with redirect_stderr(io.StringIO()):
            splits = {"train": small_events(), "test": small_events()}
            export_windows(splits, self.folder / "windows", overwrite=True, **options)


class ExchangeMissing(Windows):
    """Where two names cannot be swapped at once, the old may be found beside its place; the next run goes on."""

    def run(self):
        files._exchanged = lambda one, other: False
        super().run()

    def check(self, reference):
        if (self.folder / "windows").exists():
            for old in self.folder.glob(".*.old"):
                shutil.rmtree(old)
            return super().check(reference)
        kept = {name.replace(".windows.old/", "windows/"): data for name, data in contents(self.folder).items()}
        assert {name: data for name, data in kept.items() if ".partial" not in name} == self.old


class File(Replaced):
    def write_old(self):
        files.write_text(self.folder / "report.html", "old" * 50)

    def run(self):
        files.write_text(self.folder / "report.html", "new" * 50)


class Fit:
    """`ehd-hf train`, both stages."""

    def __init__(self, folder):
        self.log, self.folder = folder / "log.csv", folder / "model"
        example_log(12, 0).to_csv(self.log, index=False)
        recipe.VALIDATION_ITEMS["distiller"], recipe.MOST_TEST_WINDOWS = 5, 5
        recipe.SECONDS_BETWEEN_CHECKPOINTS = 0
        recipe.MTPP_STEPS, recipe.DISTILLER_STEPS["ranking"] = (20, 20), (10, 10)

    def run(self):
        words = ["train", self.log, "--sequence", "service", "--history", "6", "--future", "2", "--threads", "1"]
        said = io.StringIO()
        with redirect_stderr(said), redirect_stdout(io.StringIO()):
            code = app([*map(str, words), "--out", str(self.folder), "--yes"], standalone_mode=False)
        if code not in (0, 1):
            raise files.CannotWrite(self.folder, None, said.getvalue()) if code == 3 else ValueError(said.getvalue())

    def check(self, reference):
        if (self.folder / "config.json").is_file():
            AutoModel.from_pretrained(self.folder, use_safetensors=True)

    def outcome(self):
        assert json.loads((self.folder / "plan.json").read_text())["finished"]
        assert not list(self.folder.glob(".*"))
        names = ("model.safetensors", "config.json")
        return {name: (self.folder / name).read_bytes() for name in names} | {
            "results": rows_in(self.folder / "results.jsonl")
        }


JOBS = {
    **{stage: lambda folder, stage=stage: Training(folder, stage) for stage in ("mtpp", "ehd", "ranking")},
    "rows": Rows,
    "windows": Windows,
    "exchange missing": ExchangeMissing,
    "file": File,
    "fit": Fit,
}


def strike_all(name, way, folder, points):
    folder.mkdir(parents=True)
    job = JOBS[name](folder)
    state, operations = in_child(job, way, None)
    assert state == "ended", operations
    reference = job.outcome()
    struck = sorted({round(at) for at in np.linspace(1, operations, min(points, operations))})
    outcomes = {"killed": 0, "refused": 0, "ended": 0}
    for at in struck:
        if hasattr(job, "prepare"):
            job.prepare()
        else:
            for left in (job.folder, *job.folder.parent.glob(f".{job.folder.name}.*")):
                shutil.rmtree(left, ignore_errors=True)
            if name == "rows":
                job.folder.mkdir()
        state, said = in_child(job, way, at)
        outcomes[state] += 1
        where = f"{name}, {way} at operation {at} of {operations}: {state} {said or ''}"
        try:
            if state == "refused":
                assert said.startswith("CannotWrite: ") and "repeat the command" in said
            else:
                assert state == ("ended" if WAYS[way] else "killed")
                assert state == "killed" or job.outcome() == reference, "it said that it had ended"
            job.check(reference)
            if WAYS[way] is None and at % 3 == 0:  # and once more, on its way back
                in_child(job, "kill", 1 + at * 7 % operations)
                job.check(reference)
            again = in_child(job, None, None)
            assert again[0] == "ended", again
            assert job.outcome() == reference, "it ends as if nothing had happened"
        except Exception as error:
            raise SystemExit(f"{where}\n{type(error).__name__}: {error}") from error
    return {"job": name, "way": way, "operations": operations, "struck": len(struck), **outcomes}


if __name__ == "__main__":
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    for number, question in enumerate(sys.argv[2:]):
        job, way, points = question.split(":")
        print(json.dumps(strike_all(job, way, Path(sys.argv[1], str(number)), int(points))), flush=True)
