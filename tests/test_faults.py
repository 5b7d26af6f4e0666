"""Nothing is lost: runs struck at their file operations, and killed for real, end as if nothing had happened."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import safetensors.torch
import torch
import yaml

from ehd_hf.data.synthetic import example_log
from ehd_hf.files import locked
from test_train_script import SIMULATED, TINY

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE.parent / "scripts"
STAGES = ("mtpp", "ehd", "ranking")
WAYS = ("kill", "tear", "full", "read-only", "broken")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def strike(folder, *questions):
    """What tests/faults.py found, by question."""
    command = [sys.executable, str(HERE / "faults.py"), str(folder), *questions]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return {question: json.loads(line) for question, line in zip(questions, ended.stdout.splitlines(), strict=True)}


def test_jobs_struck_here_and_there_end_as_if_nothing_had_happened(tmp_path):
    points = {"mtpp:kill:3": "killed", "rows:tear:1": "killed", "windows:read-only:2": "refused"}
    points |= {"exchange missing:kill:2": "killed"}
    struck = strike(tmp_path, *points, "file:kill:9", "file:broken:9")
    for question, outcome in points.items():
        assert struck[question][outcome] == int(question[-1])
    assert struck["mtpp:kill:3"]["operations"] > 60
    assert struck["file:kill:9"]["killed"] == struck["file:broken:9"]["refused"] == struck["file:kill:9"]["operations"]


@pytest.mark.slow
@pytest.mark.parametrize("job", [*STAGES, "rows", "windows", "exchange missing"])
def test_jobs_struck_at_every_operation_end_as_if_nothing_had_happened(tmp_path, job):
    for found in strike(tmp_path, *(f"{job}:{way}:100000" for way in WAYS)).values():
        print(found)
        assert found["struck"] == found["operations"] > 0 and found["killed"] + found["refused"] > 0


@pytest.mark.slow
def test_ehd_hf_train_struck_here_and_there_ends_as_if_nothing_had_happened(tmp_path):
    for found in strike(tmp_path, *(f"fit:{way}:8" for way in WAYS)).values():
        print(found)
        # Of some 650 operations, about 150 have just written something that can be torn.
        assert found["operations"] > (100 if found["way"] == "tear" else 400)
        # A single operation that fails may be one that a run does without; what it leaves is compared all the same.
        assert found["killed"] + found["refused"] == 8 or (found["way"] == "broken" and found["refused"] > 4)


# --- real kills


def newest(place):
    """When anything at or below `place` was last changed."""
    changes = []
    for folder, _, names in os.walk(place):  # unlike rglob it does not mind what disappears meanwhile
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            with suppress(FileNotFoundError):
                changes.append(os.stat(path).st_mtime_ns)
    return max(changes, default=0)


def seconds_of(command):
    """How many seconds a run takes that nobody disturbs."""
    began = time.monotonic()
    subprocess.run(command, env=ENVIRONMENT, check=True, capture_output=True)
    return time.monotonic() - began


def killed_again_and_again(command, place, seed, seconds, times=6, most=40):
    """Run `command()` to the end, killed so many times on the way: after as many changes to `place` as are drawn, and
    some milliseconds; the first time at any moment of the first half of its `seconds`, perhaps before it has begun."""
    print(f"seed {seed}")
    draw = random.Random(seed)
    for number in range(times):
        changes = draw.randint(1, most) if number else 0
        delay = draw.uniform(0, 0.05 if number else seconds / 2)
        before = newest(place)
        process = subprocess.Popen(command(), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        for _ in range(changes):
            while (now := newest(place)) == before and process.poll() is None:
                time.sleep(0.001)
            before = now
        time.sleep(delay)
        process.kill()
        _, message = process.communicate()
        assert process.returncode == -signal.SIGKILL, f"it must not end by itself: {message.decode()[-2000:]}"
        print(f"kill {number + 1}, {delay:.3f} s after change {changes}")
    subprocess.run(command(), env=ENVIRONMENT, check=True, capture_output=True)


def train(folder, config, out):
    """A model trained by scripts/train.py in `folder / out`."""
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    words = ["--config", folder / "config.yaml", "--training.out", folder / out]
    subprocess.run([sys.executable, SCRIPTS / "train.py", *words], env=ENVIRONMENT, check=True, capture_output=True)


def distiller_config(root, kind):
    model = {"model_type": kind, "mtpp": str(root / "mtpp"), "input_size": 4, "hidden_size": 4}
    if kind == "ehd_distiller":
        model |= {"attention_size": 4, "feed_forward_size": 4, "num_heads": 1}
    return {**TINY, "task": "distiller", "data": {**SIMULATED, "pair": "2-6"}, "model": model}


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["mtpp", "ehd_distiller", "ranking_distiller"])
def test_training_killed_at_random_moments_ends_as_if_nothing_had_happened(tmp_path, stage):
    config = TINY
    if stage != "mtpp":
        train(tmp_path, TINY, "mtpp")
        config = distiller_config(tmp_path, stage)
    training = {**config["training"], "steps": 240, "save_every": 2, "eval_every": 20}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**config, "training": training}))

    def command(out):
        begun = any(out.glob("checkpoints/step-*[0-9]")) or (out / "training.json").exists()
        words = ["--config", tmp_path / "run.yaml", "--training.out", out, *(["--resume"] if begun else [])]
        return [sys.executable, str(SCRIPTS / "train.py"), *map(str, words)]

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    killed_again_and_again(lambda: command(broken), broken, sum(map(ord, stage)), seconds_of(command(whole)))
    names = {"config.json", "log.jsonl", "model.safetensors", "training.json"}
    assert {path.name for path in broken.iterdir()} == {path.name for path in whole.iterdir()} >= names
    for name in names - {"training.json"}:  # that one names the folder
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.slow
def test_ehd_hf_train_killed_at_random_moments_ends_as_if_nothing_had_happened(tmp_path):
    example_log(60, 0).to_csv(tmp_path / "log.csv", index=False)
    whole, broken = tmp_path / "whole", tmp_path / "broken"

    def command(out):
        words = ["train", tmp_path / "log.csv", "--sequence", "service", "--history", "6", "--future", "2"]
        words += ["--out", out, "--threads", "1", "--yes"]
        program = (
            "import sys; from ehd_hf.training import recipe; recipe.SECONDS_BETWEEN_CHECKPOINTS = 0;"
            "recipe.MTPP_STEPS = 150, 150; recipe.DISTILLER_STEPS = dict.fromkeys(recipe.DISTILLERS, (100, 100));"
            "from ehd_hf.cli import app; code = app(sys.argv[1:], standalone_mode=False); sys.exit(code > 1)"
        )
        return [sys.executable, "-c", program, *map(str, words)]

    killed_again_and_again(lambda: command(broken), broken, 11, seconds_of(command(whole)))
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    config = (broken / "config.json").read_text()
    assert config.replace(str(broken), str(whole)) == (whole / "config.json").read_text()  # it names the first stage
    assert json.loads((broken / "plan.json").read_text())["finished"]
    assert not list(broken.rglob(".*.partial"))


@pytest.mark.slow
def test_a_run_on_a_disk_that_is_full_goes_on_when_there_is_room(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(TINY))
    train = f"{sys.executable} {SCRIPTS / 'train.py'} --config {tmp_path / 'run.yaml'} --training.out disk/run"
    script = f"""
        mount -t tmpfs -o size=28k none disk || exit 77
        {train}; echo code $?; ls disk/run/checkpoints
        mount -o remount,size=10m disk; {train} --resume; echo code $?; md5sum disk/run/model.safetensors
        mount -o remount,ro disk; {train}2; echo code $?
    """
    words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    ended = subprocess.run(words, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True)
    if ended.returncode in (1, 77) and "code" not in ended.stdout:
        pytest.skip("needs to be allowed to mount")
    print(ended.stdout, ended.stderr)
    codes = [line for line in ended.stdout.splitlines() if line.startswith("code")]
    assert codes == ["code 2", "code 0", "code 2"]
    assert "no space left to write" in ended.stderr and "must be in a place you may write to" in ended.stderr
    assert "Traceback" not in ended.stderr


# --- damaged files


def corrupted(cases, jobs, seed=0):
    """The counts of a campaign of damaged files; it must end without a wrong answer or a traceback."""
    command = [sys.executable, str(SCRIPTS / "tools" / "corrupt.py"), "--cases", str(cases), "--seed", str(seed)]
    ended = subprocess.run([*command, "--jobs", jobs], env=ENVIRONMENT, capture_output=True, text=True)
    print(ended.stdout)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    counts = ended.stdout.splitlines()[-1].removeprefix("all").split(", ")
    return {outcome: int(count) for count, outcome in map(str.split, counts)}


def test_some_damaged_files_are_detected_repaired_or_harmless():
    counts = corrupted(16, "model,begun,answers,export")
    assert counts["detected"] > 3 and sum(counts.values()) == 16


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_hundreds_of_damaged_files_are_detected_repaired_or_harmless(seed):
    counts = corrupted(250, "model,run,begun,answers,export", seed)
    assert counts["detected"] > 50 and sum(counts.values()) == 250


# --- two runs into one place


def test_two_trainings_into_one_folder_are_refused_and_the_first_goes_on(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(HERE / "training")
    from test_trainer import interrupted, trainer

    trainer(tmp_path / "whole").train()
    interrupted(tmp_path / "run", 25)
    with locked(tmp_path / "run"):  # as the first run does
        for resume in (False, True):
            with pytest.raises(ValueError, match="one writer at a time"):
                trainer(tmp_path / "run").train(resume=resume)
    trainer(tmp_path / "run").train(resume=True)
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == (tmp_path / "whole" / "log.jsonl").read_bytes()


# --- several nodes


def nodes_of(folder, out, resume=False):
    """Two nodes of one process each, on loopback; each is a process group of its own, as a machine would be."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    meeting = ["--nnodes", "2", "--nproc_per_node", "1", "--rdzv_backend", "c10d", "--rdzv_endpoint", endpoint]
    train = [SCRIPTS / "train.py", "--config", folder / "run.yaml", "--training.out", out, *["--resume"] * resume]
    command = [sys.executable, "-m", "torch.distributed.run", *meeting, *train]
    options = {
        "env": ENVIRONMENT,
        "start_new_session": True,
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
    }
    return [subprocess.Popen([*map(str, command)], **options) for _ in range(2)]


def end(node):
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            if int((process / "stat").read_text().rpartition(")")[2].split()[3]) == node.pid:  # of its session
                os.kill(int(process.name), signal.SIGKILL)
    node.wait()


@pytest.mark.slow
def test_a_training_on_two_nodes_that_loses_one_goes_on_to_the_bit(tmp_path):
    training = {**TINY["training"], "batch_size": 4, "steps": 120, "save_every": 10, "eval_every": 40}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({**TINY, "training": training}))
    whole, broken, alone = (tmp_path / name for name in ("whole", "broken", "alone"))
    assert [node.wait(300) for node in nodes_of(tmp_path, whole)] == [0, 0]
    nodes = nodes_of(tmp_path, broken)
    while not any(broken.glob("checkpoints/step-*[0-9]")):
        assert all(node.poll() is None for node in nodes)
        time.sleep(0.02)
    for node in reversed(nodes):  # one is lost without warning; then who is in charge ends the other
        end(node)
    assert not (broken / "training.json").exists()
    assert [node.wait(300) for node in nodes_of(tmp_path, broken, resume=True)] == [0, 0]
    for name in ("config.json", "log.jsonl", "model.safetensors"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes(), name
    # One process draws the same batches: equal up to the order of a sum.
    train(tmp_path, {**TINY, "training": training}, "alone")
    one, two = (safetensors.torch.load_file(folder / "model.safetensors") for folder in (alone, whole))
    for name, weight in one.items():
        torch.testing.assert_close(two[name], weight, rtol=1e-3, atol=1e-4)
