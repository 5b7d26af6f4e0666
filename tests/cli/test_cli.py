"""`ehd-hf` as people and programs use it: what it prints, where, and how it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

import ehd_hf
from ehd_hf.cli import app
from ehd_hf.data import tables
from ehd_hf.data.synthetic import example_log
from ehd_hf.data.windows import CropStore, WindowStore
from ehd_hf.files import read_rows
from ehd_hf.training import recipe as fitting
from helpers import largest_file

COMMANDS = ["demo", "train", "explain", "evaluate", "models", "report", "app", "push"]
COMMANDS += ["data inspect", "data example", "data windows"]
COLUMNS = ["--time", "ts", "--mark", "type", "--sequence", "service"]
# Few steps of small windows: a second or two, and enough to see everything work.
TINY = ["--history", "6", "--future", "2", "--threads", "1", "--backbone", "lognormmix"]


def run(*arguments, code=0, **options):
    """What the command line answers; it must end with `code`."""
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, [str(argument) for argument in arguments], **options)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, (result.exit_code, result.stdout, result.stderr)
    return result


def words(text):
    """Text on one line, as it reads."""
    return " ".join(text.split())


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(scope="module", autouse=True)
def few_windows_are_judged():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fitting, "MOST_TEST_WINDOWS", 12)
        patch.setitem(fitting.VALIDATION_ITEMS, "distiller", 20)
        patch.setattr(fitting, "MTPP_STEPS", (20, 20))
        patch.setitem(fitting.DISTILLER_STEPS, "ranking", (10, 10))
        yield


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    """A log of 20 services with some 80 events each."""
    frame = example_log(20)
    frame = frame[frame["ts"] < "2026-03-04 12:00"]
    file = tmp_path_factory.mktemp("log") / "events.csv"
    frame.to_csv(file, index=False)
    return file


@pytest.fixture(scope="module")
def model(events):
    """The folder of a model that has seen a few steps."""
    out = events.parent / "model"
    result = CliRunner().invoke(app, ["train", str(events), *COLUMNS, *TINY, "--out", str(out), "--yes"])
    assert result.exit_code in (0, 1), (result.stderr, result.exception)
    return out


# --- help


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_by_an_example(command):
    text = run(*command.split(), "--help").stdout
    assert re.search(rf"Example:\s+ehd-hf {command}", text), text


def test_help_tells_the_exit_codes_and_the_three_commands():
    text = words(run("--help").stdout)
    for said in ("0 done", "1 done, and the answer is no", "2 bad input", "3 the system refused", "130 interrupted"):
        assert said in text
    assert "ehd-hf train events.csv --time ts --mark type --sequence user --out model/" in text
    assert run("--version").stdout.startswith("ehd-hf 0.")


def test_help_waits_for_nothing_heavy():
    heavy = ["torch", "transformers", "pandas", "pyarrow", "numpy", "matplotlib", "datasets"]
    code = (
        "import sys; from ehd_hf.cli import app\n"
        "try: app(['train', '--help'])\n"
        f"except SystemExit: print([name for name in {heavy} if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


# --- looking at data


def test_bundled_models_are_listed():
    assert "incidents" in run("models").stdout
    rows = json.loads(run("models", "--json").stdout)
    assert {"incidents", "stackoverflow-15-40"} <= {row["name"] for row in rows} and rows[0]["future"] == 5


def test_an_example_is_written_once_and_can_be_inspected(tmp_path):
    out = tmp_path / "new" / "events.csv"
    assert "ehd-hf train" in run("data", "example", out, "--sequences", 12).stdout
    assert list(pd.read_csv(out).columns) == ["ts", "type", "service"]
    text = out.read_text()
    assert "left as it is" in run("data", "example", out, code=2).stderr and out.read_text() == text
    found = json.loads(run("data", "inspect", out, "--sequence", "service", "--json").stdout)
    assert found["sequences"] == 12 and found["columns"] == {"time": "ts", "mark": "type", "sequence": "service"}
    assert found["trainable"] and found["time_unit"] == "h" and sum(found["mark_counts"].values()) == found["events"]
    shown = run("data", "inspect", out, "--sequence", "service").stdout
    assert "health check" in shown and "--time ts --mark type --sequence service --out model/" in words(shown)


# --- training


def test_a_plan_is_shown_and_nothing_is_written(events, tmp_path):
    shown = words(run("train", events, *COLUMNS, *TINY, "--out", tmp_path / "m", "--dry-run").stdout)
    assert "6 past events explain the next 2" in shown and "steps 20 of lognormmix, 10 of the distiller" in shown
    plan = json.loads(run("train", events, *COLUMNS, *TINY, "--out", tmp_path / "m", "--dry-run", "--json").stdout)
    assert plan["plan"]["stages"]["distiller"]["training"]["steps"] == 10
    assert plan["seconds"] > 0 and plan["reading"]["time_unit"] == "h"
    nobody_to_ask = run("train", events, *COLUMNS, *TINY, "--out", tmp_path / "m", code=2)
    assert "--yes" in nobody_to_ask.stderr and tree(tmp_path) == []


def test_of_a_large_file_whole_sequences_are_inspected_and_planned(events, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "LARGE_TEXT", 0)
    monkeypatch.setattr(tables, "_FEWEST_SEQUENCES", 3)
    half = ["--max-events", len(events.read_text().splitlines()) // 2]
    found = json.loads(run("data", "inspect", events, "--sequence", "service", *half, "--json").stdout)
    assert found["events"] <= half[1] and 3 <= found["sequences"] < 20 and "whole sequences" in found["notes"][0]
    shown = words(run("train", events, *COLUMNS, *TINY, *half, "--out", tmp_path / "m", "--dry-run").stdout)
    assert f"{found['events']:,} in {found['sequences']} sequences" in shown and "hash of their names" in shown
    refused = run("data", "inspect", events, "--sequence", "service", "--max-events", 10, code=2).stderr
    assert "fewer than 3 would be left" in words(refused) and "(--max-events)" in refused


def test_a_model_is_trained_judged_and_put_in_place(events, model):
    assert {"config.json", "model.safetensors", "plan.json", "results.jsonl", "training"} <= {
        path.name for path in model.iterdir()
    }
    run_record = json.loads((model / "plan.json").read_text())
    assert run_record["finished"] and run_record["reading"]["sequence"] == "service"
    rows = read_rows(model / "results.jsonl")
    assert [row["model"] for row in rows if row["task"] == "mtpp"][-1] == "this model"
    config = json.loads((model / "config.json").read_text())
    assert (config["model_type"], config["share"], config["conditioning"]) == ("ranking_distiller", 0.7, "survival")
    assert (config["history"], config["future"]) == (6, 2)
    assert not list(model.rglob("*.partial"))


def test_the_same_command_again_repeats_the_verdict_only(events, model):
    before = (model / "model.safetensors").stat().st_mtime_ns
    arguments = ["train", events, *COLUMNS, *TINY, "--out", model]
    code = 0 if fitting.judge(read_rows(model / "results.jsonl")).good else 1
    assert "was trained before" in run(*arguments, code=code).stdout
    answer = json.loads(run(*arguments, "--json", code=code).stdout)
    assert answer["good"] == (code == 0) and {row["task"] for row in answer["rows"]} == {"mtpp", "explain"}
    assert (model / "model.safetensors").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "change, said",
    [
        (["--seed", "1"], "seed: 0 -> 1"),
        (["--minutes", "2"], "minutes: None -> 2.0"),
        (["--backbone", "fullynn"], "backbone: 'lognormmix' -> 'fullynn'"),
        (["--max-marks", "4"], "merges: False -> True"),
        (["--time-unit", "min"], "time_unit: 'h' -> 'min'"),
    ],
)
def test_a_folder_is_not_trained_over(events, model, change, said):
    result = run("train", events, *COLUMNS, *TINY, *change, "--out", model, "--yes", code=2)
    assert said in words(result.stderr) and "another folder" in words(result.stderr)


def test_other_events_are_not_trained_on_in_the_same_folder(events, model, tmp_path):
    text = events.read_text()
    (tmp_path / "events.csv").write_text(text[: text.rindex("\n", 0, -1) + 1])
    result = run("train", tmp_path / "events.csv", *COLUMNS, *TINY, "--out", model, "--yes", code=2)
    assert "other events" in words(result.stderr)


def test_a_plan_repeats_a_run(events, model, tmp_path):
    saved = json.loads((model / "plan.json").read_text())
    plan = tmp_path / "plan.yaml"
    plan.write_text(yaml.safe_dump({"plan": saved["plan"], "reading": saved["reading"]}))
    arguments = ["train", events, "--config", plan, "--threads", "1", "--out", tmp_path / "again", "--yes"]
    run(*arguments, code=0 if fitting.judge(read_rows(model / "results.jsonl")).good else 1)
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert "Leave out --history" in words(run(*arguments, "--history", "6", code=2).stderr)


@pytest.mark.parametrize("content", ["", "{}", "[1, 2]", "7"])
def test_a_damaged_plan_is_refused(events, tmp_path, content):
    (tmp_path / "plan.json").write_text(content)
    result = run("train", events, *COLUMNS, *TINY, "--out", tmp_path, "--yes", code=2)
    assert "not the plan of a training run" in words(result.stderr) and tree(tmp_path) == ["plan.json"]


@pytest.mark.parametrize(
    "store, at_fetch, checkpoints",
    [
        pytest.param(CropStore, 9, True, id="in the first stage"),
        pytest.param(WindowStore, 5, True, id="in the second stage"),
        pytest.param(CropStore, 9, False, id="before a later checkpoint", marks=pytest.mark.slow),
        pytest.param(WindowStore, 5, False, id="between the stages", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_training_ends_with_the_same_weights(
    events, model, tmp_path, monkeypatch, store, at_fetch, checkpoints
):
    arguments = ["train", events, *COLUMNS, *TINY, "--out", tmp_path / "m", "--yes"]
    fetch, fetches = store.__getitems__, []

    def interrupted(self, indices):
        fetches.append(1)
        # Trial steps come first: 6 of the first stage, 3 of the second; then those of the training.
        if len(fetches) == at_fetch + (6 if store is CropStore else 4):  # and the windows of the rehearsed scoring
            raise KeyboardInterrupt
        return fetch(self, indices)

    if checkpoints:
        monkeypatch.setattr(fitting, "SECONDS_BETWEEN_CHECKPOINTS", 0)
    with monkeypatch.context() as patched:
        patched.setattr(store, "__getitems__", interrupted)
        result = run(*arguments, code=130)
        assert "The same command goes on" in words(result.stderr)
    # A run can be resumed from its first moment on; what differs is whether there is anything to go on from.
    left = {path.name for path in (tmp_path / "m").rglob("checkpoints/step-*")}
    assert left and bool(left - {"step-00000000"}) == checkpoints
    assert (tmp_path / "m" / "config.json").exists()  # after the first evaluation
    assert "windows are explained" in run("explain", tmp_path / "m", events, "--all", "--share", 0.5).stdout
    code = 0 if fitting.judge(read_rows(model / "results.jsonl")).good else 1
    run(*arguments, code=code)
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def starting(*words):
    """A process that trains, in which Ctrl-C is a KeyboardInterrupt."""
    program = (
        "import sys; from ehd_hf.training import recipe; recipe.MOST_TEST_WINDOWS = 12;"
        "recipe.VALIDATION_ITEMS['distiller'] = 20; from ehd_hf.cli import app; app(sys.argv[1:])"
    )
    # Tests started in the background ignore SIGINT, and what they start inherits that unless there is a handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        streams = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
        command = [sys.executable, "-c", program, *map(str, words)]
        return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **streams)
    finally:
        signal.signal(signal.SIGINT, before)


def wait_for(process, path):
    while process.poll() is None and not path.exists():
        time.sleep(0.05)


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed > 1 else []) for seed in range(30)]
)
def test_ctrl_c_at_any_moment_leaves_a_model_that_explains(events, tmp_path, seed):
    out, generator = tmp_path / "m", np.random.default_rng(seed)
    words = ["train", events, *COLUMNS, *TINY, "--minutes", 0.25, "--out", out, "--yes"]
    with starting(*words) as going:
        wait_for(going, out / "config.json")
        with_luck = generator.uniform(0, 10)
        try:
            going.wait(with_luck)
        except subprocess.TimeoutExpired:
            going.send_signal(signal.SIGINT)
        said = " ".join(going.communicate()[1].split())
    assert going.returncode in (0, 1, 130), said
    if going.returncode == 130:
        assert "holds the best model so far" in said and "--finish" in said and "Traceback" not in said, said
    assert re.search("windows are explained", run("explain", out, events, "--all", "--share", 0.5).stdout)
    if seed == 0:  # more minutes go on from there, and the run can be finished at once
        record = json.loads((out / "plan.json").read_text())
        assert record["finished"] is (going.returncode != 130) and record["plan"]["minutes"] == 0.25
        answer = CliRunner().invoke(app, [*map(str, words), "--minutes", "0.3", "--finish", "--json"])
        assert answer.exit_code in (0, 1), answer.stderr
        assert json.loads((out / "plan.json").read_text())["finished"] is True and (out / "results.jsonl").is_file()


def test_a_finished_run_goes_on_with_more_minutes_and_keeps_them(events, tmp_path):
    out = tmp_path / "m"
    command = ["train", str(events), *COLUMNS, *TINY, "--out", str(out), "--yes", "--minutes"]
    rows = []
    for minutes in ("0.08", "0.14"):
        began = time.monotonic()
        assert CliRunner().invoke(app, [*command, minutes]).exit_code in (0, 1)
        rows.append((time.monotonic() - began, read_rows(out / "training" / "point_process" / "log.jsonl")))
    assert rows[0][0] < 9 and rows[1][0] < 9
    assert rows[1][1][: len(rows[0][1])] == rows[0][1] and rows[1][1][-1]["step"] > rows[0][1][-1]["step"]
    saved = json.loads((out / "plan.json").read_text())
    assert saved["finished"] and saved["plan"]["minutes"] == 0.14
    again = CliRunner().invoke(app, [*command, "0.1"])
    assert "was trained before" in again.stdout
    assert "learning what usually follows what" in (out / "train.log").read_text()


def test_finish_asks_a_training_that_runs_and_needs_one(events, tmp_path):
    out = tmp_path / "m"
    words = ["train", events, *COLUMNS, *TINY, "--minutes", 5, "--out", out, "--yes"]
    assert "has begun" in run(*words, "--finish", code=2).stderr
    with starting(*words) as going:
        wait_for(going, out / "config.json")
        assert "asked to finish" in run(*words, "--finish").stderr
        going.communicate(timeout=60)
    assert going.returncode in (0, 1) and json.loads((out / "plan.json").read_text())["finished"]
    assert not (out / "finish").exists() and (out / "results.jsonl").is_file()


def test_by_default_backbones_are_compared_and_the_best_is_kept(events, tmp_path):
    out = tmp_path / "m"
    command = ["train", events, *COLUMNS, *TINY[:-2], "--out", out, "--yes"]
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, [*map(str, command), "--keep-all"])
    assert result.exit_code in (0, 1), result.stderr
    assert "predicts validation events better is kept" in words(result.stdout)
    compared = json.loads((out / "plan.json").read_text())["compared"]
    best, other = sorted(compared, key=compared.get)
    assert f"{best} predicts validation events best" in words(result.stdout)
    assert json.loads((out / "config.json").read_text())["mtpp_config"]["model_type"] == best
    assert json.loads((out / "backbones" / other / "config.json").read_text())["model_type"] == other
    assert "windows" in run("explain", out / "backbones" / other, events, "--all", "--share", 0.5).stdout
    alone = CliRunner().invoke(app, [*map(str, command[:-2]), str(tmp_path / "n"), "--yes", "--json"])
    assert json.loads(alone.stdout)["compared"] == compared
    assert (tmp_path / "n" / "training" / "distiller" / "config.json").is_file()
    assert not (tmp_path / "n" / "training" / f"point_process-{other}").exists()
    assert (tmp_path / "n" / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


@pytest.mark.parametrize("distiller", ["ranking", "none"])
def test_an_ensemble_is_kept_in_one_model_and_its_answers_say_how_many_agree(events, tmp_path, distiller):
    out = tmp_path / "m"
    command = ["train", str(events), *COLUMNS, *TINY, "--distiller", distiller, "--ensemble", "2", "--out", str(out)]
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, [*command, "--yes"])
    assert result.exit_code in (0, 1), (result.stderr, result.exception)
    compared = json.loads((out / "plan.json").read_text())["compared"]
    best, other = sorted(compared, key=compared.get)
    assert {best, other} == {"lognormmix", "lognormmix-seed1"}
    mtpp = ehd_hf.EHDDistiller.from_pretrained(out).mtpp
    for name, member in zip((best, other), mtpp.members, strict=True):
        trained = load_file(out / "training" / f"point_process-{name}" / "model.safetensors")
        assert all(torch.equal(trained[key], value) for key, value in member.state_dict().items())
    asked = ["explain", out, events, "--sequence", "service-003", "--size", 2]
    answer = json.loads(CliRunner().invoke(app, [*map(str, asked), "--json"]).stdout)
    assert answer["num_models"] == 2 and {event["agreement"] for event in answer["distilled"]} <= {0, 1, 2}
    assert " of 2 " in words(CliRunner(env={"COLUMNS": "120"}).invoke(app, [*map(str, asked)]).stdout)
    again = CliRunner().invoke(app, [*command, "--yes"])
    assert "was trained before" in again.stdout and again.exit_code == result.exit_code
    assert "ensemble: 2 -> None" in words(run(*command[:-4], "--out", out, "--yes", code=2).stderr)


def test_files_of_splits_are_taken_by_every_command(events, tmp_path):
    folder, out = tmp_path / "splits", tmp_path / "m"
    folder.mkdir()
    frame = pd.read_csv(events)
    names = sorted(frame["service"].unique())
    for split, part in {"train": names[:14], "dev": names[14:17], "test": names[17:]}.items():
        frame[frame["service"].isin(part)].to_csv(folder / f"{split}.csv", index=False)
    (folder / "README.txt").write_text("not events")
    assert json.loads(run("data", "inspect", folder, "--sequence", "service", "--json").stdout)["sequences"] == 20
    assert "given: 14 / 3 / 3" in words(run("train", folder, *COLUMNS, *TINY, "--out", out, "--dry-run").stdout)
    trained = CliRunner().invoke(app, ["train", str(folder), *COLUMNS, *TINY, "--out", str(out), "--yes", "--json"])
    good = json.loads(trained.stdout)["good"]
    answer = json.loads(run("evaluate", out, folder, "--json", code=0 if good else 1).stdout)
    counted = next(row["num_events"] for row in answer["rows"] if row["task"] == "mtpp")
    assert answer["split"] == "test" and counted == frame["service"].isin(names[17:]).sum() - 3
    run("report", out, folder, "--out", tmp_path / "report.html", "--max-explanations", 2)
    assert run("explain", out, folder, "--sequence", names[18], "--size", 1, "--json").exit_code == 0
    assert len(run("explain", out, folder, "--all", "--split", "test", "--json").stdout.splitlines()) == 3
    assert len(run("explain", out, folder, "--all", "--json").stdout.splitlines()) == 20
    assert (
        "train, validation, test; got 'tset'" in run("explain", out, folder, "--all", "--split", "tset", code=2).stderr
    )


# --- explaining


def test_one_sequence_is_explained_for_people(events, model):
    result = run("explain", model, events, "--sequence", "service-003", "--future", 3, "--share", 0.5)
    assert "is explained" in result.stdout and "in sequence service-003" in words(result.stdout)
    assert re.search(r"\d of 6 past events explain", words(result.stdout))
    assert "Opening" in result.stderr and "Opening" not in result.stdout


def test_one_sequence_is_explained_for_programs(events, model):
    result = run("explain", model, events, "--sequence", "service-003", "--size", 2, "--json")
    answer = json.loads(result.stdout)
    assert answer["seq_id"] == "service-003" and len(answer["distilled"]) == 2 and answer["status"] == "explained"
    assert re.fullmatch(r"2026-03-0\dT\d\d:\d\d:\d\d\.0+", answer["future"][0]["time"])
    frame = pd.read_csv(events)
    mine = frame[frame["service"] == "service-003"]
    assert [event["mark"] for event in answer["future"]] == mine["type"].tolist()[-2:]
    refused = run("explain", model, events, "--sequence", "service-003", "--epsilon", 1e-9, "--json", code=1)
    assert json.loads(refused.stdout)["status"] == "infeasible"  # the answer may be no
    asked = ["--sequence", "service-003", "--history", 0, "--size", 1, "--json"]  # all of the history
    assert len(json.loads(run("explain", model, events, *asked).stdout)["left"]) + 1 + 2 == len(mine)


def test_every_sequence_is_explained_into_a_file_answered_or_counted(events, model, tmp_path):
    out = tmp_path / "answers.parquet"
    said = words(run("explain", model, events, "--all", "--share", 0.5, "--out", out).stdout)
    assert re.search(r"\d+ of 20 windows are explained", said) and tree(tmp_path) == [out.name]
    rows = pq.read_table(out).to_pylist()
    assert str(rows[0]["future_times"][0]).startswith("2026-03-0") and rows[0]["share"] == 0.5
    assert sorted(row["seq_id"] for row in rows) == sorted(pd.read_csv(events)["service"].unique())
    assert len(run("explain", model, events, "--all", "--json").stdout.splitlines()) == 20
    summary = json.loads(run("explain", model, events, "--all", "--json", "--out", tmp_path / "a.jsonl").stdout)
    assert sum(summary[status] for status in ("explained", "explains_nothing", "infeasible", "too_short")) == 20


OPTIONS = [{"epsilon": 0.6, "delta": 0.2, "refine": "prefix"}, {"refine": "none"}]


@pytest.mark.parametrize("options", [*OPTIONS, {"future": 4, "history": 9, "share": 0.4}])
def test_options_are_those_of_explain(tmp_path, options):
    import ehd_hf

    events = ehd_hf.load_example("incidents")
    events.to_csv(tmp_path / "log.csv", index=False)
    flags = [word for name, value in options.items() for word in (f"--{name}", value)]
    answer = json.loads(run("explain", "incidents", tmp_path / "log.csv", *flags, "--json").stdout)
    expected = json.loads(ehd_hf.EHDDistiller.from_pretrained("incidents").explain(events, **options).to_json())
    assert {**answer, "seq_id": None} == {**expected, "seq_id": None}


def test_one_sequence_is_drawn_and_listed(events, model, tmp_path):
    figure, table = tmp_path / "why.png", tmp_path / "why.csv"
    run("explain", model, events, "--sequence", "service-003", "--size", 2, "--figure", figure, "--table", table)
    assert figure.read_bytes().startswith(b"\x89PNG")
    roles = pd.read_csv(table)["role"].tolist()
    assert roles.count("distilled") == 2 and roles.count("left") == 4 and roles[-2:] == ["future", "future"]


def test_an_mtpp_alone_explains_too(events, model):
    process = model / "training" / "point_process"
    named = ["--time", "ts", "--mark", "type", "--sequence-column", "service", "--sequence", "service-003"]
    answer = json.loads(run("explain", process, events, *named, "--future", 2, "--size", 1, "--json").stdout)
    assert len(answer["distilled"]) == 1
    assert len(json.loads(run("explain", process, events, *named, "--json").stdout)["future"]) == 2  # as planned


# --- evaluating and reporting


def test_the_part_a_model_has_not_seen_is_evaluated(events, model):
    verdict = fitting.judge(read_rows(model / "results.jsonl"))
    result = run("evaluate", model, events, "--json", code=0 if verdict.good else 1)
    answer = json.loads(result.stdout)
    assert answer["split"] == "test" and answer["sentence"] == verdict.sentence and "has not seen" in result.stderr
    shown = run("evaluate", model, events, code=0 if verdict.good else 1).stdout
    assert "Gamma + bigram" in shown and words(verdict.sentence) in words(shown)


def test_a_point_process_alone_is_evaluated_too(events, model):
    named = ["--time", "ts", "--mark", "type", "--sequence-column", "service"]
    process = str(model / "training" / "point_process")
    result = CliRunner().invoke(app, ["evaluate", process, str(events), *named, "--json"])
    answer = json.loads(result.stdout)
    solvers = {row["solver"] for row in answer["rows"] if row["task"] == "explain"}
    assert solvers == {"recency", "integrated_gradient+prune"} and result.exit_code == (0 if answer["good"] else 1)


def test_another_file_is_evaluated_whole(model, tmp_path):
    frame = example_log(6, seed=3)
    frame[frame["ts"] < "2026-03-04"].to_csv(tmp_path / "other.csv", index=False)
    result = CliRunner().invoke(app, ["evaluate", str(model), str(tmp_path / "other.csv"), "--json"])
    answer = json.loads(result.stdout)
    assert answer["split"] == "all" and result.exit_code == (0 if answer["good"] else 1)
    scored = next(row for row in answer["rows"] if row["task"] == "mtpp")
    assert scored["num_events"] == (frame["ts"] < "2026-03-04").sum() - 6


def test_a_report_is_written(events, model, tmp_path):
    said = run("report", model, events, "--out", tmp_path / "report.html", "--max-explanations", 3).stdout
    assert "report.html" in said and "service-" in (tmp_path / "report.html").read_text()
    assert tree(tmp_path) == ["report.html"]
    assert "is a folder" in run("report", model, events, "--out", tmp_path, code=2).stderr


def test_the_demo_says_why_and_writes_a_page(tmp_path):
    result = run("demo", "--out", tmp_path / "demo.html")
    assert "was most likely set off by the page on-call" in words(result.stdout)
    assert "It most likely began with the deploy" in words(result.stdout)
    assert "<html" in (tmp_path / "demo.html").read_text().lower()
    answer = json.loads(run("demo", "--out", tmp_path / "demo.html", "--json").stdout)
    assert answer["page"].endswith("demo.html") and answer["event"]["mark"] == "restart"
    assert "incidents" in run("demo", "--model", "nothing", code=2).stderr


# --- bad input: what is said, and that nothing is written

LOG = "user,ts,type\n" + "".join(f"u{n % 4},{n}.5,{'ab'[n % 3 == 0]}\n" for n in range(400))
EVEN = "user,ts,type\n" + "".join(f"u{user},{n}.5,{'ab'[n % 2]}\n" for user in range(5) for n in range(20))


@pytest.mark.parametrize(
    "content, options, said",
    [
        ("user,x,y" + LOG[12:], [], "which column says when it happened and which what happened"),
        (LOG, ["--time-format", "%Y"], "must read as %Y"),
        (LOG, ["--max-marks", "1"], "at least 2"),
    ],
)
def test_bad_input_is_refused_with_code_2_and_nothing_is_written(tmp_path, content, options, said):
    """More of it in test_cli_bad_input.py."""
    file = tmp_path / "log.csv"
    file.write_text(content)
    before = tree(tmp_path)
    result = run("train", file, *options, "--out", tmp_path / "model", "--yes", code=2)
    assert result.stderr.lower().count("error:") == 1 and re.search(said, words(result.stderr)), result.stderr
    assert result.stdout == "" and tree(tmp_path) == before


@pytest.mark.parametrize(
    "content, warnings",
    [
        (LOG.replace("user", "nobody", 1), ["in time: 1 / 1 / 1 sequences", "one sequence only"]),
        (re.sub(",[ab]\n", ",a\n", LOG), ["All events are of one kind"]),
        (EVEN, ["All intervals are equal"]),
    ],
)
def test_poor_events_are_trained_on_with_a_warning(tmp_path, content, warnings):
    (tmp_path / "log.csv").write_text(content)
    command = ["train", str(tmp_path / "log.csv"), *TINY, "--out", str(tmp_path / "m"), "--yes", "--minutes", "0.01"]
    result = CliRunner(env={"COLUMNS": "120"}).invoke(app, command)
    assert result.exit_code in (0, 1), (result.stderr, result.exception)
    assert all(warning in words(result.stdout) for warning in warnings)
    assert (tmp_path / "m" / "config.json").is_file()


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--sequence", "service-003", "--all"], "got both"),
        (["--sequence", "service-003", "--out", "x.parquet"], "--out is for --all"),
        ([], "which of 20 sequences"),
        (["--sequence", "service-003x"], "no sequence 'service-003x'.*Did you mean 'service-003'"),
        (["--all", "--future", "9999"], "is long enough: a window has at least 1 \\+ 9999 events"),
        (["--sequence", "service-003", "--refine", "hard"], "none, prefix, prune"),
    ],
)
def test_a_bad_question_is_refused_with_code_2(events, model, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    result = run("explain", model, events, *arguments, code=2)
    assert re.search(said, words(result.stderr)), result.stderr
    assert result.stdout == "" and tree(tmp_path) == []


# --- when the disk is full


@pytest.mark.parametrize("suffix", ["parquet", "jsonl", "csv"])
def test_a_full_disk_leaves_the_old_answers_and_says_so(events, model, tmp_path, suffix):
    out = tmp_path / f"answers.{suffix}"
    out.write_text("precious")
    with largest_file(2000):
        result = run("explain", model, events, "--all", "--out", out, code=3)
    assert "no space left to write" in result.stderr and "repeat the command" in words(result.stderr)
    assert out.read_text() == "precious" and tree(tmp_path) == [out.name]


def test_a_full_disk_while_training_loses_nothing(events, model, tmp_path, monkeypatch):
    arguments = ["train", events, *COLUMNS, *TINY, "--out", tmp_path / "m", "--yes"]
    monkeypatch.setattr(fitting, "SECONDS_BETWEEN_CHECKPOINTS", 0)
    size = (model / "training" / "point_process" / "model.safetensors").stat().st_size
    with largest_file(4 * size):  # room for the first stage and its checkpoints, not for the second
        result = run(*arguments, code=3)
    assert "no space left to write" in result.stderr
    assert (tmp_path / "m" / "training" / "point_process" / "training.json").is_file()
    assert not list(tmp_path.rglob("*.partial"))
    code = 0 if fitting.judge(read_rows(model / "results.jsonl")).good else 1
    run(*arguments, code=code)
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_a_place_one_may_not_write_to_is_named(events, tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise PermissionError(13, "Permission denied", str(tmp_path / "m"))

    monkeypatch.setattr(fitting, "carry_out", refuse)
    result = run("train", events, *COLUMNS, *TINY, "--out", tmp_path / "m", "--yes", code=3)
    assert "Permission denied" in result.stderr and "may write" in words(result.stderr)


@pytest.mark.slow
def test_ten_million_rows_are_planned_in_bounded_time_and_memory(tmp_path):
    """Seen: 20 s of one core and 1.4 GB; with trial steps 1.9 GB."""
    generator, number, users = np.random.default_rng(0), 10_000_000, 100_000
    table = {
        "user": generator.integers(users, size=number),
        "ts": 1_767_600_000_000 + np.sort(generator.integers(10**10, size=number)),
        "type": generator.choice(np.array(["open", "read", "write", "close"]), number),
    }
    import pyarrow as pa
    import pyarrow.csv

    pa.csv.write_csv(pa.table(table), tmp_path / "log.csv")
    code = (
        "import resource, sys, time; began = time.time()\n"
        "from ehd_hf.data.inspection import inspect_events\nfrom ehd_hf.data.reading import read_events\n"
        "from ehd_hf.training.recipe import make_plan\n"
        "read = read_events(sys.argv[1], time='ts', mark='type', sequence='user')\n"
        "figures = inspect_events(read.events).figures\nplan, splits = make_plan(read.events)\n"
        "print(figures['events'], figures['sequences'], round(time.time() - began, 1), "
        "resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "log.csv")]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    print(f"10 million rows: {answer[2]} s, {answer[3]} MB")
    assert answer[:2] == [str(number), str(users)] and int(answer[3]) < 6000
