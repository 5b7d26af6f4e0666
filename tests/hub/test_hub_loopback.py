"""The whole way with the real clients, against a Hub of our own: train, push, pull by id in another process, and
get the same answers; and what is said when something goes wrong on the way."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import hub_clients as clients
from loopback_hub import READER, Fault, File, LoopbackHub, Repo

EXPLAINER, PROCESS, WINDOWS = "somebody/explainer", "somebody/process", "somebody/windows"


def digests(folder):
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.fixture(scope="module")
def hub():
    with LoopbackHub() as hub:
        yield hub


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def author(hub, work):
    """The process that trains and pushes."""
    with clients.start_client(hub.environment(work / "author")) as client:
        client(clients.train, work)
        yield client


@pytest.fixture(scope="module")
def reader(hub, work):
    """Another process, with a cache of its own and a token that may only read."""
    with clients.start_client(hub.environment(work / "reader", READER)) as client:
        yield client


@pytest.fixture(scope="module")
def stranger(hub, work):
    """A process without ehd_hf and without a token."""
    with clients.start_client(hub.environment(work / "stranger", token=None)) as client:
        yield client


@pytest.fixture(scope="module")
def pushed(author, work):
    """The explainer, its point process and the windows, each in its repository; returns what was local, unchanged."""
    before = digests(work / "explainer") | digests(work / "process") | digests(work / "windows")
    author(clients.push, work, "process", PROCESS)
    author(clients.push, work, "explainer", EXPLAINER, commit_message="Two steps")
    author(clients.push, work, "windows", WINDOWS)
    assert digests(work / "explainer") | digests(work / "process") | digests(work / "windows") == before
    return before


@pytest.fixture(scope="module")
def answer(author, work):
    """The explanation that every way must give."""
    return author(clients.explain, str(work / "explainer"))


@pytest.fixture
def fault(hub):
    """Plant faults that go when the test does."""
    yield lambda *arguments, **options: hub.faults.append(Fault(*arguments, **options))
    hub.faults.clear()


# --- there and back


def test_one_commit_holds_weights_config_code_card_and_rows(hub, pushed, work):
    repo = hub.repos["model", EXPLAINER]
    files = repo.tree("main")
    code = {name for name in files if name.endswith(".py")}
    assert set(files) - code == {"README.md", "SHA256SUMS", "config.json", "model.safetensors", "results.jsonl"}
    assert {"modeling_ehd_hf.py", "ehd.py", "fullynn.py", "hf_pipeline.py"} <= code and "ranking.py" not in code
    assert [commit.message for commit in repo.commits.values()] == ["initial commit", "Two steps"]
    assert files["model.safetensors"] == (work / "explainer" / "model.safetensors").read_bytes()
    config = json.loads(files["config.json"])
    assert config["mtpp_config"]["time_unit"] == "h" and (config["history"], config["future"]) == (7, 4)
    assert config["id2label"]["0"] == "deploy"
    rows = [json.loads(line) for line in files["results.jsonl"].splitlines()]
    assert {row["task"] for row in rows} == {"mtpp", "distiller", "ehed", "emhd"}


def test_training_may_end_on_the_hub(hub, work, reader):
    flags = ["--training.out", "trained", "--point_process.training.out", "trained-process"]
    for key, value in {"steps": "2", "batch_size": "4", "warmup_steps": "1", "eval_every": "2"}.items():
        flags += [f"--training.{key}", value, f"--point_process.training.{key}", value]
    flags += ["--data.num_sequences", "{train: 9, validation: 4, test: 3}", "--push", "somebody/trained"]
    command = [sys.executable, str(Path(__file__).parents[2] / "scripts" / "train.py"), *flags]
    environment = {**os.environ, **hub.environment(work / "author"), "HF_HUB_OFFLINE": "0"}
    ended = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0 and "pushed to" in ended.stdout, ended.stderr[-2000:]
    files = hub.repos["model", "somebody/trained"].tree("main")
    assert {"README.md", "SHA256SUMS", "config.json", "model.safetensors", "results.jsonl"} <= set(files)
    assert b"trained-process" not in files["config.json"]  # no path of this machine
    assert reader(clients.explain, "somebody/trained")


@pytest.mark.parametrize(("kind", "name"), [("model", EXPLAINER), ("model", PROCESS), ("dataset", WINDOWS)])
def test_cards_read_as_their_pattern_files_do(hub, pushed, kind, name):
    card = hub.repos[kind, name].tree("main")["README.md"].decode()
    pattern = Path(__file__).parents[1] / "patterns" / f"{name.partition('/')[2]}_card.md"
    expected, got = ([unpadded(line) for line in text.splitlines()] for text in (pattern.read_text(), card))
    assert len(got) == len(expected)
    for line, form in zip(got, expected, strict=True):
        assert re.fullmatch(as_regex(form), line), f"{line!r} does not read as {form!r}"


def unpadded(line):
    """A line of a table as if its columns were as narrow as can be."""
    return re.sub("-+:?", "-", re.sub(" +", " ", line)) if line.startswith("|") else line


def as_regex(form):
    """{{n}} is a number, {{text}} some words, {{a|b}} one of these; all else stands for itself."""
    known = {"n": r"-?\d[\d,]*(\.\d+)?%?", "text": ".+"}
    parts = re.split(r"{{(.+?)}}", form)
    for index in range(1, len(parts), 2):
        either = "|".join(map(re.escape, parts[index].split("|")))
        parts[index] = f"(?:{known.get(parts[index], either)})"
    return "".join(part if index % 2 else re.escape(part) for index, part in enumerate(parts))


def test_pushing_again_sends_only_what_has_changed(hub, author, pushed, work):
    repo = hub.repos["model", EXPLAINER]
    before = dict(repo.commits)
    hub.requests.clear()
    author(clients.push, work, "explainer", EXPLAINER)
    assert repo.commits == before
    assert not [request for request in hub.requests if request.startswith("PUT") or "/commit/" in request]
    hub.requests.clear()
    author(clients.push, work, "explainer", EXPLAINER, revision="cards", dataset=WINDOWS)
    assert [request.split()[0] for request in hub.requests if "/objects/" in request] == ["POST"]  # asked, not sent
    has_changed = {branch: f"- {WINDOWS}" in repo.tree(branch)["README.md"].decode() for branch in ("main", "cards")}
    assert has_changed == {"main": False, "cards": True}


def test_another_process_explains_alike_by_id_branch_commit_and_subfolder(hub, author, reader, work, pushed, answer):
    author(clients.push_into, work, "explainer", EXPLAINER, "models/small", revision="v1")
    repo = hub.repos["model", EXPLAINER]
    assert "models/small/config.json" not in repo.tree("main")
    assert reader(clients.explain, EXPLAINER) == answer
    assert reader(clients.explain, EXPLAINER, revision="v1", subfolder="models/small") == answer
    assert reader(clients.explain, EXPLAINER, revision=list(repo.commits)[1]) == answer


def test_a_private_repository_is_for_those_who_may_see_it(hub, author, reader, stranger, work, answer):
    author(clients.push, work, "explainer", "somebody/secret", private=True)
    assert hub.repos["model", "somebody/secret"].private
    assert reader(clients.explain, "somebody/secret") == answer
    message = author(clients.error_of, clients.explain, "somebody/secret", token="", force_download=True)
    assert "wants a token that may read somebody/secret; got none. Run `hf auth login`" in message


def test_the_librarys_own_push_works_too(hub, author, reader, work, answer):
    author(clients.plain_push, work, "somebody/plain")
    assert reader(clients.explain, "somebody/plain") == answer
    assert "modeling_ehd_hf.py" not in hub.repos["model", "somebody/plain"].tree("main")


# --- data sets


def test_a_pushed_dataset_loads_whole_streamed_and_as_windows(reader, pushed, work, author):
    local = author(clients.read_dataset, str(work / "windows"), "4-7")
    assert reader(clients.read_dataset, WINDOWS, "4-7") == local
    assert local["first"] == local["streamed"] and local["rows"]["train"] == local["windows"]
    assert local["unit"] == "h" and local["labels"][0] == local["marks"][0] == "deploy"


def test_windows_of_any_pair_are_cut_from_a_datasets_sequences(hub, reader, author, pushed, work):
    local = author(clients.read_events, str(work / "windows"), "3-5", split="test")
    author(clients.push, work, "windows", "somebody/windows-unseen")
    hub.requests.clear()
    assert reader(clients.read_events, "somebody/windows-unseen", "3-5", split="test") == local
    assert not [request for request in hub.requests if "/4-7/" in request or "/2-9/" in request]


def test_a_model_trains_straight_from_a_hub_id(reader, pushed, work):
    quick = {"steps": 2, "warmup_steps": 1, "batch_size": 3, "eval_every": 1, "num_threads": 1, "progress": False}
    models = {
        "mtpp": ({"crop_length": 8}, {"model_type": "fullynn", **clients.SIZES}, "loss"),
        "distiller": ({"pair": "4-7"}, {"model_type": "ehd_distiller", "mtpp": PROCESS}, "size_or_all"),
    }
    for task, (cut, model, metric) in models.items():
        training = {"out": str(work / f"{task}_from_hub"), "metric": metric, **quick}
        config = {"task": task, "data": {"source": WINDOWS, **cut}, "model": model, "training": training}
        (work / "from_hub.json").write_text(json.dumps(config))
        code, errors = reader(clients.run_script, "train", "--config", str(work / "from_hub.json"))
        assert code == 0, errors
    assert json.loads((work / "mtpp_from_hub" / "config.json").read_text())["num_marks"] == 9
    assert reader(clients.explain, str(work / "distiller_from_hub"))["time_unit"] == "h"


def test_an_easytpp_data_set_opens_by_id(hub, reader):
    row = {"time_since_start": [0.0, 1.0, 3.0, 4.5, 6.0, 7.0], "type_event": [0, 1, 0, 2, 1, 0], "dim_process": 3}
    repo = hub.repos["dataset", "somebody/easytpp"] = Repo()
    files = {name: File(json.dumps([row] * 2).encode(), is_large=False) for name in ("train.json", "dev.json")}
    repo.commit("main", "by hand", files)
    found = reader(clients.read_events, "somebody/easytpp", "2-3", split="validation")
    assert found == [2, [1.0, 3.0, 4.5, 6.0, 7.0], [1, 0, 2, 1, 0], 3]


# --- without ehd_hf


def test_without_package_and_trust_the_error_is_the_librarys_own(stranger, pushed):
    for message in stranger(clients.refused_without_trust, EXPLAINER):
        assert message.startswith("ValueError") and "`trust_remote_code=True`" in message


def test_without_the_package_the_pipeline_gives_the_same_explanation(stranger, pushed, answer):
    remote = stranger(clients.remote_pipeline, EXPLAINER)
    assert remote == {key: answer[key] for key in remote} and {"distilled", "left", "future"} <= set(remote)


def test_without_the_package_outputs_of_every_model_are_the_same(author, stranger, work, pushed):
    folders = author(clients.save_portable, work / "portable")
    assert len(folders) >= 6  # two distillers on two backbones, and these alone
    places = {name: name for name in folders}
    places |= {EXPLAINER: str(work / "explainer"), PROCESS: str(work / "process")}
    local = {name: author(clients.outputs_of, place) for name, place in places.items()}
    assert stranger(clients.remote_outputs, list(places)) == local


def test_the_package_takes_over_in_a_process_that_ran_remote_code(stranger, pushed, answer):
    module, after = stranger(clients.explain_after_remote_code, EXPLAINER)
    assert module == "ehd_hf.models.ehd" and after == answer


def code_of(hub, kind, name):
    return re.findall(r"```python\n(.*?)```", hub.repos[kind, name].tree("main")["README.md"].decode(), re.DOTALL)


def test_the_lines_of_the_cards_run_as_they_stand(hub, reader, stranger, pushed):
    with_package, without = code_of(hub, "model", EXPLAINER)
    assert len(with_package.split("\n")) <= 7 and "past events" in reader(clients.run_code, with_package)
    assert "'dppl_left'" in stranger(clients.run_code, without)
    with_package, without = code_of(hub, "model", PROCESS)
    assert "tensor([[" in reader(clients.run_code, with_package)
    assert stranger(clients.run_code, without) == ""
    (code,) = code_of(hub, "dataset", WINDOWS)
    assert "'history_times'" in reader(clients.run_code, code)


# --- what may go wrong


def expect(client, *arguments, says, kind="OSError", **options):
    """A function of `clients` must end with an error that says all of this."""
    message = client(clients.error_of, *arguments, **options)
    assert message.startswith(kind), message
    for part in says:
        assert part in message, message


@pytest.mark.parametrize(
    ("token", "says"),
    [
        ("", ["a token that may write to somebody/new; got none", "`hf auth login`, or set HF_TOKEN", "401"]),
        ("hf_nonsense", ["a token that may write to somebody/new; got one it does not accept", "401"]),
        (READER, ["a token that may write to somebody/new; got one that may not", "403"]),
    ],
)
def test_without_a_token_that_may_write_nothing_is_pushed(hub, author, work, token, says):
    before = digests(work / "explainer")
    expect(author, clients.push, work, "explainer", "somebody/new", token=token, says=says)
    assert ("model", "somebody/new") not in hub.repos and digests(work / "explainer") == before


def test_a_missing_repository_or_revision_is_named_with_what_there_is(reader, pushed):
    no_repo = ["No model called 'somebody/typo'", "has no model repository somebody/typo, or a private one", "404"]
    expect(reader, clients.explain, "somebody/typo", says=no_repo)
    no_revision = ["has no revision 'v9'; it has main", "Pass one of them"]
    expect(reader, clients.explain, EXPLAINER, revision="v9", says=no_revision)
    no_data = ["there is no file or folder somebody/typo", "has no dataset repository somebody/typo"]
    expect(reader, clients.read_events, "somebody/typo", "2-3", says=no_data)
    expect(reader, clients.read_events, WINDOWS, "2-3", revision="v9", says=no_revision)
    no_folder = ["somebody/explainer/elsewhere must hold config.json and model.safetensors; it holds README.md"]
    expect(reader, clients.explain, EXPLAINER, subfolder="elsewhere", kind="ValueError", says=no_folder)


@pytest.mark.parametrize("broken", ["PUT /objects/", "POST .*/commit/main", "POST .*/preupload/"])
def test_an_upload_cut_off_leaves_nothing_and_a_second_one_succeeds(hub, author, work, fault, broken):
    name = f"somebody/cut-{broken.split('/')[-2].strip('.*')}"
    hub.objects.clear()
    fault(broken, times=99)
    before = digests(work / "explainer")
    says = ["could not be asked for", "A commit is whole or not there", "run it again", "HF_ENDPOINT"]
    expect(author, clients.push, work, "explainer", name, hurry=True, says=says)
    assert hub.repos["model", name].tree("main") == {} and digests(work / "explainer") == before
    hub.faults.clear()
    author(clients.push, work, "explainer", name)
    assert "model.safetensors" in hub.repos["model", name].tree("main")


CUT = ["could not be asked for somebody/bad-OSError", "received", "expected 58644", "Check the connection"]
OTHER_BYTES = ["model.safetensors of ", "is not the file that was saved: its digest is ", "Load it again"]


@pytest.mark.parametrize(
    ("kind", "times", "damage", "says"),
    [
        ("OSError", 99, lambda data: data[: len(data) // 2], CUT),
        ("ValueError", 1, lambda data: data[:-1] + bytes([data[-1] ^ 1]), OTHER_BYTES),
    ],
)
def test_a_bad_download_is_refused_and_a_second_one_succeeds(
    reader, author, work, fault, hub, answer, kind, times, damage, says
):
    name = f"somebody/bad-{kind}"
    author(clients.push, work, "explainer", name)
    fault("GET .*model.safetensors", times=times, damage=damage)
    expect(reader, clients.explain, name, hurry=True, kind=kind, says=says)
    hub.faults.clear()
    assert reader(clients.explain, name) == answer


def test_a_repository_of_pickled_weights_is_refused_unopened(hub, reader, author, work):
    author(clients.push, work, "explainer", "somebody/pickled")
    repo = hub.repos["model", "somebody/pickled"]
    files = {path: file for path, file in repo.at("main").files.items() if path != "model.safetensors"}
    repo.commit("main", "pickle", files | {"pytorch_model.bin": File(b"\x80\x04.", is_large=True)})
    says = [
        "somebody/pickled has only pickled weights (pytorch_model.bin); expected safetensors",
        "push what save_pre",
    ]
    hub.requests.clear()
    expect(reader, clients.explain, "somebody/pickled", kind="ValueError", says=says)
    assert not [request for request in hub.requests if "pytorch_model.bin" in request]


# --- what a push does


def test_a_dry_run_uploads_nothing_and_says_what_is_new(hub, author, work):
    arguments = [clients.push, work, "explainer", "somebody/planned"]
    kind, files, url = author(*arguments, dry_run=True)
    assert (kind, url) == ("model", None) and {state for *_, state in files} == {"new"}
    assert ("model", "somebody/planned") not in hub.repos
    assert author(*arguments, private=True, commit_message="Planned")[2].startswith("http")
    repo = hub.repos["model", "somebody/planned"]
    assert repo.private and list(repo.commits.values())[-1].message == "Planned"
    _, files, _ = author(*arguments, dataset=WINDOWS, dry_run=True)
    assert [path for path, _, state in files if state != "unchanged"] == ["README.md"]
    assert author(*arguments)[2] is None and len(repo.commits) == 2  # nothing is left to upload


def test_the_reading_of_a_model_travels_with_it(hub, author, reader, work, answer):
    shutil.copytree(work / "explainer", work / "with_reading")
    reading = json.dumps({"time": "when", "mark": "what", "sequence": None})
    (work / "with_reading" / "reading.json").write_text(reading)
    author(clients.push, work, "with_reading", "somebody/reads")
    assert reader(clients.explain, "somebody/reads") == answer
    assert [file.read_text() for file in (work / "reader").rglob("reading.json")] == [reading]


def test_what_is_not_fit_to_be_pushed_is_refused(hub, author, work, tmp_path):
    shutil.copytree(work / "explainer", tmp_path / "copied")
    (tmp_path / "rows.jsonl").write_text('{"task": "mtpp", "checkpoint": "another", "data": "x"}\n')
    asked = (clients.push, tmp_path, "copied", "somebody/unfit")
    expect(author, *asked, kind="ValueError", says=["The card needs rows of these weights"])
    (tmp_path / "copied" / "model.safetensors").write_bytes(b"0123456789")
    expect(author, *asked, kind="ValueError", says=["is not the file that"])
    assert ("model", "somebody/unfit") not in hub.repos


def test_an_app_is_pushed_as_a_space(hub, author):
    assert author(clients.push, clients.SCRIPTS, "space", "somebody/why")[0] == "space"
    pushed = hub.repos["space", "somebody/why"].tree("main")
    assert pushed == {file.name: file.read_bytes() for file in (clients.SCRIPTS / "space").glob("*.*")}
    card = yaml.safe_load(pushed["README.md"].decode().split("---")[1])
    assert (card["sdk"], card["app_file"], card["license"]) == ("gradio", "app.py", "apache-2.0")
