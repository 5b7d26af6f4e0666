"""Up to the Hub, in one commit.

A model's repository holds its weights (safetensors), `config.json` (mark names, time unit and window are in it), the
rows it was measured with, a card made from them, and the code with which it opens where this package is not installed.
A data set's repository holds what `export_windows` writes, a Space's the files of its app.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import yaml
from huggingface_hub import CommitOperationAdd, HfApi, constants
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile
from transformers import PreTrainedModel
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.utils import logging

from .. import __version__
from ..data.export import CARD_FOLDER, is_export
from ..files import MANIFEST, manifest, read_rows
from ..models.hf_pipeline import TASK, EventHistoryPipeline
from ..present.cards import SHOWN_TASKS, check_card, model_card
from .fetch import FILES, check_weights, hub_errors, open_model

MODELING_FILE = "modeling_ehd_hf.py"
Rows = Sequence[Mapping[str, Any]]
Files = Mapping[str, bytes | Path]  # contents by path in the repository


# --- what a repository holds
# What a card says of data that nobody described.
OWN_DATA = {"license": "other", "provenance": "Events of the model's author; they are not published with it."}


def rows_of(model: Any, rows: Rows) -> list[Mapping[str, Any]]:
    """The rows about these weights, about the point process inside them, and of the baselines on its events; found by
    the digest of the weights that every row carries as `checkpoint`."""
    saved = [_saved(part)["model.safetensors"] for part in (model, getattr(model, "mtpp", model))]
    digests = {hashlib.sha256(weights).hexdigest()[:12] for weights in saved}  # as `files.checkpoint_stamp` does
    own = [row for row in rows if row.get("checkpoint") in digests]

    def events(row: Mapping[str, Any]) -> list[Any]:
        return [row.get(key) for key in ("data", "data_digest", "split", "jitter_seed", "pair")]

    scored = [events(row) for row in own if row["task"] == "mtpp"]
    return [row for row in rows if row["task"] == "mtpp" and not row.get("checkpoint") and events(row) in scored] + own


def model_files(model: Any, name: str, *, rows: Rows, **card: Any) -> dict[str, bytes | Path]:
    """The files of the repository `name` of a distiller or a point process; `rows` may be of other models too, `card`
    are the other arguments of `model_card`."""
    own = [row for row in rows_of(model, rows) if row["task"] in SHOWN_TASKS]
    text = model_card(name, model, rows=own, **card)
    check_card(text)
    lines = (json.dumps(dict(row), ensure_ascii=False) + "\n" for row in own)
    return {**portable_files(model), "README.md": text.encode(), "results.jsonl": "".join(lines).encode()}


def portable_files(model: Any) -> dict[str, bytes]:
    """Weights, config and the source files that open them where this package is not installed: those of the model's
    classes and what they import from their own folder, and a modeling file that names the classes."""
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    classes: list[type] = [cls for part in parts for cls in (type(part), type(part.config))]
    module, files = MODELING_FILE.removesuffix(".py"), _saved(model)
    auto = {"AutoConfig": f"{module}.{classes[1].__name__}", "AutoModel": f"{module}.{classes[0].__name__}"}
    config = json.loads(files["config.json"]) | {"auto_map": auto}
    if hasattr(model, "mtpp"):
        classes.append(EventHistoryPipeline)
        config["custom_pipelines"] = {TASK: {"impl": f"{module}.{EventHistoryPipeline.__name__}", "pt": ["AutoModel"]}}
    homes = {cls: Path(inspect.getfile(cls)) for cls in classes}
    sources = {*homes.values(), *(Path(file) for home in homes.values() for file in get_relative_import_files(home))}
    if len({file.name for file in sources}) < len(sources):
        raise ValueError(f"the files of a model's code need different names; got {', '.join(map(str, sources))}.")
    title = f'"""{type(model).__name__}, written by ehd_hf {__version__}. Licence: Apache-2.0."""\n\n'
    lines = [f"from .{home.stem} import {cls.__name__} as {cls.__name__}\n" for cls, home in homes.items()]
    files["config.json"] = (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
    code = {file.name: file.read_bytes() for file in sorted(sources)}
    return {**files, **code, MODELING_FILE: (title + "".join(lines)).encode()}


def _saved(model: Any) -> dict[str, bytes]:
    """The files of `save_pretrained`."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # small models write in a blink
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        files = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
    if shown:
        logging.enable_progress_bar()
    return files


# --- to the Hub


class Push(NamedTuple):
    """What a push does or would do."""

    repo_type: str
    files: list[tuple[str, int, str]]  # path, size in bytes and state ("new", "changed" or "unchanged") of each
    url: str | None  # of the commit if there is one


def push_folder(
    folder: str | Path,
    repo_id: str,
    *,
    rows: Sequence[str | Path] = (),
    card: str | Path | None = None,
    commands: Sequence[str] = (),
    dataset: str | None = None,
    dry_run: bool = False,
    **options: Any,
) -> Push:
    """Push a trained model, exported windows or a Gradio app, whichever `folder` holds.

    Args:
        repo_id: "somebody/name"; made if it is not there.
        rows: files of evaluation rows, for a model's card: results.jsonl beside the model if not given.
        card: YAML file with words about the model's data, see `model_card`; without it the card says they are private.
        commands, dataset: how the model was trained, and on which data set of the Hub, for its card.
        dry_run: upload nothing.
        options: private, revision, token and commit_message of `upload`.
    """
    folder = Path(folder)
    files: Files
    if is_export(folder):
        kind, files = "dataset", _windows_files(folder, repo_id)
    elif (folder / "app.py").is_file():
        kind, files = "space", {file.name: file for file in sorted(folder.glob("*")) if file.is_file()}
    else:
        kind, files = "model", _trained_files(folder, repo_id, rows, card, commands=commands, dataset=dataset)
    plan = _compare(files, repo_id, kind, options.get("revision"), options.get("token"))
    if dry_run or all(state == "unchanged" for *_, state in plan):
        return Push(kind, plan, None)
    options["commit_message"] = options.get("commit_message") or f"Upload {folder.resolve().name}"
    return Push(kind, plan, upload(files, repo_id, repo_type=kind, **options))


def upload(
    files: Files,
    repo_id: str,
    *,
    repo_type: str = "model",
    private: bool | None = None,
    revision: str | None = None,
    token: str | None = None,
    commit_message: str = "Upload",
) -> str:
    """Put files into a repository in one commit, so that readers see all of them or none; returns its address. Files
    that are there already are not sent again, and if all are, there is no new commit. `private` is for a repository
    that is new; `revision` is a branch, made from main if it is not there; without `token` that of `hf auth login` or
    HF_TOKEN is taken."""
    api = HfApi(token=token)
    with hub_errors(repo_id, repo_type, revision, token=token, writes=True):
        sdk = "gradio" if repo_type == "space" else None
        api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True, space_sdk=sdk)
        if revision is not None and revision != constants.DEFAULT_REVISION:
            api.create_branch(repo_id, repo_type=repo_type, branch=revision, exist_ok=True)
        additions = [CommitOperationAdd(path, content) for path, content in files.items()]
        done = api.create_commit(
            repo_id, additions, repo_type=repo_type, revision=revision, commit_message=commit_message
        )
    return str(done.commit_url)


# --- the folders that can be pushed


def _trained_files(
    folder: Path, name: str, rows: Sequence[str | Path], card: str | Path | None, **options: Any
) -> dict[str, bytes | Path]:
    check_weights(folder)
    model, rows = open_model(folder), rows or list(folder.glob("results.jsonl"))
    own = rows_of(model, [row for file in rows for row in read_rows(file)])
    if not any(row.get("checkpoint") for row in own):
        got = f"{', '.join(map(str, rows)) or 'no file of rows'} has none"
        fix = f"Measure {folder} with scripts/paper/evaluate.py, and pass the file it writes."
        raise ValueError(f"The card needs rows of these weights; {got}. {fix}")
    log = folder / "training.json"
    training = json.loads(log.read_text()) if log.is_file() else None
    about = yaml.safe_load(Path(card).read_text("utf-8")) if card else {"pretty_name": folder.resolve().name}
    files = model_files(model, name, rows=own, data=OWN_DATA | about, training=training, **options)
    files |= {file.name: file for file in folder.glob("reading.json")}  # how its events are read
    opened = {name: files[name] for name in files if any(fnmatchcase(name, pattern) for pattern in FILES)}
    return files | {MANIFEST: manifest(opened).encode()}


def _windows_files(folder: Path, name: str) -> dict[str, bytes | Path]:
    """The tables of `export_windows`, and its card with the Hub id in the place of the folder's name."""
    text = (folder / "README.md").read_text(encoding="utf-8").replace(CARD_FOLDER, name)
    check_card(text, "dataset")
    tables = {file.relative_to(folder).as_posix(): file for file in sorted(folder.rglob("*.parquet"))}
    return {"README.md": text.encode(), **tables}


def _compare(
    files: Files, repo_id: str, repo_type: str, revision: str | None, token: str | None
) -> list[tuple[str, int, str]]:
    """Each file against the one of the same path in the repository."""
    with hub_errors(repo_id, repo_type, revision, token=token, writes=True):
        try:
            present = HfApi(token=token).get_paths_info(repo_id, list(files), repo_type=repo_type, revision=revision)
        except (RepositoryNotFoundError, RevisionNotFoundError):
            present = []  # not there yet: every file is new
    there = {
        file.path: file.lfs.sha256 if file.lfs else file.blob_id for file in present if isinstance(file, RepoFile)
    }
    plan = []
    for path, content in sorted(files.items()):
        data = content if isinstance(content, bytes) else content.read_bytes()
        digests = (hashlib.sha256(data).hexdigest(), hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest())
        state = "new" if path not in there else "unchanged" if there[path] in digests else "changed"
        plan.append((path, len(data), state))
    return plan
