"""Writing so that nothing is lost: a file or folder under its own name is whole.

It is written beside its place as `.<name>.partial`, synced to the disk, and then renamed. A process that is killed
leaves the old or the new one, and perhaps a partial one that the next writer clears away. A writer holds a lock, which
the kernel takes back when the process ends, however it ends.

A folder's MANIFEST lists the digests of its files, as `sha256sum --check` reads it; a JSON file of ours carries its
own. Where there is one, a file that differs from it is refused.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

try:
    import fcntl
except ImportError:  # Windows: nothing keeps two runs apart there
    fcntl = None  # type: ignore[assignment]

MANIFEST = "SHA256SUMS"
_OWN = "own_digest"  # key of the digest in a JSON file of ours
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
        self.errno, self._given = number, (path, number, reason)

    def __reduce__(self) -> Any:  # from one process to another
        return type(self), self._given


class OneWriter(ValueError):
    """Another process writes to the place."""


class Damaged(ValueError):
    """A file is not what was saved."""


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
    """Copy a model's files into a folder, each of them whole; with its config it becomes a model. Last comes the
    manifest of these files."""
    files = sorted(Path(source).iterdir(), key=lambda file: (file.name == "config.json", file.name))
    for file in (file for file in files if file.name != MANIFEST):
        with replaced_when_done(Path(folder) / file.name) as partial:
            shutil.copyfile(file, partial)
    write_manifest(folder, [file.name for file in files])


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


def write_json(path: str | Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object that carries its own digest; `read_json` gives it back."""
    value = json.loads(json.dumps(dict(value)))  # as it will be read
    write_text(path, json.dumps({**value, _OWN: _own_digest(value)}, indent=1))


def read_json(path: str | Path, remedy: str = "Copy it again, or remove it.") -> dict[str, Any]:
    """The JSON object in a file, which must fit the digest that it carries, if it does."""
    try:
        value = json.loads(_regular(path).read_bytes())
        fits = isinstance(value, dict) and value.pop(_OWN, None) in (None, _own_digest(value))
        reason = "it differs from the digest in it" if isinstance(value, dict) else f"it holds {value!r:.40}"
    except (ValueError, RecursionError) as error:
        fits, reason = False, f"{type(error).__name__}: {error}"
    if not fits:
        raise Damaged(f"{path} must be the JSON object that was saved; {reason}. {remedy}")
    return value


def _own_digest(value: Mapping[str, Any]) -> str:
    return digest(json.dumps(dict(value), sort_keys=True).encode())[:16]


def digest(content: bytes | str | Path) -> str:
    """SHA-256 of bytes, or of a whole file: more than a gigabyte a second."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with open(_regular(content), "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def identity(path: str | Path, before: Iterable[Sequence[Any]] = ()) -> list[Any]:
    """Name, size, time of change (ns) and digest of a file, as JSON holds them; the digest of an earlier identity
    where all else is the same, so that it need not be read again. Two files are the same if size and digest are."""
    path = _regular(path)
    is_now = [path.name, (state := path.stat()).st_size, state.st_mtime_ns]
    return [*is_now, next((old[3] for old in before if [*old[:3]] == is_now), None) or digest(path)]


def manifest(contents: Mapping[str, bytes | Path]) -> str:
    """What a manifest says of files, by name."""
    return "".join(f"{digest(content)}  {name}\n" for name, content in sorted(contents.items()))


def write_manifest(folder: str | os.PathLike[str], names: Iterable[str] | None = None) -> None:
    """List the digests of these files of a folder; by default of all but those whose names begin with a dot."""
    folder = Path(folder)
    listed = [file.name for file in folder.iterdir() if file.is_file()] if names is None else names
    kept = {name: folder / name for name in listed if name != MANIFEST and name[0] != "."}
    write_text(folder / MANIFEST, manifest(kept))


def check_manifest(
    folder: str | Path, names: Sequence[str] | None = None, remedy: str = "Copy it again, or train anew"
) -> list[str]:
    """Refuse a folder in which a file differs from the folder's manifest or is missing, of all that are listed or of
    `names`, patterns. The names that were checked: none in a folder without a manifest."""
    folder, checked = Path(folder), list[str]()
    if not (listing := folder / MANIFEST).exists():
        return []
    lines = _regular(listing).read_text("utf-8", "replace").splitlines()
    for match, line in ((re.fullmatch("([0-9a-f]{64}) [ *](.+)", line), line) for line in lines):
        if match is None or "/" in match[2]:
            raise Damaged(f"{listing} must list a digest and a name in each line; got {line!r:.80}. {remedy}.")
        name = match[2]
        if name == MANIFEST or not (names is None or any(fnmatchcase(name, pattern) for pattern in names)):
            continue
        if not (file := folder / name).exists() or digest(file) != match[1]:
            wrong = "differs from its digest" if file.exists() else "is missing, and listed"
            fix = f"{remedy}. If it was changed on purpose, or another program saved the model: remove {MANIFEST}."
            raise Damaged(f"{name} of {folder} is not the file that was saved: it {wrong} in {MANIFEST}. {fix}")
        checked.append(name)
    return checked


def _regular(path: str | Path) -> Path:
    """A path that can be read to its end: no pipe or device, which may never end, and no loop of links."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise Damaged(f"{path} must be a file; got a folder, a pipe or a device. Choose a file.")
    return path


def checkpoint_stamp(folder: str | Path) -> dict[str, Any]:
    """What a row says of a checkpoint: a digest of its weights, and the seed of its training if that is on record."""
    weights, training = Path(folder) / "model.safetensors", Path(folder) / "training.json"
    if not weights.is_file() or not (Path(folder) / "config.json").is_file():
        raise ValueError(f"a model is a folder with config.json and model.safetensors; got {folder}. Train one first.")
    seed = read_json(training).get("args", {}).get("seed") if training.is_file() else None
    return {"checkpoint": digest(weights)[:12], "seed": seed}


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
