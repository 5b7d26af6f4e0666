"""Many clients at once, for long: does the server's memory stay, is every answer the right one, how long does it take?

    python scripts/tools/soak.py --minutes 30 --clients 50 --out results/soak.jsonl
    python scripts/tools/soak.py --minutes 30 --clients 50 --what pipeline

Ends with 1 if an answer differs from the one computed alone, a request fails or takes too long, or memory grows.
"""

from __future__ import annotations

import json
import os
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

WARM_UP = 0.25  # of the time: caches and pools fill, which is not growth
MOST_GROWTH_MB = 50.0
MOST_SECONDS = 60.0
SAMPLE_SECONDS = 2.0


def questions() -> list[dict[str, Any]]:
    """Ninety-six that differ in model, split, target and conditioning."""
    return [
        {"model": model, "split": split, "target": target, "conditioning": conditioning}
        for model in ("incidents", "incidents-paper")
        for split in range(7, 29, 3)
        for target in ("share", "epsilon", "size")
        for conditioning in ("survival", "paper")
    ]


def arguments_of(question: dict[str, Any]) -> list[Any]:
    """In the order of the page's controls."""
    values: list[Any] = [question["model"], "Example", "One incident", *[None] * 7, question["split"], 5, 25]
    return [*values, question["target"], 0.7, 0.5, 3, question["conditioning"]]


@contextmanager
def app_under_test() -> Any:
    """Process id of a server, and what asks it."""
    import httpx

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ehd_hf.cli", "app", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        limits = httpx.Limits(max_connections=None)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=2 * MOST_SECONDS, limits=limits) as client:

            def ask(question: dict[str, Any]) -> dict[str, Any]:
                begun = client.post("/gradio_api/call/explain", json={"data": arguments_of(question)})
                begun.raise_for_status()
                reply = client.get(f"/gradio_api/call/explain/{begun.json()['event_id']}").text
                event, data = reply.strip().split("\n")[-2:]
                if event != "event: complete":
                    raise RuntimeError(reply[-300:])
                return json.loads(json.loads(data.removeprefix("data: "))[1])

            try:
                while server.poll() is None:
                    try:
                        client.get("/")
                        break
                    except httpx.TransportError:
                        time.sleep(0.2)
                yield server.pid, ask
            finally:
                server.terminate()


def soak(pid: int, ask: Callable[..., Any], expected: list[Any], minutes: float, clients: int) -> dict[str, Any]:
    """Ask until the time is over; a row of what was seen."""
    import psutil

    asked, seconds, memory = questions(), [], []
    wrong: list[str] = []
    begin = time.monotonic()
    end = begin + 60 * minutes

    def client(seed: int) -> None:
        chosen = random.Random(seed)
        while time.monotonic() < end:
            number = chosen.randrange(len(asked))
            start = time.monotonic()
            try:
                if ask(asked[number]) != expected[number]:
                    wrong.append(f"another answer than alone to {asked[number]}")
            except Exception as error:  # whatever it is, it is counted
                wrong.append(f"{type(error).__name__}: {error}"[:300])
            seconds.append(time.monotonic() - start)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(clients)]
    for thread in threads:
        thread.start()
    process = psutil.Process(pid)
    while any(thread.is_alive() for thread in threads):
        memory.append((time.monotonic() - begin, process.memory_info().rss / 1e6))
        if len(memory) % 15 == 0:
            print(f"{memory[-1][0]:7.0f} s  {memory[-1][1]:7.0f} MB  {len(seconds):8,} answers  {len(wrong)} wrong")
        time.sleep(SAMPLE_SECONDS)
    after = [megabytes for when, megabytes in memory if when > WARM_UP * 60 * minutes]
    part = max(len(after) // 5, 1)  # the first and the last fifth: single samples jump
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {
        "task": "soak",
        "minutes": minutes,
        "clients": clients,
        "answers": len(seconds),
        "answers_per_second": round(len(seconds) / (60 * minutes), 2),
        "p50": round(cuts[49], 2),
        "p95": round(cuts[94], 2),
        "p99": round(cuts[98], 2),
        "max": round(max(seconds), 2),
        "mb_start": round(memory[0][1]),
        "mb_warm": round(statistics.median(after[:part])),
        "mb_end": round(statistics.median(after[-part:])),
        "mb_max": round(max(megabytes for _, megabytes in memory)),
        "wrong": len(wrong),
        "first_wrong": wrong[:3],
    }


def main(
    what: Annotated[Literal["app", "pipeline"], typer.Option(help="the server, or threads")] = "app",
    minutes: float = 30.0,
    clients: int = 50,
    out: Annotated[Path | None, typer.Option(help="JSONL to add a row to")] = None,
) -> None:
    """Ask for so long, print what was seen."""
    from transformers.utils import logging

    from ehd_hf import __version__
    from ehd_hf.app import Asked, Service, open_models
    from ehd_hf.files import append_row

    logging.disable_progress_bar()
    service = Service(open_models("incidents"))

    def alone(question: dict[str, Any]) -> dict[str, Any]:
        return json.loads(service.explain(Asked(*arguments_of(question))).to_json())

    expected = [alone(question) for question in questions()]
    with app_under_test() if what == "app" else nullcontext((os.getpid(), alone)) as (pid, ask):
        row = soak(pid, ask, expected, minutes, clients)
    row |= {"what": what, "version": __version__}
    for name, value in row.items():
        print(f"{name:>20}  {value}")
    if out:
        append_row(out, row)
    failures = [
        *([f"{row['wrong']} wrong answers"] if row["wrong"] else []),
        *([f"a request took {row['max']} s"] if row["max"] > MOST_SECONDS else []),
        *(["memory grew"] if row["mb_end"] - row["mb_warm"] > MOST_GROWTH_MB else []),
    ]
    print("; ".join(failures) or "no growth, no wrong answer, no long wait")
    raise typer.Exit(1 if failures else 0)


if __name__ == "__main__":
    typer.run(main)
