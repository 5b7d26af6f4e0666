"""Writing so that nothing is lost: a file or folder under its own name is whole.

It is written beside its place as `.<name>.partial`, synced to the disk, and then renamed. A process that is killed
leaves the old or the new one, and perhaps a partial one that the next writer clears away. A writer holds a lock, which
the kernel takes back when the process ends, however it ends.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

try:
    import fcntl
except ImportError:  # Windows: nothing keeps two runs apart there
    fcntl = None  # type: ignore[assignment]

_NO_SPACE, _NOT_ALLOWED = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), (errno.EACCES, errno.EPERM, errno.EROFS)
_IN_THE_WAY = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY)
_REFUSALS = {
    _NO_SPACE: "no space left to write {path} ({reason}). Free some space",
    _NOT_ALLOWED: "{path} must be in a place you may write to ({reason}). Choose another place",
    _IN_THE_WAY: "{path} cannot be written where something else stands ({reason}). Choose another name",
}


class CannotWrite(OSError):
    """The operating system's refusal to write `path`, and what to do about it; `errno` is its own."""

    def __init__(self, path: Path, number: int | None, reason: str) -> None:
        other = "{path} could not be written ({reason}). Check the disk"
        text = next((text for numbers, text in _REFUSALS.items() if number in numbers), other)
        super().__init__(text.format(path=path, reason=reason) + ", and repeat the command; finished work is kept.")
        self.errno = number


class OneWriter(ValueError):
    """Another process writes to the place."""


@contextmanager
def replaced_when_done(path: str | Path, *, folder: bool = False) -> Iterator[Path]:
    """Where to write a file, or a folder: beside `path`, which it replaces at the end; or nothing is left of it."""
    path = Path(os.path.realpath(path))  # a link stays one
    if path.exists() and not path.is_file() and not path.is_dir():  # a device or a pipe, such as /dev/stdout
        yield path
        return
    if path.is_dir() and not folder:
        raise CannotWrite(path, errno.EISDIR, os.strerror(errno.EISDIR))
    with _explained(path, partial := _beside(path)):
        make_folder(partial if folder else partial.parent)
        with _held(partial, path):
            try:
                _prepare(partial, path)
                yield partial
                for written in (*sorted(partial.rglob("*")), partial):
                    _sync(written)
                _put_in_place(partial, path)
            except BaseException:
                _clear(partial)
                raise


folder_replaced_when_done = functools.partial(replaced_when_done, folder=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file that appears complete under its name, or not at all."""
    with replaced_when_done(path) as partial:
        partial.write_text(text, encoding="utf-8")


def put_files(source: str | Path, folder: str | os.PathLike[str]) -> None:
    """Copy a model's files into a folder, each of them whole; with its config, the last one, it becomes a model."""
    for file in sorted(Path(source).iterdir(), key=lambda file: (file.name == "config.json", file.name)):
        with replaced_when_done(Path(folder) / file.name) as partial:
            shutil.copyfile(file, partial)


def make_folder(path: str | Path) -> None:
    """Make a folder and those above it, where they are missing, and sync them to the disk."""
    path = Path(path)
    with _explained(path):
        for folder in (*reversed(path.parents), path):
            if not folder.is_dir():
                folder.mkdir(exist_ok=True)
                _sync(folder.parent)


def remove_folder(path: str | Path) -> None:
    """Remove a folder at once, not file by file, and what a killed removal left of it."""
    path = Path(path)
    with _explained(path, partial := _beside(path)):
        _clear(partial)
        if path.exists():
            os.replace(path, partial)
            _clear(partial)


def holds_nothing(path: str | Path) -> bool:
    """Whether a folder is missing or empty, except for what killed writers left."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        return False
    files = (file.relative_to(path).parts for file in path.rglob("*") if not file.is_dir())
    return all(any(re.fullmatch(r"\..*\.partial", part) for part in parts) for parts in files)


@contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Be the only one to write to a folder, or to add to a file (made if it is missing)."""
    path = Path(path)
    with _held(path, path) as held:
        try:
            yield
        finally:
            with suppress(OSError):  # an empty file harms nobody, and must not hide why nothing was added
                if path.is_file() and not os.fstat(held).st_size:
                    path.unlink()


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Rows of a JSON Lines file; none if there is no file. A last line cut short by a kill is left out."""
    path, rows = Path(path), []
    if path.is_dir():
        raise ValueError(f"{path} must be a file of rows, one JSON object per line; it is a folder. Choose a file.")
    *lines, _unfinished = path.read_bytes().split(b"\n") if path.exists() else [b""]
    for number, line in enumerate(lines, 1):
        with suppress(ValueError):
            rows.append(json.loads(line))
        if len(rows) < number or not isinstance(rows[-1], dict):
            raise ValueError(f"{path} must hold one JSON object per line; line {number} is none. Choose another file.")
    return rows


def append_row(path: str | Path, row: Mapping[str, Any], *, allow_nan: bool = False) -> None:
    """Add one whole line and sync it to the disk; a line cut short before it is removed."""
    path = Path(path)
    # May fail: before anything is touched.
    line = (json.dumps(dict(row), ensure_ascii=False, allow_nan=allow_nan) + "\n").encode()
    with _explained(path), open(path, "ab+", buffering=0) as file:
        file.seek(0)
        size = file.read().rfind(b"\n") + 1
        file.truncate(size)
        try:
            while line:  # a disk that is almost full takes a part
                line = line[file.write(line) :]
            os.fsync(file.fileno())
        except OSError:
            file.truncate(size)
            raise


def checkpoint_stamp(folder: str | Path) -> dict[str, Any]:
    """What a row says of a checkpoint: a digest of its weights, and the seed of its training if that is on record."""
    weights, training = Path(folder) / "model.safetensors", Path(folder) / "training.json"
    if not weights.is_file() or not (Path(folder) / "config.json").is_file():
        raise ValueError(f"a model is a folder with config.json and model.safetensors; got {folder}. Train one first.")
    seed = json.loads(training.read_text()).get("args", {}).get("seed") if training.is_file() else None
    return {"checkpoint": hashlib.sha256(weights.read_bytes()).hexdigest()[:12], "seed": seed}


def _beside(path: Path, state: str = "partial") -> Path:
    return path.with_name(f".{path.name}.{state}")


def _prepare(partial: Path, path: Path) -> None:
    """Clear away what a killed writer left."""
    if partial.is_file():
        os.truncate(partial, 0)
        if path.is_file():
            shutil.copymode(path, partial)
        return
    for left in partial.iterdir():
        _clear(left)
    if not path.exists() and (old := _beside(path, "old")).exists():  # killed between the renames of `_put_in_place`
        os.replace(old, path)


def _put_in_place(partial: Path, path: Path) -> None:
    if partial.is_file() or not path.exists():
        os.replace(partial, path)
        return _sync(path.parent)
    with _held(path, path):  # until it is cleared away
        old = partial
        if not _exchanged(partial, path):
            _clear(old := _beside(path, "old"))
            os.replace(path, old)
            os.replace(partial, path)
        _sync(path.parent)
        _clear(old)


@contextmanager
def _held(path: Path, wanted: Path) -> Iterator[int]:
    """Hold the lock of `path`; `wanted` is named if another process has it."""
    with _explained(wanted, path):
        held = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if fcntl is not None:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have put a new file in its place before we had the lock.
        is_ours = path.exists() and os.path.samestat(os.fstat(held), os.stat(path))
    except OSError as error:
        is_ours = not isinstance(error, BlockingIOError)  # some network file systems have no locks
    try:
        if not is_ours:
            text = "must have one writer at a time; another run writes to it. Wait for it, or choose another place."
            raise OneWriter(f"{wanted} {text}")
        yield held
    finally:
        os.close(held)


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    # Windows opens no folders; elsewhere a folder may be open for writing but not for reading.
    with suppress(PermissionError) if path.is_dir() else nullcontext():
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def _exchanged(one: Path, other: Path) -> bool:
    """Swap two names in one step, so that neither is ever missing; False where the system cannot."""
    swap = None if os.name == "nt" else getattr(ctypes.CDLL(None), "renameat2", None)
    at_fdcwd, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux
    return swap is not None and swap(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), exchange) == 0


@contextmanager
def _explained(*places: Path) -> Iterator[None]:
    """Turn the system's refusals to write at these places into `CannotWrite` of the first."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
        ours = named is not None and any(place == named or place in named.parents for place in places)
        if not (ours or error.errno in (*_NO_SPACE, errno.EROFS, errno.EIO)):
            raise  # the computation could not read something
        raise CannotWrite(places[0], error.errno, error.strerror or str(error)) from error
    except SafetensorError as error:  # has the system's error number in its text only
        if (match := re.search(r"\(os error (\d+)\)", str(error))) is None:
            raise
        raise CannotWrite(places[0], int(match[1]), os.strerror(int(match[1]))) from error
