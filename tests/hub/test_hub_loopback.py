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
        client.submit(clients.train, work).result()
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
    author.submit(clients.push, work, "process", PROCESS).result()
    author.submit(clients.push, work, "explainer", EXPLAINER, commit_message="Two steps").result()
    author.submit(clients.push_windows, work, WINDOWS).result()
    assert digests(work / "explainer") | digests(work / "process") | digests(work / "windows") == before
    return before


@pytest.fixture(scope="module")
def answer(author, work):
    """The explanation that every way must give."""
    return author.submit(clients.explain, str(work / "explainer")).result()


@pytest.fixture
def fault(hub):
    """Plant faults that go when the test does."""
    yield lambda *arguments, **options: hub.faults.append(Fault(*arguments, **options))
    hub.faults.clear()


# --- there and back


def test_a_repository_holds_weights_config_code_card_and_rows_in_one_commit(hub, pushed, work):
    repo = hub.repos["model", EXPLAINER]
    files = repo.tree("main")
    code = {name for name in files if name.endswith(".py")}
    assert set(files) - code == {"README.md", "config.json", "model.safetensors", "results.jsonl"}
    assert {"modeling_ehd_hf.py", "ehd.py", "fullynn.py", "hf_pipeline.py"} <= code and "ranking.py" not in code
    assert [commit.message for commit in repo.commits.values()] == ["initial commit", "Two steps"]
    assert files["model.safetensors"] == (work / "explainer" / "model.safetensors").read_bytes()
    config = json.loads(files["config.json"])
    assert config["mtpp_config"]["time_unit"] == "h" and (config["history"], config["future"]) == (7, 4)
    assert config["id2label"]["0"] == "deploy"
    rows = [json.loads(line) for line in files["results.jsonl"].splitlines()]
    assert {row["task"] for row in rows} == {"mtpp", "distiller", "ehed", "emhd"}


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


def test_what_another_process_pulls_by_id_explains_identically(reader, pushed, answer):
    assert reader.submit(clients.explain, EXPLAINER).result() == answer


def test_pushing_the_same_again_sends_no_file_and_makes_no_commit(hub, author, pushed, work):
    before = dict(hub.repos["model", EXPLAINER].commits)
    hub.requests.clear()
    author.submit(clients.push, work, "explainer", EXPLAINER).result()
    assert hub.repos["model", EXPLAINER].commits == before
    assert not [request for request in hub.requests if request.startswith("PUT") or "/commit/" in request]


def test_a_changed_card_does_not_send_the_weights_again(hub, author, pushed, work):
    hub.requests.clear()
    author.submit(clients.push, work, "explainer", EXPLAINER, revision="cards", dataset=WINDOWS).result()
    assert [request.split()[0] for request in hub.requests if "/objects/" in request] == ["POST"]  # asked, not sent
    assert f"- {WINDOWS}" in hub.repos["model", EXPLAINER].tree("cards")["README.md"].decode()
    assert f"- {WINDOWS}" not in hub.repos["model", EXPLAINER].tree("main")["README.md"].decode()


def test_branches_commits_and_subfolders_open(hub, author, reader, work, pushed, answer):
    author.submit(clients.push, work, "explainer", EXPLAINER, revision="v1", subfolder="models/small").result()
    repo = hub.repos["model", EXPLAINER]
    assert "models/small/config.json" not in repo.tree("main")
    there = reader.submit(clients.explain, EXPLAINER, revision="v1", subfolder="models/small")
    assert there.result() == answer
    first = list(repo.commits)[1]
    assert reader.submit(clients.explain, EXPLAINER, revision=first).result() == answer


def test_a_private_repository_is_for_those_who_may_see_it(hub, author, reader, stranger, work, answer):
    author.submit(clients.push, work, "explainer", "somebody/secret", private=True).result()
    assert hub.repos["model", "somebody/secret"].private
    assert reader.submit(clients.explain, "somebody/secret").result() == answer
    message = author.submit(
        clients.error_of, clients.explain, "somebody/secret", token="", force_download=True
    ).result()
    assert "wants a token that may read somebody/secret; got none. Run `hf auth login`" in message


def test_the_librarys_own_push_works_too(hub, author, reader, work, answer):
    author.submit(clients.plain_push, work, "somebody/plain").result()
    assert reader.submit(clients.explain, "somebody/plain").result() == answer
    assert "modeling_ehd_hf.py" not in hub.repos["model", "somebody/plain"].tree("main")


# --- data sets


def test_a_pushed_dataset_loads_whole_streamed_and_as_windows_to_train_on(reader, pushed, work, author):
    local = author.submit(clients.read_dataset, str(work / "windows"), "4-7").result()
    assert reader.submit(clients.read_dataset, WINDOWS, "4-7").result() == local
    assert local["first"] == local["streamed"] and local["rows"]["train"] == local["windows"]
    assert local["unit"] == "h" and local["labels"][0] == local["marks"][0] == "deploy"


def test_windows_of_any_pair_are_cut_from_a_datasets_sequences(hub, reader, author, pushed, work):
    local = author.submit(clients.read_events, str(work / "windows"), "3-5", split="test").result()
    author.submit(clients.push_windows, work, "somebody/windows-unseen").result()
    hub.requests.clear()
    assert reader.submit(clients.read_events, "somebody/windows-unseen", "3-5", split="test").result() == local
    assert not [request for request in hub.requests if "/4-7/" in request or "/2-9/" in request]


def test_a_model_trains_straight_from_a_hub_id(reader, pushed, work):
    config = {
        "task": "mtpp",
        "data": {"source": WINDOWS, "crop_length": 8},
        "model": {"model_type": "fullynn", **clients.SIZES},
        "training": {"out": str(work / "from_hub"), "steps": 2, "warmup_steps": 1, "batch_size": 3, "eval_every": 1}
        | {"num_threads": 1, "progress": False},
    }
    (work / "from_hub.json").write_text(json.dumps(config))
    code, _, errors = reader.submit(clients.run_script, "train", "--config", str(work / "from_hub.json")).result()
    assert code == 0, errors
    assert json.loads((work / "from_hub" / "config.json").read_text())["num_marks"] == 9
    config |= {"task": "distiller", "data": {"source": WINDOWS, "pair": "4-7"}}
    config["model"] = {"model_type": "ehd_distiller", "mtpp": PROCESS, "hidden_size": 8}
    config["training"] |= {"out": str(work / "distiller_from_hub"), "metric": "size_or_all"}
    (work / "from_hub.json").write_text(json.dumps(config))
    code, _, errors = reader.submit(clients.run_script, "train", "--config", str(work / "from_hub.json")).result()
    assert code == 0, errors
    assert reader.submit(clients.explain, str(work / "distiller_from_hub")).result()["time_unit"] == "h"


def test_an_easytpp_data_set_opens_by_id(hub, reader):
    rows = [
        {"time_since_start": [0.0, 1.0, 3.0, 4.5, 6.0, 7.0 + i], "type_event": [0, 1, 0, 2, 1, 0], "dim_process": 3}
        for i in range(2)
    ]
    repo = hub.repos["dataset", "somebody/easytpp"] = Repo()
    files = {name: File(json.dumps(rows).encode(), is_large=False) for name in ("train.json", "dev.json")}
    repo.commit("main", "by hand", files)
    assert reader.submit(clients.read_events, "somebody/easytpp", "2-3", split="validation").result() == [
        2,
        [1.0, 3.0, 4.5, 6.0, 7.0],
        [1, 0, 2, 1, 0],
        3,
    ]


# --- the hf command


def hf(hub, work, *arguments):
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    command = [str(Path(sys.executable).parent / "hf"), *map(str, arguments)]
    ended = subprocess.run(
        command, env=environment | hub.environment(work / "command"), capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_hf_command_downloads_and_uploads_the_same_model(hub, reader, pushed, work, answer):
    hf(hub, work, "download", EXPLAINER, "--local-dir", work / "downloaded")
    assert reader.submit(clients.explain, str(work / "downloaded")).result() == answer
    hf(hub, work, "upload", "somebody/by-hand", work / "explainer", ".", "--commit-message", "By hand")
    assert reader.submit(clients.explain, "somebody/by-hand").result() == answer


def test_the_hf_command_downloads_and_uploads_the_same_dataset(hub, reader, pushed, work):
    local = reader.submit(clients.read_dataset, str(work / "windows"), "2-9").result()
    hf(hub, work, "download", WINDOWS, "--repo-type", "dataset", "--local-dir", work / "windows_again")
    assert reader.submit(clients.read_dataset, str(work / "windows_again"), "2-9").result() == local
    hf(hub, work, "upload", "somebody/windows-by-hand", work / "windows", ".", "--repo-type", "dataset")
    assert reader.submit(clients.read_dataset, "somebody/windows-by-hand", "2-9").result() == local


# --- without ehd_hf


def test_without_the_package_and_without_trust_the_error_is_the_librarys_own(stranger, pushed):
    for message in stranger.submit(clients.refused_without_trust, EXPLAINER).result():
        assert message.startswith("ValueError") and "`trust_remote_code=True`" in message


def test_without_the_package_outputs_are_the_same_bit_for_bit(author, stranger, pushed, work):
    remote = stranger.submit(clients.remote_outputs, [EXPLAINER, PROCESS]).result()
    assert remote[EXPLAINER] == author.submit(clients.outputs_of, str(work / "explainer")).result()
    assert remote[PROCESS] == author.submit(clients.outputs_of, str(work / "process")).result()


def test_without_the_package_the_pipeline_gives_the_same_explanation(stranger, pushed, answer):
    remote = stranger.submit(clients.remote_pipeline, EXPLAINER).result()
    assert remote == {key: answer[key] for key in remote} and {"distilled", "left", "future"} <= set(remote)


def test_every_distiller_on_every_backbone_travels(author, stranger, work, pushed):
    folders = author.submit(clients.save_portable, work / "portable").result()
    assert len(folders) >= 6  # two distillers on two backbones, and these alone
    local = {name: author.submit(clients.outputs_of, name).result() for name in folders}
    assert stranger.submit(clients.remote_outputs, folders).result() == local


def test_the_package_takes_over_in_a_process_that_ran_remote_code(stranger, pushed, answer):
    module, after = stranger.submit(clients.explain_after_remote_code, EXPLAINER).result()
    assert module == "ehd_hf.models.ehd" and after == answer


def code_of(hub, kind, name):
    return re.findall(r"```python\n(.*?)```", hub.repos[kind, name].tree("main")["README.md"].decode(), re.DOTALL)


def test_the_lines_of_the_cards_run_as_they_stand(hub, reader, stranger, pushed):
    with_package, without = code_of(hub, "model", EXPLAINER)
    assert (
        len(with_package.split("\n")) <= 7 and "past events" in reader.submit(clients.run_code, with_package).result()
    )
    assert "'dppl_left'" in stranger.submit(clients.run_code, without).result()
    with_package, without = code_of(hub, "model", PROCESS)
    assert "tensor([[" in reader.submit(clients.run_code, with_package).result()
    assert stranger.submit(clients.run_code, without).result() == ""
    (code,) = code_of(hub, "dataset", WINDOWS)
    assert "'history_times'" in reader.submit(clients.run_code, code).result()


# --- what may go wrong


def expect(client, *arguments, says, kind="OSError", **options):
    """A function of `clients` must end with an error that says all of this."""
    message = client.submit(clients.error_of, *arguments, **options).result()
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


def test_with_the_right_token_the_same_push_succeeds(hub, author, work):
    author.submit(clients.push, work, "explainer", "somebody/new").result()
    assert "model.safetensors" in hub.repos["model", "somebody/new"].tree("main")


def test_a_missing_repository_or_revision_is_named_with_what_there_is(reader, pushed):
    no_repo = ["No distiller called 'somebody/typo'", "has no model repository somebody/typo, or a private one", "404"]
    expect(reader, clients.explain, "somebody/typo", says=no_repo)
    no_revision = ["has no revision 'v9'; it has main", "Pass one of them"]
    expect(reader, clients.explain, EXPLAINER, revision="v9", says=no_revision)
    no_data = ["there is no file or folder somebody/typo", "has no dataset repository somebody/typo"]
    expect(reader, clients.read_events, "somebody/typo", "2-3", says=no_data)
    expect(reader, clients.read_events, WINDOWS, "2-3", revision="v9", says=no_revision)
    no_folder = ["somebody/explainer/elsewhere must hold config.json and model.safetensors; it holds README.md"]
    expect(reader, clients.explain, EXPLAINER, subfolder="elsewhere", kind="ValueError", says=no_folder)


@pytest.mark.parametrize("broken", ["PUT /objects/", "POST .*/commit/main", "POST .*/preupload/"])
def test_an_upload_that_is_cut_off_leaves_nothing_to_see_and_a_second_one_succeeds(hub, author, work, fault, broken):
    name = f"somebody/cut-{broken.split('/')[-2].strip('.*')}"
    hub.objects.clear()
    fault(broken, times=99)
    before = digests(work / "explainer")
    says = ["could not be asked for", "A commit is whole or not there", "run it again", "HF_ENDPOINT"]
    expect(author, clients.push, work, "explainer", name, hurry=True, says=says)
    assert hub.repos["model", name].tree("main") == {} and digests(work / "explainer") == before
    hub.faults.clear()
    author.submit(clients.push, work, "explainer", name).result()
    assert "model.safetensors" in hub.repos["model", name].tree("main")


def test_an_update_that_is_cut_off_leaves_the_old_files_as_they_were(hub, author, pushed, work, fault):
    before = hub.repos["model", EXPLAINER].tree("main")
    fault("POST .*/commit/main", times=99, status=500, message="Internal Error")
    says = ["answered somebody/explainer with: ", "Internal Error", "A commit is whole or not there", "HTTP 500"]
    expect(author, clients.push, work, "explainer", EXPLAINER, dataset="somebody/other", hurry=True, says=says)
    assert hub.repos["model", EXPLAINER].tree("main") == before


def test_a_download_that_is_cut_short_is_said_and_a_second_one_succeeds(reader, author, work, fault, hub, answer):
    author.submit(clients.push, work, "explainer", "somebody/short").result()
    fault("GET .*model.safetensors", times=99, damage=lambda data: data[: len(data) // 2])
    says = ["could not be asked for somebody/short", "received", "expected 58644", "Check the connection"]
    expect(reader, clients.explain, "somebody/short", hurry=True, says=says)
    hub.faults.clear()
    assert reader.submit(clients.explain, "somebody/short").result() == answer


def test_weights_with_other_bytes_than_announced_are_refused_and_a_second_download_succeeds(
    reader, author, work, fault, answer
):
    author.submit(clients.push, work, "explainer", "somebody/tampered").result()
    fault("GET .*model.safetensors", damage=lambda data: data[:-1] + bytes([data[-1] ^ 1]))
    says = ["model.safetensors of ", "is not the file that was saved: its digest is ", "Load it again"]
    expect(reader, clients.explain, "somebody/tampered", kind="ValueError", says=says)
    assert reader.submit(clients.explain, "somebody/tampered").result() == answer


def test_weights_that_were_cut_before_they_came_to_the_hub_are_refused(hub, reader, author, work, answer):
    author.submit(clients.push, work, "explainer", "somebody/damaged").result()
    repo = hub.repos["model", "somebody/damaged"]
    files = dict(repo.at("main").files)
    files["model.safetensors"] = File(files["model.safetensors"].data[:-100], is_large=True)
    repo.commit("main", "cut", files)
    says = ["is not the file that was saved: ", "The repository has it so: push it again"]
    expect(reader, clients.explain, "somebody/damaged", kind="ValueError", says=says)
    author.submit(clients.push, work, "explainer", "somebody/damaged").result()
    assert reader.submit(clients.explain, "somebody/damaged").result() == answer


def test_a_repository_of_pickled_weights_is_refused_unopened(hub, reader, author, work):
    author.submit(clients.push, work, "explainer", "somebody/pickled").result()
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
    expect(reader, clients.from_mtpp, "somebody/pickled", kind="ValueError", says=says)


# --- the script


def push_script(client, *arguments):
    return client.submit(clients.run_script, "push", *map(str, arguments)).result()


@pytest.fixture
def facts(work):
    """Where the script finds rows and words."""
    (work / "data.yaml").write_text(json.dumps(clients.DATA))
    return ["--rows", work / "rows.jsonl", "--card", work / "data.yaml"]


def test_the_script_shows_what_it_will_upload_and_a_dry_run_uploads_nothing(hub, author, work, facts):
    arguments = ["--checkpoint", work / "explainer", "--repo", "somebody/scripted", *facts]
    code, out, err = push_script(author, *arguments, "--dry-run")
    assert code == 0, err
    assert "model somebody/scripted, main:" in out and "nothing was uploaded" in out
    assert [line.split()[0] for line in out.splitlines()[1:-1]] == ["new"] * (len(out.splitlines()) - 2)
    assert ("model", "somebody/scripted") not in hub.repos

    code, out, err = push_script(author, *arguments, "--private", "--message", "By script")
    assert code == 0 and "committed as http" in out, err
    repo = hub.repos["model", "somebody/scripted"]
    assert repo.private and list(repo.commits.values())[-1].message == "By script"

    code, out, _ = push_script(author, *arguments, "--dataset", WINDOWS, "--dry-run")
    states = {line.split()[2]: line.split()[0] for line in out.splitlines()[1:-1]}
    assert states.pop("README.md") == "changed" and set(states.values()) == {"unchanged"}
    assert "nothing to upload" in push_script(author, *arguments)[1] and len(repo.commits) == 2


def test_the_script_pushes_windows_under_their_new_name(hub, author, work):
    code, out, err = push_script(author, "--windows", work / "windows", "--repo", "somebody/windows-scripted")
    assert code == 0 and "dataset somebody/windows-scripted, main:" in out, err
    card = hub.repos["dataset", "somebody/windows-scripted"].tree("main")["README.md"].decode()
    assert 'datasets.load_dataset("somebody/windows-scripted", "4-7")' in card and "path/to/this/folder" not in card


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda folder: folder / "nothing", "must hold config.json and model.safetensors; it holds nothing"),
        (
            lambda folder: (folder / "model.safetensors").rename(folder / "model.bin").parent,
            "pickled weights (model.bin)",
        ),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"0123456789") and folder, "is not the file that"),
        (lambda folder: folder.parent.parent / "process", "The card needs rows of these weights"),
    ],
)
def test_the_script_refuses_what_is_not_fit_to_be_pushed(hub, author, work, facts, tmp_path, spoil, says):
    folder = tmp_path / "copied" / "explainer"
    shutil.copytree(work / "explainer", folder)
    shutil.copytree(work / "process", tmp_path / "process")
    other = tmp_path / "rows.jsonl"
    other.write_text('{"task": "mtpp", "checkpoint": "another", "data": "x"}\n')
    arguments = ["--checkpoint", spoil(folder), "--repo", "somebody/unfit", "--rows", other, *facts[2:]]
    code, out, err = push_script(author, *arguments)
    assert code == 2 and out == "" and says in err and len(err.splitlines()) == 1
    assert ("model", "somebody/unfit") not in hub.repos
    code, _, err = push_script(author, "--windows", tmp_path, "--repo", "somebody/unfit")
    assert code == 2 and "written by scripts/prepare_windows.py" in err


def test_the_script_pushes_the_app_as_a_space(hub, author, tmp_path):
    folder = Path(__file__).parents[2] / "scripts" / "space"
    code, out, err = push_script(author, "--space", folder, "--repo", "somebody/why")
    assert code == 0 and "space somebody/why, main:" in out, err
    pushed = hub.repos["space", "somebody/why"].tree("main")
    assert pushed == {file.name: file.read_bytes() for file in folder.glob("*.*")}
    card = yaml.safe_load(pushed["README.md"].decode().split("---")[1])
    assert (card["sdk"], card["app_file"], card["license"]) == ("gradio", "app.py", "apache-2.0")
    code, _, err = push_script(author, "--space", tmp_path, "--repo", "somebody/nothing")
    assert code == 2 and "it lacks README.md, app.py, requirements.txt" in err


def test_help_is_quick_and_shows_how():
    script = Path(__file__).parents[2] / "scripts" / "push.py"
    code = (
        f"import runpy, sys\nsys.argv = ['push.py', '--help']\ntry:\n    runpy.run_path({str(script)!r}, "
        "run_name='__main__')\nfinally:\n    print('torch loaded:', 'torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout
    assert "--dry-run" in shown and "somebody/stackoverflow-15-40" in shown and "torch loaded: False" in shown
