"""Writing so that nothing is lost: what stands under its name is whole.

A file or folder is written beside its place as `.<name>.partial`, through to the disk, and then renamed. A process
that is killed leaves the old or the new, and perhaps a partial one that the next writer clears away. A writer holds a
lock, which the kernel takes back when the process ends, however it ends.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

try:
    import fcntl
except ImportError:  # Windows: nothing keeps two runs apart there
    fcntl = None  # type: ignore[assignment]

_NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_IN_THE_WAY = {errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENOTEMPTY}


class CannotWrite(OSError):
    """The operating system's refusal to write `path`, and what to do about it; `errno` is its own."""

    def __init__(self, path: Path, number: int | None, reason: str) -> None:
        if number in _NO_SPACE:
            said = f"no space left to write {path} ({reason}). Free some space, and"
        elif number in _NOT_ALLOWED:
            said = f"{path} must be in a place you may write to ({reason}). Choose another place, and"
        elif number in _IN_THE_WAY:
            said = f"{path} cannot be written where something else stands ({reason}). Choose another name, and"
        else:
            said = f"{path} could not be written ({reason}). Check the disk, and"
        super().__init__(f"{said} repeat the command; what was finished is kept.")
        self.errno = number


@contextmanager
def replaced_when_done(path: str | Path) -> Iterator[Path]:
    """Where to write a file: beside `path`, which it replaces at the end; nothing is left of it if something fails."""
    path = Path(os.path.realpath(path))  # a link stays one
    if path.exists() and not path.is_file() and not path.is_dir():  # a device or a pipe, such as /dev/stdout
        yield path
        return
    partial = _beside(path)
    if path.is_dir():
        raise CannotWrite(path, errno.EISDIR, os.strerror(errno.EISDIR))
    with _explained(path, partial), _written(partial, path):
        yield partial
        _sync(partial)
        os.replace(partial, path)
        _sync(path.parent)


@contextmanager
def folder_replaced_when_done(path: str | Path) -> Iterator[Path]:
    """Where to write a folder: beside `path`, which it replaces at the end, whatever that was, or not at all."""
    path = Path(os.path.realpath(path))
    partial, old = _beside(path), path.with_name(f".{path.name}.old")
    with _explained(path, partial), _written(partial, path, folder=True):
        if old.exists() and not path.exists():  # killed between the renames below
            os.replace(old, path)
        yield partial
        for written in sorted(partial.rglob("*")):
            _sync(written)
        _sync(partial)
        if not path.exists():
            os.replace(partial, path)
            _sync(path.parent)
            return
        held = _hold(path, os.O_RDONLY, path)  # what is replaced is still ours to clear away
        try:
            if _exchanged(partial, path):
                old = partial
            else:
                _clear(old)
                os.replace(path, old)
                os.replace(partial, path)
            _sync(path.parent)
            _clear(old)
        finally:
            os.close(held)


def write_text(path: str | Path, text: str) -> None:
    """A text file that appears complete under its name, or not at all."""
    with replaced_when_done(path) as partial:
        partial.write_text(text, encoding="utf-8")


def put_files(source: str | Path, folder: str | os.PathLike[str]) -> None:
    """Copy a model's files into a folder, each of them whole; with its config, the last one, it becomes a model."""
    for file in sorted(Path(source).iterdir(), key=lambda file: (file.name == "config.json", file.name)):
        with replaced_when_done(Path(folder) / file.name) as partial:
            shutil.copyfile(file, partial)


def make_folder(path: str | Path) -> None:
    """A folder and those above it, if they are not there, through to the disk."""
    path = Path(path)
    with _explained(path, path):
        if not path.is_dir():
            if path.parent != path:
                make_folder(path.parent)
            path.mkdir(exist_ok=True)
            _sync(path.parent)


def remove_folder(path: str | Path) -> None:
    """A folder that disappears at once, not file by file; with what a killed removal left of it."""
    path = Path(path)
    partial = _beside(path)
    with _explained(path, path, partial):
        if path.exists():
            _clear(partial)
            os.replace(path, partial)
        _clear(partial)


def holds_nothing(path: str | Path) -> bool:
    """Whether a folder is missing or empty, but for what killed writers left."""
    path = Path(path)
    if path.exists() and not path.is_dir():
        return False
    files = (file.relative_to(path).parts for file in path.rglob("*") if not file.is_dir())
    return all(any(re.fullmatch(r"\..*\.partial", part) for part in parts) for parts in files)


@contextmanager
def locked(path: str | Path) -> Iterator[None]:
    """Be the only one to write to a folder, or to add to a file (made if it is not there)."""
    path = Path(path)
    flags = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    with _explained(path, path):
        held = _hold(path, flags, path)
    try:
        yield
    finally:
        try:
            if flags & os.O_CREAT and not os.fstat(held).st_size:
                with suppress(OSError):  # an empty file harms nobody, and must not hide why nothing was added
                    path.unlink()
        finally:
            os.close(held)


# --- rows


def read_rows(path: str | Path) -> list[dict[str, Any]]:
    """Rows of a JSON Lines file; none if there is no file. A last line cut short by a kill is left out."""
    path = Path(path)
    if not path.exists():
        return []
    if path.is_dir():
        raise ValueError(f"{path} must be a file of rows, one JSON object per line; it is a folder. Choose a file.")
    *lines, _unfinished = path.read_bytes().split(b"\n")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise ValueError(f"{path} must hold one JSON object per line; line {number} is none. Choose another file.")
        rows.append(row)
    return rows


def append_row(path: str | Path, row: Mapping[str, Any], *, allow_nan: bool = False) -> None:
    """Add one whole line, through to the disk; a line cut short before it is removed."""
    path = Path(path)
    # May fail: before anything is touched.
    line = (json.dumps(dict(row), ensure_ascii=False, allow_nan=allow_nan) + "\n").encode()
    with _explained(path, path), open(path, "ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 1))
        if file.read(1) not in (b"", b"\n"):
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


# --- parts


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.partial")


@contextmanager
def _written(partial: Path, path: Path, folder: bool = False) -> Iterator[None]:
    """An empty partial file or folder that no one else writes to; it is cleared away if something fails."""
    make_folder(partial.parent)
    if folder:
        partial.mkdir(exist_ok=True)
    held = _hold(partial, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT, path)
    try:
        if folder:
            for left in partial.iterdir():
                _clear(left)
        else:
            os.ftruncate(held, 0)
            if path.is_file():
                shutil.copymode(path, partial)
        yield
    except BaseException:
        _clear(partial)
        raise
    finally:
        os.close(held)


def _hold(path: Path, flags: int, wanted: Path) -> int:
    """A descriptor of `path` with its lock."""
    while True:
        held = os.open(path, flags, 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
            raise ValueError(
                f"{wanted} must have one writer at a time; another run is writing to it. Wait for it or end it, or "
                "choose another place."
            ) from None
        except OSError:
            return held  # some network file systems know no locks
        if path.exists() and os.path.samestat(os.fstat(held), os.stat(path)):
            return held
        os.close(held)  # it was put in its place before we had the lock: this is not it


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    try:
        opened = os.open(path, os.O_RDONLY)
    except PermissionError:
        if path.is_dir():
            return  # Windows opens no folders; elsewhere one may be allowed to write to a folder and not to read it
        raise
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _exchanged(one: Path, other: Path) -> bool:
    """Swap two names in one step, so that neither is ever missing; False where the system cannot."""
    try:
        swap = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux
    return swap(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


@contextmanager
def _explained(path: Path, *places: Path) -> Iterator[None]:
    """Refusals to write there, in words."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
        ours = named is not None and any(place == named or place in named.parents for place in (path, *places))
        if not (ours or error.errno in _NO_SPACE | {errno.EROFS, errno.EIO}):
            raise  # what was being computed could not read something
        raise CannotWrite(path, error.errno, error.strerror or str(error)) from error
    except SafetensorError as error:  # tells the system's error in its text only
        if (found := re.search(r"\(os error (\d+)\)", str(error))) is None:
            raise
        number = int(found[1])
        raise CannotWrite(path, number, os.strerror(number)) from error
