"""The way to the Hub and back: uploads in one commit, downloads that are checked.

A model's repository holds its weights (safetensors), `config.json` (mark names, time unit and window are in it), the
rows it was measured with, a card made from them (`cards`), and `modeling_ehd_hf.py`, with which it opens where this
package is not installed. A data set's repository holds what `windows.export_windows` writes.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from huggingface_hub import CommitOperationAdd, HfApi, constants
from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile
from transformers import PreTrainedModel
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.utils import logging

from .. import __version__
from ..data.export import CARD_FOLDER, is_export
from ..models.hf_pipeline import TASK, EventHistoryPipeline
from ..present.cards import SHOWN_TASKS, check_card, model_card
from .fetch import hub_errors

MODELING_FILE = "modeling_ehd_hf.py"
Rows = Sequence[Mapping[str, Any]]
Files = Mapping[str, bytes | Path]  # contents by path in the repository


# --- what a repository holds


def rows_of(model: Any, rows: Rows) -> list[Mapping[str, Any]]:
    """The rows about these weights, about the point process inside them, and of the baselines on its events; found by
    the digest of the weights that every row carries as `checkpoint`."""
    saved = [_saved(part)["model.safetensors"] for part in (model, getattr(model, "mtpp", model))]
    digests = {hashlib.sha256(weights).hexdigest()[:12] for weights in saved}  # as `scores.checkpoint_stamp` does
    own = [row for row in rows if row.get("checkpoint") in digests]

    def events(row: Mapping[str, Any]) -> list[Any]:
        return [row.get(key) for key in ("data", "data_digest", "split", "jitter_seed", "pair")]

    scored = [events(row) for row in own if row["task"] == "mtpp"]
    return [row for row in rows if row["task"] == "mtpp" and not row.get("checkpoint") and events(row) in scored] + own


def model_files(model: Any, name: str, *, rows: Rows, **card: Any) -> dict[str, bytes | Path]:
    """The files of a model's repository.

    Args:
        model: a distiller or a point process.
        name: Hub id.
        rows: evaluation rows, of other models too.
        card: the other arguments of `cards.model_card`.
    """
    mine = [row for row in rows_of(model, rows) if row["task"] in SHOWN_TASKS]
    text = model_card(name, model, rows=mine, **card)
    check_card(text)
    lines = (json.dumps(dict(row), ensure_ascii=False) + "\n" for row in mine)
    return {**portable_files(model), "README.md": text.encode(), "results.jsonl": "".join(lines).encode()}


def portable_files(model: Any) -> dict[str, bytes]:
    """Weights, config and the source files that open them where this package is not installed: those of the model's
    classes and what they import from their own folder, and a modeling file that names the classes."""
    is_distiller = hasattr(model, "mtpp")
    parts = [part for part in model.modules() if isinstance(part, PreTrainedModel)]
    classes: list[type] = [cls for part in parts for cls in (type(part), type(part.config))]
    classes += [EventHistoryPipeline] if is_distiller else []
    homes = {cls: Path(inspect.getfile(cls)) for cls in classes}
    sources = {*homes.values(), *(Path(file) for home in homes.values() for file in get_relative_import_files(home))}
    names = {file.name for file in sources}
    if len(names) < len(sources):
        raise ValueError(f"the code of a model travels in one folder; two files of {sorted(names)} share a name.")
    title = f'"""{type(model).__name__}, written by ehd_hf {__version__}. Licence: Apache-2.0."""\n\n'
    lines = [f"from .{home.stem} import {cls.__name__} as {cls.__name__}\n" for cls, home in homes.items()]
    module = MODELING_FILE.removesuffix(".py")
    files = _saved(model)
    config = json.loads(files["config.json"])
    config["auto_map"] = {
        "AutoConfig": f"{module}.{type(model.config).__name__}",
        "AutoModel": f"{module}.{type(model).__name__}",
    }
    if is_distiller:
        config["custom_pipelines"] = {TASK: {"impl": f"{module}.{EventHistoryPipeline.__name__}", "pt": ["AutoModel"]}}
    files["config.json"] = (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
    code = {file.name: file.read_bytes() for file in sorted(sources)}
    return {**files, **code, MODELING_FILE: (title + "".join(lines)).encode()}


def windows_files(folder: str | Path, name: str) -> dict[str, bytes | Path]:
    """The files of a data set's repository: a folder of `windows.export_windows`, its card speaking of the Hub id."""
    folder = Path(folder)
    if not is_export(folder):
        raise ValueError(
            f"windows to push are a folder written by scripts/prepare_windows.py; got {folder}. Make one with it."
        )
    text = (folder / "README.md").read_text(encoding="utf-8").replace(CARD_FOLDER, name)
    check_card(text, "dataset")
    tables = sorted(folder.rglob("*.parquet"))
    return {"README.md": text.encode()} | {file.relative_to(folder).as_posix(): file for file in tables}


def _saved(model: Any) -> dict[str, bytes]:
    """The files of `save_pretrained`."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()  # small models write in a blink
    try:
        with TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            return {file.name: file.read_bytes() for file in Path(folder).iterdir()}
    finally:
        if shown:
            logging.enable_progress_bar()


# --- to the Hub


def push_to_hub(model: Any, repo_id: str, *, rows: Rows, data: Mapping[str, Any], **options: Any) -> str:
    """Push a distiller or a point process with its card, code and results; returns the address of the commit.

    Args:
        model: what to push.
        repo_id: "somebody/name"; made if it is not there.
        rows: evaluation rows; those of these weights become the card's results.
        data: the data set's own words, see `cards.model_card`.
        options: training, commands and dataset of `cards.model_card`; private, revision, subfolder, token and
            commit_message of `upload`.
    """
    card = {key: options.pop(key) for key in ("training", "commands", "dataset") if key in options}
    files = model_files(model, repo_id, rows=rows, data=data, **card)
    message = options.pop("commit_message", None) or f"{type(model).__name__}, by ehd_hf {__version__}"
    return upload(files, repo_id, commit_message=message, **options)


def push_windows(folder: str | Path, repo_id: str, **options: Any) -> str:
    """Push a folder of `windows.export_windows` as a data set, for `datasets.load_dataset` and `load_windows`; returns
    the address of the commit. `options` as in `upload`."""
    message = options.pop("commit_message", None) or f"Windows, by ehd_hf {__version__}"
    return upload(windows_files(folder, repo_id), repo_id, repo_type="dataset", commit_message=message, **options)


class Upload(NamedTuple):
    """A file of an upload: its path in the repository, its size in bytes, and "new", "changed" or "unchanged"."""

    path: str
    size: int
    state: str


def plan_upload(
    files: Files, repo_id: str, *, repo_type: str = "model", revision: str | None = None, token: str | None = None
) -> list[Upload]:
    """What `upload` would do with each file."""
    there: dict[str, str] = {}
    with hub_errors(repo_id, repo_type, revision, token=token):
        try:
            known = HfApi(token=token).get_paths_info(repo_id, list(files), repo_type=repo_type, revision=revision)
        except (RepositoryNotFoundError, RevisionNotFoundError):
            pass  # not there yet: every file is new
        else:
            there = {
                file.path: file.lfs.sha256 if file.lfs else file.blob_id
                for file in known
                if isinstance(file, RepoFile)
            }
    plan = []
    for path, content in sorted(files.items()):
        data = content if isinstance(content, bytes) else content.read_bytes()
        digests = (hashlib.sha256(data).hexdigest(), hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest())
        state = "new" if path not in there else "unchanged" if there[path] in digests else "changed"
        plan.append(Upload(path, len(data), state))
    return plan


def upload(
    files: Files,
    repo_id: str,
    *,
    repo_type: str = "model",
    private: bool | None = None,
    revision: str | None = None,
    subfolder: str = "",
    token: str | None = None,
    commit_message: str = "Upload",
) -> str:
    """Put files into a repository in one commit, so that readers see all of them or none; returns its address. Files
    that are there already are not sent again, and if all are, there is no new commit.

    Args:
        files: contents by path.
        repo_id: "somebody/name"; made if it is not there.
        repo_type: model, dataset or space.
        private: whether a new repository is to be seen by its owner alone.
        revision: branch; made from main if it is not there.
        subfolder: where in the repository.
        token: the one of `hf auth login` or HF_TOKEN if not given.
        commit_message: what the history says of it.
    """
    api = HfApi(token=token)
    prefix = f"{subfolder.strip('/')}/" if subfolder else ""
    with hub_errors(repo_id, repo_type, revision, token=token, writes=True):
        sdk = "gradio" if repo_type == "space" else None
        api.create_repo(repo_id, repo_type=repo_type, private=private, exist_ok=True, space_sdk=sdk)
        if revision is not None and revision != constants.DEFAULT_REVISION:
            api.create_branch(repo_id, repo_type=repo_type, branch=revision, exist_ok=True)
        additions = [CommitOperationAdd(prefix + path, content) for path, content in files.items()]
        done = api.create_commit(
            repo_id, additions, repo_type=repo_type, revision=revision, commit_message=commit_message
        )
    return str(done.commit_url)
