"""The training loop: schedule, data order, checkpoints, resuming to the bit, and many processes as one."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from datasets import load_dataset
from huggingface_hub.errors import StrictDataclassError
from safetensors.torch import load_file

from ehd_hf.data.export import export_windows
from ehd_hf.data.synthetic import simulated_splits
from ehd_hf.data.windows import StreamedWindows, make_windows
from ehd_hf.files import read_rows
from ehd_hf.models.ehd import EHDDistillerModel
from ehd_hf.training.trainer import (
    StepBatches,
    Trainer,
    TrainingArguments,
    Watch,
    interrupts_held,
    reopen,
    seconds_spent,
)
from helpers import TINY, RegressionData, RegressionOutput, regression, tiny_fullynn

ROOT = Path(__file__).parents[2]
QUIET = {"num_threads": 1, "progress": False}
FILES = ["SHA256SUMS", "config.json", "log.jsonl", "model.safetensors", "training.json"]


def arguments(out, **changes):
    values = {"steps": 40, "warmup_steps": 5, "batch_size": 6, "learning_rate": 0.05}
    values |= {"eval_every": 8, "save_every": 10, **QUIET}
    return TrainingArguments.from_dict({**values, "out": str(out), **changes})


def trainer(out, *, fails_at=None, size=50, eval_size=17, evaluate=None, watch=None, **changes):
    validation = RegressionData(eval_size, seed=1) if eval_size else None
    data = RegressionData(size, fails_at=fails_at)
    made = Trainer(regression(), arguments(out, **changes), data, validation, watch)
    if evaluate is not None:
        made.evaluate = lambda: evaluate(made.model)
    return made


def interrupted(out, at, **changes):
    with pytest.raises(KeyboardInterrupt):
        trainer(out, fails_at=at + 1, **changes).train()  # the fetch for step `at`


def contents(folder):
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    trainer(out).train()
    return out


def assert_same_run(out, whole):
    """Weights and log are equal to the bit."""
    for name in ("model.safetensors", "log.jsonl"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


# arguments


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ({"schedule": "cosine"}, {0: 0.5, 1: 1.0, 2: 1.5, 3: 2.0, 4: 2.0, 9: 1.0, 13: 1 + math.cos(0.9 * math.pi)}),
        ({"schedule": "linear"}, {0: 0.5, 4: 2.0, 9: 1.0, 13: 0.2}),
        ({"schedule": "constant"}, {0: 0.5, 4: 2.0, 13: 2.0}),
        ({"warmup_steps": 0, "steps": 3}, {0: 2.0}),
        ({"steps": 4}, {0: 0.5, 1: 1.0, 2: 1.5, 3: 2.0}),
    ],
)
def test_learning_rate_by_hand(options, rates):
    args = TrainingArguments(**{"out": "x", "steps": 14, "warmup_steps": 4, "learning_rate": 2.0, **options})
    assert {step: args.learning_rate_at(step) for step in rates} == pytest.approx(rates)


def test_unknown_argument_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match="warmup_steps.*learning_rate.*got unknown step, warmup"):
        TrainingArguments.from_dict({"out": "x", "warmup": 3, "step": 1})


BAD_VALUES = {
    **{"steps": [0, "10", 2.5, True, None], "batch_size": [0, 1.5], "eval_every": [0], "eval_batch_size": [-1]},
    **{"save_every": [0], "warmup_steps": [-1], "patience": [-1], "num_threads": [-2], "minutes": [-1, math.inf]},
    **{"seed": [-1, 0.5], "weight_decay": [-0.1, math.nan], "max_grad_norm": [-1.0], "schedule": ["cosinus"]},
    "learning_rate": [0, "1e-3", math.nan, math.inf, True],
}


@pytest.mark.parametrize("name, value", [(name, value) for name, values in BAD_VALUES.items() for value in values])
def test_a_bad_value_is_refused_by_name(name, value):
    with pytest.raises(StrictDataclassError, match=f"field '{name}'"):
        TrainingArguments.from_dict({"out": "x", name: value})


# data order


def test_an_epoch_covers_every_index_once_in_a_new_order():
    batches = list(StepBatches(20, 5, seed=3, steps=range(8)))
    epochs = [torch.cat(batches[:4]), torch.cat(batches[4:])]
    assert all(sorted(epoch.tolist()) == list(range(20)) for epoch in epochs)
    assert epochs[0].tolist() != epochs[1].tolist() != list(range(20))


def test_batches_are_full_whatever_the_size_and_all_of_a_small_set():
    assert [len(b) for b in StepBatches(23, 5, 0, range(9))] == [5] * 9
    seen = torch.cat(list(StepBatches(23, 5, 0, range(40))))
    assert set(seen.tolist()) == set(range(23))
    assert [sorted(b.tolist()) for b in StepBatches(3, 5, 0, range(2))] == [[0, 1, 2]] * 2


def test_a_step_has_the_same_batch_wherever_the_run_began():
    whole, other = (torch.stack(list(StepBatches(23, 5, seed, range(12)))) for seed in (2, 3))
    later = StepBatches(23, 5, 2, range(7, 12))
    assert len(later) == 5 and torch.equal(whole[7:], torch.stack(list(later))) and not torch.equal(whole, other)


# a run


def test_a_run_learns_and_leaves_a_loadable_model_and_its_log(tmp_path):
    out = tmp_path / "run"
    best = trainer(out, steps=60).train()
    assert sorted(file.name for file in out.iterdir()) == FILES
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [8, 16, 24, 32, 40, 48, 56, 60]
    assert best in rows and best["eval_loss"] == min(row["eval_loss"] for row in rows) < rows[0]["eval_loss"] / 2
    loaded = type(regression()).from_pretrained(out)
    assert torch.equal(loaded.linear.weight, load_file(out / "model.safetensors")["linear.weight"])
    summary = json.loads((out / "training.json").read_text())
    assert summary["best"] == best and summary["steps_run"] == 60 and summary["args"]["batch_size"] == 6


def test_evaluation_weighs_batches_by_their_items(tmp_path):
    run = trainer(tmp_path / "run", eval_batch_size=4)
    data, model = run.eval_dataset, run.model.eval()
    with torch.no_grad():
        errors, share = model.linear(data.inputs)[:, 0] - data.targets, data.weights / data.weights.sum()
    expected = {"loss": (share * errors**2).sum().item(), "mae": (share * errors.abs()).sum().item()}
    assert run.evaluate() == pytest.approx(expected, rel=1e-5)
    assert run.model.training  # back to what it was


def test_a_model_without_item_counts_is_weighed_by_rows(tmp_path):
    run = trainer(tmp_path / "run", eval_batch_size=12)
    forward = run.model.forward
    run.model.forward = lambda **batch: RegressionOutput(loss=forward(**batch).loss)
    with torch.no_grad():
        run.model.eval()
        first, second = (forward(**run.eval_dataset[part]).loss.item() for part in (slice(0, 12), slice(12, 17)))
    assert run.evaluate() == {"loss": pytest.approx((12 * first + 5 * second) / 17, rel=1e-5)}


def scripted(values, seen=None):
    """An evaluation that returns the next of `values` each time, and notes the weights it was given."""
    remaining = iter(values)

    def evaluate(model):
        if seen is not None:
            seen.append(model.linear.weight.detach().clone())
        return {"score": next(remaining)}

    return evaluate


def test_the_best_model_by_the_metric_is_kept(tmp_path):
    seen = []
    run = trainer(tmp_path / "run", evaluate=scripted([math.nan, 0.5, math.nan, 0.1, 0.2], seen), metric="score")
    best = run.train()
    assert best["step"] == 32 and best["eval_score"] == 0.1
    assert torch.equal(run.model.linear.weight, seen[3])
    assert torch.equal(load_file(tmp_path / "run" / "model.safetensors")["linear.weight"], seen[3])


def test_patience_stops_after_so_many_evaluations_without_improvement(tmp_path):
    run = trainer(tmp_path / "run", evaluate=scripted([3.0, 2.0, 2.0, 2.5, 1.0]), metric="score", patience=2)
    assert run.train()["step"] == 16
    assert json.loads((tmp_path / "run" / "training.json").read_text())["steps_run"] == 32
    assert len((tmp_path / "run" / "log.jsonl").read_text().splitlines()) == 4


def test_an_unknown_metric_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="metric must be one of loss, mae; got 'los'"):
        trainer(tmp_path / "unknown", metric="los").train()


def test_a_folder_in_use_is_left_as_it_is(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="new or empty.*Resume"):
        trainer(tmp_path).train()
    assert contents(tmp_path) == {"notes.txt": b"mine"}


# resuming


@pytest.mark.parametrize("eval_size", [17, None], ids=["validation", "training loss alone"])
@pytest.mark.parametrize("at", [0, 25, 31])
def test_an_interrupted_and_resumed_run_is_the_same_to_the_bit(tmp_path, at, eval_size):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    best = trainer(whole, eval_size=eval_size).train()
    interrupted(broken, at, eval_size=eval_size)
    steps = {0: [0], 25: [10, 20], 31: [20, 30]}[at]
    assert sorted(p.name for p in (broken / "checkpoints").iterdir()) == [f"step-{s:08d}" for s in steps]
    torch.manual_seed(99)  # whatever happened in between
    resumed = trainer(broken, eval_size=eval_size)
    resumed.model.linear.weight.data.fill_(7.0)  # the checkpoint's weights count, not these
    assert resumed.train(resume=True) == best
    assert torch.equal(resumed.model.linear.weight, load_file(whole / "model.safetensors")["linear.weight"])
    assert_same_run(broken, whole)


def test_resuming_a_run_that_has_ended_returns_its_outcome(tmp_path):
    one = trainer(tmp_path / "run")
    best, before = one.train(), contents(tmp_path)
    (tmp_path / "run" / "best").mkdir()  # killed while it cleaned up
    two = trainer(tmp_path / "run")
    assert two.train(resume=True) == best and contents(tmp_path) == before
    assert not (tmp_path / "run" / "best").exists() and not two.model.training
    assert torch.equal(one.model.linear.weight, two.model.linear.weight)
    with pytest.raises(ValueError, match="steps: 40 -> 41"):
        trainer(tmp_path / "run", steps=41).train(resume=True)
    assert contents(tmp_path) == before


def test_an_out_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "run").write_text("mine")
    for resume, message in ((False, "new or empty.*choose another folder"), (True, "checkpoints/step-.*none")):
        with pytest.raises(ValueError, match=message):
            trainer(tmp_path / "run").train(resume=resume)
    assert (tmp_path / "run").read_text() == "mine"


def test_a_run_interrupted_twice_and_moved_is_the_same_to_the_bit(tmp_path, whole):
    interrupted(tmp_path / "first", 13)
    shutil.move(tmp_path / "first", tmp_path / "moved")
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "moved", fails_at=20).train(resume=True)  # the 20th fetch from step 10 on
    trainer(tmp_path / "moved", save_every=7).train(resume=True)
    assert_same_run(tmp_path / "moved", whole)


def test_patience_counts_on_after_an_interruption(tmp_path):
    options = {"metric": "score", "patience": 3}
    interrupted(tmp_path / "run", 21, evaluate=scripted([1.0, 2.0]), **options)  # one without improvement
    run = trainer(tmp_path / "run", evaluate=scripted([2.0, 2.0]), **options)
    assert run.train(resume=True)["step"] == 8
    assert json.loads((tmp_path / "run" / "training.json").read_text())["steps_run"] == 32


@pytest.mark.parametrize("left", [None, "model.safetensors", "checkpoints/.step-00000010.partial/state.safetensors"])
def test_resuming_without_a_whole_checkpoint_is_refused(tmp_path, left):
    out = tmp_path / "run"
    if left is not None:
        (out / left).parent.mkdir(parents=True)
        (out / left).write_bytes(b"half")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="checkpoints/step-.*none"):
        trainer(out).train(resume=True)
    assert contents(tmp_path) == before and out.exists() == (left is not None)


@pytest.mark.parametrize("name", ["state.safetensors", "progress.json"])
@pytest.mark.parametrize("left", [None, 0, 30])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_serves(tmp_path, whole, name, left):
    out = tmp_path / "run"
    interrupted(out, 25)
    newest = out / "checkpoints" / "step-00000020"
    if left is None:
        (newest / name).unlink()
    else:
        (newest / name).write_bytes((newest / name).read_bytes()[:left])
    before = contents(out)
    with pytest.raises(ValueError, match="step-00000020.*cannot be read.*Delete it"):
        trainer(out).train(resume=True)
    assert contents(out) == before
    shutil.rmtree(newest)
    trainer(out).train(resume=True)
    assert_same_run(out, whole)


@pytest.mark.parametrize("left", [None, b"", b"hello\n"])
def test_a_lost_log_is_restored_from_the_checkpoint(tmp_path, whole, left):
    out = tmp_path / "run"
    interrupted(out, 25)
    (out / "log.jsonl").unlink() if left is None else (out / "log.jsonl").write_bytes(left)
    trainer(out).train(resume=True)
    assert_same_run(out, whole)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "training.json"])
def test_a_damaged_file_of_an_ended_run_is_named(tmp_path, whole, name):
    shutil.copytree(whole, tmp_path / "run")
    content = bytearray((whole / name).read_bytes())
    content[-9] ^= 1
    (tmp_path / "run" / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"{name} of .*run is not the file that was saved"):
        trainer(tmp_path / "run").train(resume=True)


def test_what_a_kill_leaves_half_written_is_not_used(tmp_path, whole):
    out, half = tmp_path / "run", tmp_path / "run" / "checkpoints" / ".step-00000030.partial"
    interrupted(out, 25)
    shutil.copytree(out / "checkpoints" / "step-00000020", half)
    (half / "state.safetensors").write_bytes(b"half")
    shutil.copytree(out / "best", out / ".best.old")  # renamed, replaced, but not yet removed
    trainer(out).train(resume=True)
    assert_same_run(out, whole)


def test_resuming_with_other_arguments_or_another_model_is_refused(tmp_path):
    interrupted(tmp_path / "run", 25)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match="batch_size: 6 -> 7.*seed: 0 -> 1"):
        trainer(tmp_path / "run", batch_size=7, seed=1).train(resume=True)
    other = Trainer(regression(width=4), arguments(tmp_path / "run"), RegressionData(50, width=4))
    with pytest.raises(ValueError, match="model|weights|linear"):
        other.train(resume=True)
    assert contents(tmp_path) == before


# by the clock


def clocked(out, seconds, **changes):
    return trainer(out, minutes=seconds / 60, **changes)


@pytest.mark.parametrize("schedule, rates", [("cosine", [0.02, 1.0, 2.0, 1.0, 0.0]), ("linear", [0.02, 1, 2, 1, 0])])
def test_the_learning_rate_follows_the_time_by_hand(schedule, rates):
    args = TrainingArguments(out="x", minutes=10, learning_rate=2.0, schedule=schedule)
    # nothing, half of the warm-up of 30 s, all of it, half of the rest, more than all of it
    assert [args.learning_rate_after(seconds) for seconds in (0, 15, 30, 315, 700)] == pytest.approx(rates)


def test_minutes_are_kept_whatever_a_step_takes(tmp_path):
    run = clocked(tmp_path / "run", 2.0)
    fetch = run.train_dataset.__getitems__
    run.train_dataset.__getitems__ = lambda indices: time.sleep(0.02) or fetch(indices)
    began = time.monotonic()
    run.train()
    assert 1.7 < time.monotonic() - began < 2.4
    summary, rows = json.loads((tmp_path / "run" / "training.json").read_text()), read_rows(tmp_path / "run/log.jsonl")
    assert 1.8 < summary["seconds"] < 2.2 and 3 <= len(rows) <= 21
    assert seconds_spent(tmp_path / "run") == pytest.approx(summary["seconds"], abs=0.1)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {*FILES, "checkpoints"}


def test_slow_evaluations_take_a_tenth_of_the_time_at_most(tmp_path):
    seen = []
    run = clocked(tmp_path / "run", 2.0, evaluate=lambda model: time.sleep(0.1) or seen.append(1) or {"loss": 1.0})
    run.train()
    assert 1 <= len(seen) <= 3  # after 0.1 s, a second, and at the end
    assert run.progress.seconds < 2.3


def test_a_clocked_run_resumes_with_what_is_left_and_goes_on_with_more(tmp_path):
    out = tmp_path / "run"
    first = clocked(out, 1.2, watch=Watch(should_end=lambda: bool(first.progress.seconds > 0.6)))
    first.train()
    reopen(out)  # as if it had been interrupted there
    assert load_file(out / "best" / "model.safetensors").keys() == load_file(out / "model.safetensors").keys()
    second = clocked(out, 1.2)
    began = time.monotonic()
    second.train(resume=True)
    assert 0.3 < time.monotonic() - began < 1.0 and second.progress.step > first.progress.step
    reopen(out)
    third = clocked(out, 1.6)
    third.train(resume=True)
    assert third.progress.step > second.progress.step and 1.4 < third.progress.seconds < 1.9
    assert third.progress.best <= second.progress.best
    with pytest.raises(ValueError, match="minutes: 0.02.* -> 0"):
        trainer(out).train(resume=True)


def test_ctrl_c_keeps_the_step_and_the_best_model(tmp_path):
    out, told = tmp_path / "run", []
    evaluate = scripted([3.0, 2.0])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupt(folder, value):
        told.append((folder.name, value))
        if value == 2.0:
            os.kill(os.getpid(), signal.SIGINT)

    try:
        with pytest.raises(KeyboardInterrupt):
            trainer(out, evaluate=evaluate, metric="score", watch=Watch(on_best=interrupt)).train()
    finally:
        signal.signal(signal.SIGINT, before)
    assert told == [("best", 3.0), ("best", 2.0)] and (out / "best" / "config.json").is_file()
    assert sorted(path.name for path in out.glob("checkpoints/*"))[-1] == "step-00000016"
    resumed = trainer(out, evaluate=scripted([4.0] * 3), metric="score")
    assert resumed.train(resume=True)["step"] == 16


def test_a_second_ctrl_c_is_raised_at_once_and_others_are_not_lost():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), interrupts_held() as asked:
            os.kill(os.getpid(), signal.SIGINT)
            assert asked == [signal.SIGINT]
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("not reached")
        reached = []
        with pytest.raises(KeyboardInterrupt), interrupts_held():
            os.kill(os.getpid(), signal.SIGINT)
            reached.append(1)
        assert reached and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_line_a_minute_says_in_words_where_a_run_stands(tmp_path, monkeypatch):
    monkeypatch.setattr("ehd_hf.training.trainer._SECONDS_BETWEEN_LINES", 0.05)
    log = tmp_path / "train.log"
    watch = Watch(title="point process", metric="validation NLL", log=log)
    clocked(tmp_path / "run", 0.5, watch=watch).train()
    trainer(tmp_path / "steps", watch=Watch(log=log)).train()
    lines = log.read_text().splitlines()
    said = r"2\d{3}-\d\d-\d\d \d\d:\d\d:\d\d  point process: step [\d,]+, 0.0 of 0.0 min left; validation NLL "
    assert len(lines) > 5 and re.match(said, lines[1])
    assert re.search(r"validation NLL \d+\.\d{3}, at best \d+\.\d{3}$", lines[5])


# windows of `datasets`


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    """Folder of exported windows (3, 6), and the store they were cut as."""
    folder = tmp_path_factory.mktemp("hosted") / "windows"
    events = simulated_splits("incident", {"train": 5}, horizon=20.0)["train"]
    export_windows({"train": events}, folder, [(3, 6)], name="toy")
    return str(folder), make_windows(events, future=3, history=6)


def windows_run(out, data, fails_at=None):
    torch.manual_seed(0)
    model = EHDDistillerModel.from_mtpp(tiny_fullynn(9), history=6, future=3, **TINY)
    run = Trainer(model, arguments(out, steps=6, eval_every=3, save_every=2), data, data)
    evaluate = run.evaluate
    if fails_at is not None:
        run.evaluate = lambda: interrupt() if run.progress.step >= fails_at else evaluate()
    return run


def interrupt():
    raise KeyboardInterrupt


def test_windows_of_datasets_train_the_same_model_as_the_store(hosted, tmp_path):
    folder, store = hosted
    rows = load_dataset(folder, "3-6")["train"]
    one, two = (windows_run(tmp_path / out, data) for out, data in (("store", store), ("rows", rows)))
    assert one.train() == two.train() and one.evaluate() == two.evaluate()
    assert_same_run(tmp_path / "rows", tmp_path / "store")
    with pytest.raises(ValueError, match="windows have the columns history_times.*got seq_id.*Load them by pair"):
        windows_run(tmp_path / "sequences", load_dataset(folder, "sequences")["train"])


@pytest.mark.slow
def test_a_streamed_split_trains_and_resumes_to_the_bit(hosted, tmp_path):
    rows = load_dataset(hosted[0], "3-6", streaming=True)["train"]
    batches = list(StreamedWindows(rows).step_batches(6, 1, range(30)))
    assert len(batches) == 30 and all(len(batch["times"]) == 6 for batch in batches)
    later = StreamedWindows(rows).step_batches(6, 1, range(17, 30))
    assert all(torch.equal(one[key], two[key]) for one, two in zip(batches[17:], later, strict=True) for key in one)
    windows_run(tmp_path / "whole", rows).train()
    with pytest.raises(KeyboardInterrupt):
        windows_run(tmp_path / "resumed", rows, fails_at=6).train()
    windows_run(tmp_path / "resumed", rows).train(resume=True)
    assert_same_run(tmp_path / "resumed", tmp_path / "whole")


def test_a_step_that_overflows_in_half_precision_is_skipped(tmp_path):
    run = trainer(tmp_path / "run", steps=12)
    run.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    before = run.model.linear.weight.clone()
    run.train()
    assert run.accelerator.scaler.get_scale() < 2.0**127 and not torch.equal(before, run.model.linear.weight)


# many processes


def train_all(runs):
    """Each of `runs` (name -> options) with a new model; the torchrun test calls this in each process."""
    for changes in runs.values():
        options = {**QUIET, **changes}
        eval_size = options.pop("eval_size")
        model = regression()
        model.dropout.p = 0.0  # each process draws its own noise
        validation = RegressionData(eval_size, seed=1) if eval_size else None
        run = Trainer(model, TrainingArguments(**options), RegressionData(50), validation)
        assert run.accelerator.num_processes == int(os.environ.get("WORLD_SIZE", 1)), "each process is alone"
        run.train()


COMMON = {"steps": 10, "warmup_steps": 3, "batch_size": 8, "learning_rate": 0.05, "eval_every": 5, "save_every": 5}
RUNS = {
    "several evaluation batches": {"eval_size": 17, "eval_batch_size": 4},
    "training loss alone": {"eval_size": 0},
    "fewer evaluation batches than processes": {"eval_size": 17, "eval_batch_size": 512},
}


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """The same runs by one process and by two, in folders one/<name> and two/<name>; how the second command ended."""
    folder = tmp_path_factory.mktemp("processes")
    one, two = (
        {name: {**COMMON, **run, "out": str(folder / kind / name)} for name, run in RUNS.items()}
        for kind in ("one", "two")
    )
    train_all(one)
    script = folder / "train_all.py"
    script.write_text("import json, sys\nfrom test_trainer import train_all\ntrain_all(json.loads(sys.argv[1]))\n")
    # As a user on a machine without a GPU would run it: nothing but torchrun says that there are two.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ACCELERATE")}
    path = os.pathsep.join(str(ROOT / part) for part in ("src", "tests", "tests/training"))
    environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command = [*torchrun, str(script), json.dumps(two)]
    try:
        said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90).stderr
    except subprocess.TimeoutExpired as error:
        said = f"hung: {error}"
    return folder, said


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_train_the_same_model_as_one(two_processes, name):
    folder, said = two_processes
    assert (folder / "two" / name / "model.safetensors").exists(), said[-3000:]
    one, two = (load_file(folder / kind / name / "model.safetensors") for kind in ("one", "two"))
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, rtol=1e-5, atol=1e-5)
    one, two = ((folder / kind / name / "log.jsonl").read_text().splitlines() for kind in ("one", "two"))
    for row, other in zip(map(json.loads, one), map(json.loads, two), strict=True):
        assert other == pytest.approx(row, rel=1e-4)
