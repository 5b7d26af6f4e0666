"""The app on a free port, and questions to it as any program would ask them over HTTP."""

import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx


@contextmanager
def serving(log):
    """Address of an app that runs in a process of its own, as people start it; what it prints goes to `log`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ehd_hf.cli", "app", "--port", str(port)]
    with open(log, "wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as server:
        try:
            deadline = time.monotonic() + 180
            while not _answers(url := f"http://127.0.0.1:{port}"):
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield url
        finally:
            server.terminate()


def _answers(url):
    try:
        return httpx.get(url).is_success
    except httpx.TransportError:
        return False


def ask(url, asked):
    """The last event of the server's answer, "complete" or "error", and its JSON."""
    with httpx.Client(base_url=f"{url}/gradio_api", timeout=60) as client:
        begun = client.post("/call/explain", json={"data": list(asked)})
        begun.raise_for_status()
        event, data = client.get(f"/call/explain/{begun.json()['event_id']}").text.strip().split("\n")[-2:]
    return event.removeprefix("event: "), data.removeprefix("data: ")
