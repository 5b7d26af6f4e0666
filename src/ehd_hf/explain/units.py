"""Units of work, computed by one of three engines: this process, local processes, a Ray cluster.

A task is any object that can be pickled and has `run(unit)`; a unit is any small value that says what to read. Running
a unit again must do no harm: a unit whose worker was lost is given to another one.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from time import sleep
from typing import Any, Literal, NamedTuple

import torch

from ..data.sorting import MEMORY, bytes_of
from ..files import CannotWrite, OneWriter

ROWS_PER_FILE = 10_000
# A unit that fails so often is reported; so is one that so many workers were lost with: it may be the reason.
_TRIES, _LOSSES = 3, 10
_SECONDS_TO_REACH = 5
_OBJECT_STORE = 2**27  # bytes that a local Ray takes: it holds the model, no data


@dataclass(frozen=True)
class Work:
    """How the work is shared and shown."""

    rows_per_file: int = ROWS_PER_FILE  # windows in a unit of work: what a killed process computes again at most
    rank: int = field(default_factory=lambda: int(os.environ.get("RANK", 0)))  # as torchrun and accelerate say
    world_size: int = field(default_factory=lambda: int(os.environ.get("WORLD_SIZE", 1)))
    progress: bool | None = None  # by default a bar is shown by the first process, if someone looks
    engine: Literal["local", "ray"] = "local"
    workers: int | None = None  # processes; by default this one alone, of a cluster as many as it has CPUs
    address: str | None = None  # of a Ray cluster, or "auto"; by default Ray is started on this machine
    memory: str = MEMORY  # for sorting: more is sorted on disk

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"rank must lie in [0, {self.world_size}); got {self.rank}. Leave both to torchrun.")
        for name in ("rows_per_file", "workers"):
            if (number := getattr(self, name)) is not None and number < 1:
                raise ValueError(f"{name} must be at least 1; got {number}. Leave it to its default.")
        if self.engine not in ("local", "ray"):
            raise ValueError(f"the engine must be local or ray; got {self.engine!r}.")
        if self.address is not None and self.engine != "ray":
            raise ValueError(f"an address is that of a Ray cluster; got {self.address!r} without the engine ray.")
        bytes_of(self.memory)

    @property
    def is_shared(self) -> bool:
        """Whether other processes than this one compute."""
        return self.engine == "ray" or (self.workers or 1) > 1


class Failed(NamedTuple):
    """What came of a unit that was given up."""

    reason: str


def run_units(task: Any, units: Sequence[Any], work: Work) -> Iterator[tuple[Any, Any]]:
    """Each unit and what `task.run(unit)` returns, or `Failed`, in the order in which they end. Only a refusal to
    write (`CannotWrite`) ends the whole."""
    if not units:
        return
    if work.engine == "ray":
        yield from _by_ray(task, units, work)
    elif (work.workers or 1) > 1:
        yield from _by_processes(task, units, min(work.workers or 1, len(units)))
    else:
        for unit in units:
            yield unit, _tried(task, unit)


def _tried(task: Any, unit: Any) -> Any:
    for left in reversed(range(_TRIES)):
        try:
            return task.run(unit)
        except CannotWrite:
            raise
        except OneWriter as error:  # a worker that was thought lost is still at it
            reason = str(error)
            sleep(1)
        except Exception as error:
            reason = str(error) or type(error).__name__
            if isinstance(error, ValueError) or not left:  # what the data are to blame for will not change
                break
    return Failed(reason)


# --- local processes

_task: Any = None  # of this worker


def _open(task: Any, threads: int) -> None:
    global _task
    _task = task
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(unit: Any) -> Any:
    return _tried(_task, unit)


def _by_processes(task: Any, units: Sequence[Any], workers: int) -> Iterator[tuple[Any, Any]]:
    left, losses = dict(enumerate(units)), 0
    opening = task, max(1, torch.get_num_threads() // workers)
    while left and losses < _TRIES:
        before = len(left)
        pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_open, initargs=opening)
        try:
            running = {pool.submit(_run, unit): number for number, unit in left.items()}
            for future in as_completed(running):
                if not isinstance(future.exception(), BrokenProcessPool):
                    yield left.pop(running[future]), future.result()
        except BrokenProcessPool:
            pass  # while units were handed out
        finally:
            pool.shutdown(cancel_futures=True)
        losses = losses + 1 if len(left) == before else 0  # in a row, with nothing done between
    yield from ((unit, Failed("the worker process died each time")) for unit in left.values())


# --- Ray


class _Actor:
    """A process of the cluster; `open` gives it the task, and with it the model."""

    def open(self, task: Any) -> None:
        torch.set_num_threads(1)
        self.task = task

    def run(self, unit: Any) -> Any:
        return _tried(self.task, unit)


def _by_ray(task: Any, units: Sequence[Any], work: Work) -> Iterator[tuple[Any, Any]]:
    with _cluster(work) as ray:
        count = min(work.workers or int(ray.cluster_resources().get("CPU", 1)) or 1, len(units))
        kind, shared = ray.remote(num_cpus=1, max_restarts=-1)(_Actor), ray.put(task)
        opening = {"max_task_retries": -1}  # Ray starts a lost actor again, here or elsewhere
        waiting, losses, idle = deque(range(len(units))), Counter[int | None](), list[Any]()
        busy: dict[Any, tuple[Any, int | None]] = {}
        for actor in [kind.remote() for _ in range(count)]:
            busy[actor.open.options(**opening).remote(shared)] = actor, None
        left = len(units)
        while left:
            while idle and waiting:
                actor, unit = idle.pop(), waiting.popleft()
                busy[actor.run.remote(units[unit])] = actor, unit
            (reference,), _ = ray.wait(list(busy), num_returns=1)
            actor, number = busy.pop(reference)
            try:
                result = ray.get(reference)
                idle.append(actor)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except ray.exceptions.RayError:
                busy[actor.open.options(**opening).remote(shared)] = actor, None
                losses[number] += 1
                if number is not None and losses[number] < _LOSSES:
                    waiting.append(number)
                    continue
                result = Failed(f"{_LOSSES} workers were lost while they computed it")
            if number is not None:
                left -= 1
                yield units[number], result


def check_engine(work: Work) -> None:
    """Refuse at once an engine that cannot begin: Ray itself would try for minutes where nothing listens."""
    if work.engine != "ray":
        return
    try:
        import ray
    except ImportError as error:
        raise ValueError("the engine ray needs Ray. Install it with pip install 'ehd-hf[ray]'.") from error
    host, _, port = (_address(work) or "").removeprefix("ray://").rpartition(":")
    if not ray.is_initialized() and port.isdecimal():
        try:
            socket.create_connection((host, int(port)), _SECONDS_TO_REACH).close()
        except OSError as error:
            raise _no_cluster(work, error) from error


def _address(work: Work) -> str | None:
    return work.address or os.environ.get("RAY_ADDRESS")


def _no_cluster(work: Work, error: BaseException) -> ValueError:
    place = _address(work) or "this machine"
    return ValueError(f"no Ray cluster answers at {place}: {error}. Start it, or name another.")


@contextmanager
def _cluster(work: Work) -> Iterator[Any]:
    """Ray, connected to the cluster that is asked for, to the one this process is connected to, or to its own."""
    check_engine(work)
    import ray

    if ray.is_initialized():
        yield ray
        return
    address = _address(work)
    own: dict[str, Any] = {
        "num_cpus": work.workers or os.cpu_count(),
        "include_dashboard": False,
        "object_store_memory": _OBJECT_STORE,
    }
    try:
        ray.init(
            address=address or "local", log_to_driver=False, logging_level=logging.ERROR, **({} if address else own)
        )
    except (ConnectionError, RuntimeError, SystemExit) as error:
        raise _no_cluster(work, error) from error
    try:
        yield ray
    finally:
        ray.shutdown()
