"""Damage one file of a model, a run, streamed answers or an export, do what people do next, and see what they hear.

    python scripts/tools/corrupt.py --cases 500 --seed 0

A file is flipped in one bit, cut short, emptied, deleted, or swapped with that of a sibling (the same thing made of
other events) or with its neighbour in the folder. Then the model is opened and asked, the run goes on, the answers are
asked for again, the export is read. Outcomes: detected (refused; the file is named, and what to do), repaired (the
file is as before), harmless (the same answers), unclear (refused without the file's name or a remedy), silent (other
answers, without a word), traceback. Ends with 1 if anything was unclear, silent or a traceback.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, NamedTuple

import pandas as pd
import torch
import typer
from transformers.utils import logging as transformers_logging

from ehd_hf import EHDDistiller
from ehd_hf.data.export import export_windows
from ehd_hf.data.reading import Read, read_events
from ehd_hf.data.sequences import events_digest
from ehd_hf.data.sources import load_source
from ehd_hf.data.synthetic import example_log
from ehd_hf.data.windows import make_crops
from ehd_hf.explain.many import Work, explain_many
from ehd_hf.files import digest, read_rows
from ehd_hf.models.lognormmix import LogNormMixConfig, LogNormMixModel
from ehd_hf.models.ranking import RankingDistillerModel
from ehd_hf.training import recipe
from ehd_hf.training.trainer import Trainer, TrainingArguments, Watch

SOUND, WRONG = ("detected", "repaired", "harmless"), ("unclear", "silent", "traceback")
REMEDY = re.compile("[Cc]opy|[Dd]elete|[Rr]emove|[Rr]epeat|[Ee]xport|[Tt]rain|[Cc]heck|[Cc]orrect|[Cc]hoose|[Ww]rite")
TOO_LONG = 30  # seconds that no question about these small folders may take


def log_of(seed: int) -> Read:
    frame = example_log(24, seed).groupby("service").head(40)
    return read_events(frame.rename(columns={"ts": "time", "type": "mark", "service": "sequence"}))


def small_process(read: Read, seed: int) -> Any:
    torch.manual_seed(seed)
    names = {"num_marks": read.events.num_marks, "id2label": dict(read.events.id2label)}
    config = LogNormMixConfig(
        **names, time_unit=read.events.time_unit, hidden_size=3 + seed, embedding_size=3, future=2, history=6
    )
    model = LogNormMixModel(config)
    model.fit_time_scale(torch.from_numpy(read.events.intervals()))
    return model


def answers_of(folder: Path, read: Read) -> str:
    """What a model says of three sequences, to the last digit."""
    explainer = EHDDistiller.from_pretrained(folder)
    frame = pd.DataFrame(
        {"time": read.events.shown_times(), "mark": [read.events.id2label[m] for m in read.events.marks]}
    )
    again = explainer.read(frame.head(30)).events
    return json.dumps(explainer.explain(again, future=2, history=6).to_row(), default=str)


# --- what is damaged: `make` a folder from a seed, and what one does `next` with it


def make_model(folder: Path, seed: int) -> None:
    read = log_of(seed)
    EHDDistiller(RankingDistillerModel.from_mtpp(small_process(read, seed), future=2, history=6)).save_pretrained(
        folder
    )
    explainer = EHDDistiller.from_pretrained(folder)
    (folder / "reading.json").write_text(json.dumps(read.reading.to_dict()))
    explainer.save_pretrained(folder)


def next_of_model(folder: Path, seed: int) -> str:
    return answers_of(folder, log_of(seed))


def make_run(folder: Path, seed: int) -> None:
    recipe.MTPP_STEPS, recipe.DISTILLER_STEPS = (10, 10), dict.fromkeys(recipe.DISTILLERS, (10, 10))
    next_of_run(folder, seed)


def next_of_run(folder: Path, seed: int) -> str:
    """Repeat `ehd-hf train`, and ask the model."""
    read = log_of(seed)
    asked = {"history": 6, "future": 2, "seed": seed, "backbone": "hawkes"}
    run, splits = recipe.prepare(folder, read, "log", threads=1, **asked)
    if not run.finished:
        recipe.carry_out(folder, splits, run, threads=1, progress=False)
    rows = read_rows(folder / recipe.RESULTS_FILE)
    return answers_of(folder, read) + json.dumps([[row.get("nll"), row.get("size")] for row in rows])


def trainer_of(folder: Path, seed: int, most: int = 10**9) -> Trainer:
    read, asked = log_of(seed), iter(range(most))

    def interrupted() -> bool:
        if next(asked, None) is None:
            raise KeyboardInterrupt
        return False

    options: dict[str, Any] = {"steps": 8, "warmup_steps": 1, "batch_size": 3, "eval_every": 3, "save_every": 2}
    arguments = TrainingArguments(out=str(folder), progress=False, num_threads=1, seed=seed, **options)
    items = make_crops(read.events, length=8)
    watch = Watch(should_end=interrupted)
    return Trainer(small_process(read, seed), arguments, items, items.sample(4, seed=0), watch)


def make_begun(folder: Path, seed: int) -> None:
    """A run that was interrupted after seven of its eight steps."""
    try:
        trainer_of(folder, seed, most=9).train()
    except KeyboardInterrupt:
        return
    raise AssertionError("it was not interrupted")


def next_of_begun(folder: Path, seed: int) -> str:
    trainer_of(folder, seed).train(resume=True)
    return digest(folder / "model.safetensors") + (folder / "log.jsonl").read_text()


def make_answers(folder: Path, seed: int) -> None:
    next_of_answers(folder, seed)
    if seed % 2:  # half of it is still to be done
        (folder / "_done.json").unlink()


def next_of_answers(folder: Path, seed: int) -> str:
    read = log_of(seed)
    explainer = EHDDistiller.from_mtpp(small_process(read, seed))
    with TemporaryDirectory() as other:
        source = Path(other) / "events.jsonl"
        rows = zip(read.events.seq_ids, read.events, strict=True)
        source.write_text(
            "".join(
                json.dumps(
                    {"seq_id": name, "times": times.tolist(), "marks": [read.events.id2label[m] for m in marks]}
                )
                + "\n"
                for name, (times, marks) in rows
            )
        )
        os.utime(source, ns=(0, 0))
        explain_many(
            explainer,
            source,
            folder,
            future=2,
            history=6,
            work=Work(rows_per_file=5, rank=0, world_size=1, progress=False),
        )
    return pd.read_parquet(folder).to_json()


def make_export(folder: Path, seed: int) -> None:
    events = log_of(seed).events
    splits = {"train": events.select(range(16)), "test": events.select(range(16, 24))}
    export_windows(splits, folder, [(2, 6)], name="small")


def next_of_export(folder: Path, seed: int) -> str:
    explainer = EHDDistiller.from_mtpp(small_process(log_of(seed), seed))
    with TemporaryDirectory() as other:
        explain_many(explainer, folder / "2-6", Path(other) / "answers.jsonl")
        answers = digest(Path(other) / "answers.jsonl")
    return answers + json.dumps({name: events_digest(events) for name, events in load_source(folder).items()})


class Job(NamedTuple):
    make: Callable[[Path, int], None]
    next: Callable[[Path, int], str]
    share: int  # of the cases


JOBS = {
    "model": Job(make_model, next_of_model, 4),
    "run": Job(make_run, next_of_run, 2),
    "begun": Job(make_begun, next_of_begun, 2),
    "answers": Job(make_answers, next_of_answers, 2),
    "export": Job(make_export, next_of_export, 2),
}


# --- damage


def damage(file: Path, folder: Path, sibling: Path, draw: random.Random) -> tuple[str, list[str]]:
    """Damage one file; how, and the names of those that are damaged."""
    content, other = file.read_bytes(), sibling / file.relative_to(folder)
    neighbours = [
        near for near in file.parent.iterdir() if near.suffix == file.suffix and near.is_file() and near != file
    ]
    ways = ["flip", "flip", "cut", "empty", "delete"]
    ways += ["sibling"] if other.is_file() and other.read_bytes() != content else []
    way = draw.choice(ways + (["neighbour"] if neighbours else []))
    if way == "flip" and content:
        place = draw.randrange(len(content))
        file.write_bytes(content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :])
    elif way == "cut":
        file.write_bytes(content[: draw.randrange(max(len(content), 1))])
    elif way == "empty":
        file.write_bytes(b"")
    elif way == "delete":
        file.unlink()
    elif way == "sibling":
        shutil.copyfile(other, file)
    elif way == "neighbour":
        near = draw.choice(sorted(neighbours))
        file.write_bytes(near.read_bytes())
        near.write_bytes(content)
        return way, [str(each.relative_to(folder)) for each in (file, near)]
    return way, [str(file.relative_to(folder))]


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


class Case(NamedTuple):
    job: str
    file: str
    way: str
    outcome: str
    told: str  # the message, or the traceback


def outcome_of(
    next_: Callable[[], str], folder: Path, names: list[str], expected: str, before: dict[str, bytes]
) -> tuple[str, str]:
    """What becomes of a folder in which the files `names` were damaged."""
    began = time.process_time()
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            answer = next_()
    except Exception as error:
        if type(error).__module__ == "builtins" and not isinstance(error, ValueError | OSError):
            return "traceback", traceback.format_exc()
        words = {word.strip(".,:;") for word in re.split("[/' ]", str(error))}
        # What a folder holds is said by its request or plan: of these the folder is named.
        places = {name for each in names for name in (Path(each).name, Path(each).parent.name) if name}
        places |= {folder.name} if names in (["_request.json"], ["plan.json"]) else set()
        is_named = bool(places & words)
        return ("detected" if is_named and REMEDY.search(str(error)) else "unclear"), str(error)
    if time.process_time() - began > TOO_LONG:
        return "unclear", f"it took {time.process_time() - began:.0f} s"
    if answer != expected:
        return "silent", "another answer"
    after = contents(folder)
    return ("repaired" if all(after.get(name) == before[name] for name in names) else "harmless"), ""


def campaign(cases: int, seed: int, jobs: list[str], work: Path) -> Iterator[Case]:
    """So many cases, spread over the jobs by their shares."""
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    chosen = [name for name in jobs for _ in range(JOBS[name].share)]
    expected: dict[str, str] = {}
    for name in jobs:
        for which in (0, 1):
            with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
                JOBS[name].make(work / f"{name}{which}", which + 1)
        shutil.copytree(work / f"{name}0", work / f"{name}-now")
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            expected[name] = JOBS[name].next(work / f"{name}-now", 1)
    for number in range(cases):
        draw = random.Random(f"{seed} {number}")
        name = chosen[number % len(chosen)]
        reference, folder = work / f"{name}0", work / f"{name}-now"
        shutil.rmtree(folder)
        shutil.copytree(reference, folder)
        file = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
        inside = str(file.relative_to(folder))
        way, names = damage(file, folder, work / f"{name}1", draw)
        next_ = partial(JOBS[name].next, folder, 1)
        found = outcome_of(next_, folder, names, expected[name], contents(reference))
        yield Case(name, inside, way, *found)


def main(
    cases: Annotated[int, typer.Option(help="how many files to damage, one at a time")] = 500,
    seed: Annotated[int, typer.Option(help="of the choice of files and damages")] = 0,
    jobs: Annotated[str, typer.Option(help="what to damage, with commas between")] = ",".join(JOBS),
    show: Annotated[bool, typer.Option(help="print every case")] = False,
) -> None:
    counts: dict[str, Counter[str]] = {name: Counter() for name in jobs.split(",")}
    with TemporaryDirectory() as work:
        for case in campaign(cases, seed, jobs.split(","), Path(work)):
            counts[case.job][case.outcome] += 1
            if show or case.outcome in WRONG:
                print(f"{case.outcome}: {case.job}, {case.file}, {case.way}: {case.told}", flush=True)
    for name, found in counts.items():
        print(f"{name:8}", ", ".join(f"{found[outcome]} {outcome}" for outcome in (*SOUND, *WRONG)))
    total = sum(counts.values(), Counter())
    print(f"{'all':8}", ", ".join(f"{total[outcome]} {outcome}" for outcome in (*SOUND, *WRONG)))
    sys.exit(any(total[outcome] for outcome in WRONG))


if __name__ == "__main__":
    typer.run(main)
