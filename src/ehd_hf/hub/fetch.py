"""Down from the Hub: models whose safetensors are checked, and errors with a remedy. Opens folders the same way."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf, prod
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, constants, get_token, snapshot_download
from huggingface_hub.errors import (  # type: ignore[attr-defined]  # HTTPError is that of the client in use
    HfHubHTTPError,
    HFValidationError,
    HTTPError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError, safe_open
from transformers import AutoModel

from ..files import MANIFEST, check_manifest, digest, read_json

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
CACHE_OPTIONS = ("cache_dir", "force_download", "local_files_only")  # of huggingface_hub.snapshot_download
FILES = ("config.json", "reading.json", "*.safetensors", "*.safetensors.index.json")  # what is opened of a model
# Keys of a config with which transformers would fetch or load other code, and what they may say.
_LOADS_CODE: dict[str, Sequence[str]] = {"attn_implementation": ("eager", "sdpa"), "quantization_config": ()}
_LOADS_CODE["experts_implementation"] = ("eager",)
_CLIENT_ERRORS = (HTTPError, HFValidationError, LocalEntryNotFoundError, ConnectionError)


@contextmanager
def hub_errors(
    repo_id: str, repo_type: str, revision: str | None = None, *, token: str | None = None, writes: bool = False
) -> Iterator[None]:
    """Errors of the Hub's client become OSError: expected, got, remedy. `writes`: a commit is under way."""
    try:
        yield
    except (*_CLIENT_ERRORS, RuntimeError) as error:
        # The client wraps what goes wrong with a large file.
        cause = error.__cause__ if isinstance(error, RuntimeError) else error
        again = " A commit is whole or not there, and no file is sent twice: run it again." if writes else ""
        if isinstance(cause, RevisionNotFoundError):
            refs = HfApi(token=token).list_repo_refs(repo_id, repo_type=repo_type)
            names = ", ".join(ref.name for ref in [*refs.branches, *refs.tags])
            message = f"{repo_id} has no revision {revision!r}; it has {names}. Pass one of them, or a commit."
        elif isinstance(cause, HfHubHTTPError):
            status, may = cause.response.status_code, f"that may {'write to' if writes else 'read'} {repo_id}"
            answer = f"answered {repo_id} with: {_line(cause.server_message or cause)}.{again}"
            if status == 401 and (token or get_token()) is None:
                answer = f"wants a token {may}; got none. Run `hf auth login`, or set HF_TOKEN."
            elif status == 401:
                answer = f"wants a token {may}; got one it does not accept. Run `hf auth login` again."
            elif status == 403:
                answer = f"wants a token {may}; got one that may not. Take another token, or your own repository."
            elif isinstance(cause, RepositoryNotFoundError):
                answer = f"has no {repo_type} repository {repo_id}, or a private one and no token for it."
            message = f"The Hub {answer} (HTTP {status})"
        elif isinstance(cause, HFValidationError):
            message = f"A repository is named somebody/name; got {repo_id!r}. Check the name."
        elif isinstance(cause, _CLIENT_ERRORS):
            fix = f"{again} Check the connection, HF_ENDPOINT and HF_HUB_OFFLINE."
            message = f"The Hub at {constants.ENDPOINT} could not be asked for {repo_id}: {_line(cause)}.{fix}"
        else:
            raise
        raise OSError(message) from error


def _line(text: object) -> str:
    return " ".join(str(text).split()).rstrip(".")


def list_pretrained() -> list[str]:
    """Names of the checkpoints that come with the package."""
    return sorted(file.parent.name for file in CHECKPOINTS.glob("*/config.json"))


def resolve(name: str | os.PathLike[str]) -> str:
    """A local folder, then a bundled checkpoint, then a Hub id."""
    if not isinstance(name, str | os.PathLike):
        raise ValueError(f"a model is named by its folder or a text such as {list_pretrained()[0]!r}; got {name!r}.")
    if not os.path.isfile(Path(name) / "config.json") and str(name) in list_pretrained():
        return str(CHECKPOINTS / str(name))
    return str(name)


def fetch_model(name: str, *, revision: str | None = None, subfolder: str = "", **options: Any) -> str:
    """Folder with a model's config and weights, checked: `name` itself if it is one, or the Hub's in the cache. From
    the Hub nothing is fetched but config, reading and safetensors; `options` are token, and `CACHE_OPTIONS`."""
    if ".." in Path(subfolder).parts:
        raise ValueError(f"subfolder must lie inside the repository; got {subfolder!r}. Name a folder in it.")
    inside = f"{subfolder.strip('/')}/" if subfolder else ""
    folder = Path(name)
    if not os.path.isfile(folder / inside / "config.json"):  # False for a name that no file can have
        if name.count("/") != 1 or os.path.isdir(folder):
            if os.path.isdir(folder):
                raise OSError(f"the folder {folder / inside} has no config.json. Copy it again, or train a model.")
            near = difflib.get_close_matches(name, list_pretrained(), 1)
            raise OSError(f"ids there are somebody/name.{f' Did you mean {near[0]!r}?' if near else ''}")
        with hub_errors(name, "model", revision, token=options.get("token")):
            wanted = [inside + file for file in (*FILES, MANIFEST)]
            folder = Path(snapshot_download(name, revision=revision, allow_patterns=wanted, **options))
            if not (folder / inside / "config.json").is_file() or not any((folder / inside).glob("*.safetensors")):
                there = HfApi(token=options.get("token")).list_repo_files(name, revision=revision)
                raise ValueError(_no_weights(f"{name}/{inside}".rstrip("/"), there))
    check_weights(folder / inside)
    return str(folder)


def open_model(folder: str | Path, **options: Any) -> Any:
    """The model in a checked folder (see `fetch_model`), whole: safetensors alone, and no code that lies beside them
    unless `trust_remote_code=True` is among the options of transformers."""
    options = {"trust_remote_code": False, **options, "use_safetensors": True, "output_loading_info": True}
    try:
        model, info = AutoModel.from_pretrained(folder, **options)
    except Exception as error:  # a stranger's config may fail in any way
        raise ValueError(f"{folder} does not open as a model: {_line(error)}. Check that ehd_hf wrote it.") from error
    if lacking := sorted({*info["missing_keys"], *(entry[0] for entry in info["mismatched_keys"])}):
        got = f"{', '.join(lacking[:3])} is missing or of another shape. Copy it again, or train anew"
        raise ValueError(f"{folder} must hold all weights of a {type(model).__name__}; {got}.")
    if unexpected := sorted(info["unexpected_keys"]):
        got = f"got {', '.join(unexpected[:3])} too. Was config.json changed? Copy both again, or train anew"
        raise ValueError(f"{folder} must hold the weights of a {type(model).__name__} and no others; {got}.")
    return model


def check_weights(folder: str | Path) -> None:
    """Refuse a folder without safetensors; files that are cut short, not the bytes that the Hub announced or not what
    the folder's manifest lists; and a config that does not fit the weights or loads other code. A damaged file in the
    Hub's cache is removed from there, so that the next download is a fresh one."""
    folder = Path(folder)
    weights = sorted(folder.glob("*.safetensors"))
    again = "Repeat its ehd-hf train, which puts it back" if (folder / "plan.json").is_file() else "Copy it again"
    if not weights:
        names = [file.name for file in folder.iterdir()] if folder.is_dir() else []
        raise ValueError(f"{_no_weights(str(folder), names)} {again}.")
    num_tensors = num_values = 0
    for file in weights:
        blob = Path(os.path.realpath(file))
        # The cache names a large file by the digest that the Hub announced for it.
        in_cache = file.is_symlink() and re.fullmatch("[0-9a-f]{64}", blob.name) is not None
        remedy = "The repository has it so: push it again" if in_cache else again
        try:
            if not blob.is_file():  # a pipe has no end
                raise SafetensorError("it is missing, or no file that can be read to its end")
            if in_cache and (got := digest(blob)) != blob.name:
                remedy = "Load it again to download it afresh"
                raise SafetensorError(f"its digest is {got[:12]}... instead of {blob.name[:12]}..., as announced")
            with safe_open(file, "pt") as opened:
                shapes = [opened.get_slice(name).get_shape() for name in opened.keys()]
            num_tensors, num_values = num_tensors + len(shapes), num_values + sum(map(prod, shapes))
        except SafetensorError as error:
            if in_cache:
                file.unlink()
                blob.unlink(missing_ok=True)
            message = f"{file.name} of {folder} is not the file that was saved: {error}. {remedy}."
            raise ValueError(message) from error
    check_manifest(folder, FILES, again)
    _check_config(folder, num_tensors, num_values)
    for file in folder.glob("*.safetensors.index.json"):
        parts = read_json(file).get("weight_map")
        if not isinstance(parts, dict) or not set(map(str, parts.values())) <= {part.name for part in weights}:
            raise ValueError(f"{file} must name the safetensors beside it; got {parts!r:.200}. Copy it again.")


def _check_config(folder: Path, num_tensors: int, num_values: int) -> None:
    """Refuse a config of more layers, or of larger sizes, than the weights beside it can have, before anything is
    allocated; and one that would load other code."""
    waiting: list[Any] = [read_json(folder / "config.json")]
    while waiting:
        values = waiting.pop()
        for key, value in values.items() if isinstance(values, dict) else enumerate(values):
            name, most = str(key), inf
            if name.endswith(("layers", "_size")) or name.startswith("num_"):
                most = num_tensors if name.endswith("layers") else max(num_values, 1_000_000)
            if isinstance(value, int | float) and not value <= most:
                got = f"got {name} {value!r:.40} beside {num_tensors} tensors of {num_values:,} numbers"
                raise ValueError(f"the config of {folder} must fit its weights; {got}. Copy both, or train anew.")
            allowed = _LOADS_CODE.get(name.removeprefix("_").removesuffix("_internal"))
            if allowed is not None and value is not None and value not in allowed:
                fix = f"Remove it from config.json{f', or write {allowed[0]}' if allowed else ''}."
                raise ValueError(f"the config of {folder} must not load other code; got {name} {value!r:.80}. {fix}")
            waiting += [value] if isinstance(value, dict | list) else []


def _no_weights(where: str, names: Sequence[str]) -> str:
    pickles = [name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl", ".ckpt"))]
    if pickles:
        why = "expected safetensors, because a pickle can run any code when it is opened"
        fix = "Where you trust it, load it, and push what save_pretrained writes."
        return f"{where} has only pickled weights ({', '.join(pickles)}); {why}. {fix}"
    files = ", ".join(sorted(names)[:8]) or "nothing"
    return f"{where} must hold config.json and model.safetensors; it holds {files}. Check the name and the subfolder."
