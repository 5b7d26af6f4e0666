"""scripts/train.py from the outside: a model that loads; bad input gives exit code 2 and leaves nothing behind."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from transformers import AutoConfig, AutoModel

from ehd_hf import EHDDistiller, Trainer, TrainingArguments
from ehd_hf.data.export import export_windows
from ehd_hf.data.synthetic import simulated_splits
from ehd_hf.models.fullynn import FullyNNModel

SCRIPT = Path(__file__).parents[1] / "scripts" / "train.py"
SIMULATED = {"process": "incident", "num_sequences": {"train": 9, "validation": 4}, "horizon": 30.0, "seed": 0}
QUICK = {"steps": 7, "warmup_steps": 2, "batch_size": 3, "learning_rate": 0.01, "eval_every": 4, "save_every": 3}
FILES = ["SHA256SUMS", "config.json", "log.jsonl", "model.safetensors", "results.jsonl", "training.json"]
TINY = {
    "task": "mtpp",
    "data": {**SIMULATED, "crop_length": 8},
    "model": {"model_type": "fullynn", "hidden_size": 6, "embedding_size": 5, "num_components": 4, "num_layers": 1},
    "training": {"out": "run", **QUICK, "num_threads": 1, "progress": False},
}


@pytest.fixture(scope="module")
def script():
    """The script as a module, so that bad input need not wait for a new interpreter each time."""
    spec = importlib.util.spec_from_file_location("train_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    return tmp_path


def run(*arguments, folder):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SCRIPT.parent.parent / "src")}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def names_in(folder):
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


def test_a_process_refuses_bad_input_and_trains_a_model_that_loads(folder):
    refused = run("--config", "tiny.yaml", "--training.step", "6", folder=folder)
    assert refused.returncode == 2 and "unknown step" in refused.stderr
    assert "Traceback" not in refused.stderr and refused.stdout == "" and not (folder / "run").exists()
    ended = run("--config", "tiny.yaml", "--training.steps", "6", "--model.hidden_size", "7", folder=folder)
    assert ended.returncode == 0, ended.stderr
    assert "best at step" in ended.stdout and 'EHDDistiller.from_pretrained("run")' in ended.stdout
    model = AutoModel.from_pretrained(folder / "run")
    assert isinstance(model, FullyNNModel) and model.config.hidden_size == 7
    assert model.config.num_marks == 9 and model.config.id2label[0] == "deploy" and model.config.time_unit == "h"
    assert model.mean_interval.item() != 1.0  # the statistics are those of the data
    assert json.loads((folder / "run" / "training.json").read_text())["args"]["steps"] == 6
    assert names_in(folder / "run") == FILES


EHD = {
    "task": "distiller",
    "point_process": "tiny.yaml",
    "data": {**SIMULATED, "pair": "2-5"},
    "model": {"model_type": "ehd_distiller", "hidden_size": 8, "attention_size": 8, "feed_forward_size": 8},
    "training": {**TINY["training"], "out": "ehd"},
}


def test_both_stages_are_trained_explained_and_resumed(script, folder, capsys, monkeypatch):
    (folder / "ehd.yaml").write_text(yaml.safe_dump(EHD))
    assert script.main(["--config", "ehd.yaml", "--point_process.training.steps", "5"]) == 0
    said = capsys.readouterr().out
    assert "mtpp in run" in said and "past events" in said and 'from_pretrained("ehd")' in said
    assert json.loads((folder / "run" / "training.json").read_text())["args"]["steps"] == 5
    assert names_in(folder / "ehd") == FILES
    assert EHDDistiller.from_pretrained(folder / "ehd").model.config.mtpp_config.hidden_size == 6
    assert "run" not in (folder / "ehd" / "config.json").read_text()  # no path of this machine
    # Again: the point process is there already. Killed at any time, --resume goes on and ends with the same bytes.
    for out, fails_in in (("killed-early", "mtpp"), ("killed-late", "distiller")):
        flags = ["--config", "ehd.yaml", "--training.out", out, "--point_process.training.out", f"{out}-mtpp"]
        flags += ["--point_process.training.steps", "5"]
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "evaluate", fails_when(script, fails_in))
            with pytest.raises(KeyboardInterrupt):
                script.main(flags)
        assert script.main([*flags, "--resume"]) == 0
        assert (folder / out / "model.safetensors").read_bytes() == (folder / "ehd/model.safetensors").read_bytes()


def fails_when(script, task):
    """An evaluation that is interrupted while a model of this task is trained."""
    evaluate = Trainer.evaluate

    def fails(trainer):
        if hasattr(trainer.model, "mtpp") == (task == "distiller"):
            raise KeyboardInterrupt
        return evaluate(trainer)

    return fails


@pytest.mark.parametrize("streaming", ["false", "true"])
def test_a_distiller_trains_on_windows_that_datasets_hosts(script, folder, streaming):
    (folder / "ehd.yaml").write_text(yaml.safe_dump(EHD))
    splits = simulated_splits(**{**SIMULATED, "num_sequences": {"train": 9, "validation": 4, "test": 3}})
    export_windows(splits, folder / "windows", [(2, 5)], name="toy")
    flags = ["--config", "ehd.yaml", "--data.windows", "windows", "--data.streaming", streaming]
    assert script.main([*flags, "--training.out", "hosted"]) == 0
    assert script.main(["--config", "ehd.yaml"]) == 0
    hosted, cut = ((folder / out / "model.safetensors").read_bytes() for out in ("hosted", "ehd"))
    assert (hosted == cut) == (streaming == "false")  # the same batches; a stream is shuffled within a buffer


def test_a_config_may_say_only_what_differs_from_its_base(script, folder):
    (folder / "small.yaml").write_text("base: tiny.yaml\ntraining: {steps: 3, out: other}\n")
    config, arguments = script.read_config(["--config", "small.yaml", "--training.seed", "5", "--resume"])
    assert arguments.resume and config["training"] == {**TINY["training"], "steps": 3, "out": "other", "seed": 5}
    assert config["data"] == TINY["data"]


@pytest.mark.parametrize("path", sorted((SCRIPT.parent / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_preset_holds_known_keys_only(script, path):
    config, _ = script.read_config(["--config", str(path)])
    args = TrainingArguments.from_dict(config["training"])
    assert args.out.startswith("runs/") and args.warmup_steps < args.steps
    model = {key: value for key, value in config["model"].items() if key != "mtpp"}
    AutoConfig.for_model(**model, **({"num_marks": 3} if config["task"] == "mtpp" else {}))


def test_whole_number_times_are_jittered_when_the_config_says_so(script, folder):
    rows = [{"seq_id": i, "times": [float(t) for t in range(0, 12, 1 + i % 2)], "marks": [0] * 6} for i in (1, 3)]
    for split in ("train", "validation"):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "events").mkdir(exist_ok=True)
        (folder / "events" / f"{split}.jsonl").write_text(lines)
    plain = {"source": "events", "crop_length": 8}
    whole = script.load_splits(plain)["train"].times
    moved = script.load_splits({**plain, "jitter_seed": 0})["train"].times
    assert (whole == whole.round()).all() and not (moved == moved.round()).all()
    assert (abs(moved - whole) <= 1).all()


def without(section, name=None):
    if name is None:
        return {key: values for key, values in TINY.items() if key != section}
    return {**TINY, section: {key: value for key, value in TINY[section].items() if key != name}}


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--training.stepz", "5"], "unknown stepz"),
        (["--modell.hidden_size", "4"], "section.*modell"),
        (["--training.steps"], "training.steps"),
        (["--task.x", "5"], "task"),
        (["--config", "missing.yaml"], "missing.yaml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_bad_command_line_is_refused_and_writes_nothing(script, folder, capsys, arguments, said):
    before = names_in(folder)
    config = [] if "--config" in arguments else ["--config", "tiny.yaml"]
    assert script.main([*config, *arguments]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ")
    assert re.search(said, message, re.DOTALL), message
    assert names_in(folder) == before


@pytest.mark.parametrize(
    "text, said",
    [
        ("", "empty.yaml|section"),
        ("task: [mtpp\n", "YAML|yaml"),
        (yaml.safe_dump(without("training")), "training"),
        (yaml.safe_dump({**TINY, "task": "mptp"}), "mtpp.*distiller.*mptp"),
        (yaml.safe_dump(without("data", "process")), "process"),
        (yaml.safe_dump(without("model", "model_type")), "model_type"),
        (yaml.safe_dump({**TINY, "data": {**TINY["data"], "num_sequences": {"train": 9}}}), "validation"),
        ("base: bad.yaml\n", "base"),  # itself
        ("base: tiny.yaml\ntraning: {steps: 3}\n", "traning"),
    ],
)
def test_a_bad_config_file_is_refused_and_writes_nothing(script, folder, capsys, text, said):
    (folder / "bad.yaml").write_text(text)
    before = names_in(folder)
    assert script.main(["--config", "bad.yaml"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ") and re.search(said, message, re.DOTALL), message
    assert names_in(folder) == before
