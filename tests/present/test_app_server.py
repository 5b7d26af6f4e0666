"""The app's server, asked by programs over HTTP and by people in a browser; one server for all tests."""

import base64
import json
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pandas as pd
import pytest

from ehd_hf.app import UPLOAD, Asked, Service, open_models
from ehd_hf.explain.explainer import load_example
from explanations import HOSTILE


@pytest.fixture(scope="module")
def app_url(tmp_path_factory):
    """Address of the app in a process of its own, as people start it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log, url = tmp_path_factory.mktemp("app") / "log.txt", f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "ehd_hf.cli", "app", "--port", str(port)]
    with open(log, "wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT) as server:
        try:
            deadline = time.monotonic() + 180
            while "in a browser" not in log.read_text():
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield url
        finally:
            server.terminate()


# --- by programs


def ask(url, asked):
    """The last event of the server's answer, "complete" or "error", and its JSON."""
    with httpx.Client(base_url=f"{url}/gradio_api/call", timeout=60) as client:
        begun = client.post("/explain", json={"data": list(asked)})
        begun.raise_for_status()
        event, data = client.get(f"/explain/{begun.json()['event_id']}").text.strip().split("\n")[-2:]
    return event.removeprefix("event: "), data.removeprefix("data: ")


def test_thirty_questions_at_once_get_each_its_own_answer(app_url):
    service = Service(open_models("incidents"))
    asked = [
        Asked(
            model=["incidents", "incidents-paper"][number % 2],
            split=6 + number % 23,
            target=["share", "epsilon", "size"][number % 3],
            size=1 + number % 4,
            conditioning=["survival", "paper"][number // 2 % 2],
        )
        for number in range(30)
    ]
    alone = [service.explain(question).to_dict() for question in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda question: ask(app_url, question), asked))
    assert len({json.dumps(answer) for answer in alone}) > 25
    assert {event for event, _ in answers} == {"complete"}
    assert [json.loads(json.loads(data)[1]) for _, data in answers] == alone


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"upload": {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}}, "null"),
        ({"upload": {"path": "https://example.org/e.csv", "meta": {"_type": "gradio.FileData"}}}, "must be uploaded"),
        ({"model": "somebody/else"}, "not in the list of choices"),
    ],
)
def test_the_server_opens_no_other_file_address_or_model(app_url, change, sentence):
    event, data = ask(app_url, Asked(source=UPLOAD, **change))
    assert event == "error" and sentence in data and "root:" not in data


def test_more_than_a_file_may_have_is_cut_off(app_url):
    as_json = {"headers": {"content-type": "application/json"}}
    for address, words, body in (
        ("upload", "50 MB", {"files": {"files": ("events.csv", b"x" * 51_000_000)}}),
        ("call/explain", "50 MB", {"content": b'"' + b"x" * 51_000_000 + b'"', **as_json}),
        ("call/explain", "400,000 lists", {"content": b"[" + b"[]," * 10**7 + b"[]]", **as_json}),
    ):
        refused = httpx.post(f"{app_url}/gradio_api/{address}", timeout=60, **body)
        assert refused.status_code == 413 and f"up to {words}" in refused.text


# --- by people


@pytest.fixture
def visit(open_page, app_url):
    def opened(**options):
        page = open_page(app_url, height=1600, **options)
        page.answer = page.frame_locator("iframe.answer")
        page.answer.locator("#window-chart .dot").first.wait_for()
        return page

    return opened


def says(page, pattern):
    """Waits until the explanation says so."""
    page.answer.locator("#detail-text p").first.filter(has_text=re.compile(pattern)).wait_for()


def problem(page):
    return page.get_by_role("alert").inner_text()


def test_the_example_is_explained_at_once_and_controls_have_names(visit):
    page = visit()
    says(page, "^6 of 25 past events explain the 5 that followed: deploy at 2026-03-02 14:10:44")
    assert page.answer.locator("#window-chart .dot").count() == 30
    assert page.answer.locator("#tradeoff-chart svg").count() == 1
    roles = page.answer.locator("#events-table tbody tr td:nth-child(4)").all_inner_texts()
    assert [roles.count(role) for role in ("distilled", "left", "what followed")] == [6, 19, 5]
    page.wait_for_function("document.querySelector('iframe.answer').clientHeight > 1000")
    assert page.locator("iframe.answer").get_attribute("sandbox") == "allow-scripts"
    link = page.get_by_role("link", name="Download as JSON")
    kind, _, data = link.get_attribute("href").partition(",")
    assert kind == "data:application/json;base64" and link.get_attribute("download") == "explanation.json"
    assert len(json.loads(base64.b64decode(data))["distilled"]) == 6
    for role, name in (
        ("combobox", "Model"),
        ("slider", "Events after it to explain"),
        ("slider", "Share"),
        ("radio", "Pasted table"),
        ("heading", "Which past events explain what followed?"),
    ):
        assert page.get_by_role(role, name=name).count() == 1, name
    unnamed = page.evaluate(
        """[...document.querySelectorAll('main button, main input, main select, main textarea, main iframe')]
        .filter((e) => e.checkVisibility() && !(e.labels?.length || e.getAttribute('aria-label') || e.title
            || e.getAttribute('aria-labelledby') || e.textContent.trim())).map((e) => e.outerHTML)"""
    )
    assert unnamed == []


def test_the_split_and_the_target_change_the_answer_by_keyboard(visit):
    page = visit()
    for _ in range(3):
        page.get_by_role("slider", name="The history ends after event").press("ArrowLeft")
    says(page, "of 22 past events explain")
    page.get_by_role("radio", name="Number of events").check()
    says(page, "^3 of 22 past events")
    page.get_by_role("radio", name="As in the paper").check()
    page.get_by_role("slider", name="Events before it to look at").press("ArrowLeft")
    says(page, "^3 of 22 past events")


def test_an_upload_is_read_and_its_sequences_can_be_chosen(visit, tmp_path):
    frame, file = load_example(), tmp_path / "events.csv"
    pd.concat([frame.assign(host="<b>one</b>"), frame[:20].assign(host="two")]).to_csv(file, index=False)
    page = visit()
    page.get_by_role("radio", name="File").check()
    page.get_by_role("alert").wait_for()
    assert "choose a file with one row per event" in problem(page)
    page.locator("input[type=file]").set_input_files(file)
    says(page, "of 25 past events explain the 5 that followed in sequence <b>one</b>")
    assert "50 events of 2 sequences." in page.locator(".notes").inner_text()
    page.get_by_label("Sequence", exact=True).click()
    page.get_by_role("option", name="two").click()
    says(page, "of 15 past events .* in sequence two")


def test_a_bad_upload_is_answered_with_our_sentence(visit, tmp_path):
    file = tmp_path / "<img src=x onerror=alert(1)>.csv"
    file.write_text(f"when,what\n1,{HOSTILE[0]}\n2,{HOSTILE[2]}\n")
    page = visit()
    page.get_by_role("radio", name="File").check()
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_role("alert").filter(has_text="Mark column").wait_for()
    assert "which column says what happened? The columns are when, what." in problem(page)
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("Mark column").fill("what")
    page.keyboard.press("Tab")
    page.get_by_role("alert").filter(has_text="does not know 2 of these marks").wait_for()
    assert HOSTILE[0] in problem(page)
    assert page.evaluate("window.stolen") is None and page.locator("#answer img, #answer script").count() == 0
    assert page.get_by_role("link", name="Download as JSON").count() == 0
