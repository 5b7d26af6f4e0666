"""The app in a real browser: it answers at once, shows names as text, and fetches nothing from elsewhere."""

import base64
import json
import re

import pandas as pd
import pytest
from test_browser import browser, luminance, pytestmark  # noqa: F401

from ehd_hf.explain.explainer import load_example

# Gradio's client warns so at every upload, which works all the same.
HARMLESS = ("Method not implemented.",)


@pytest.fixture
def visit(browser, app_url):  # noqa: F811
    """Opens the app; at the end nothing may have been complained about, or fetched from elsewhere."""
    seen, contexts = [], []

    def open_page(*, width=1280, height=1600, scheme="light", query=""):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: None if message.text in HARMLESS else seen.append(message.text))
        page.on("pageerror", lambda error: seen.append(f"error: {error}"))
        page.on("request", lambda asked: None if asked.url.startswith((app_url, "data:")) else seen.append(asked.url))
        page.goto(app_url + query)
        page.answer = page.frame_locator("iframe.answer")
        page.answer.locator("#window-chart .dot").first.wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert seen == []


def says(page, pattern):
    """Waits until the explanation says so."""
    page.answer.locator("#detail-text p").first.filter(has_text=re.compile(pattern)).wait_for()


def problem(page):
    return page.get_by_role("alert").inner_text()


def test_the_example_is_explained_at_once(visit):
    page = visit()
    says(page, "^7 of 25 past events explain the 5 that followed: deploy at 2026-03-02 14:10:44")
    assert page.answer.locator("#window-chart .dot").count() == 30
    assert page.answer.locator("#tradeoff-chart svg").count() == 1
    roles = page.answer.locator("#events-table tbody tr td:nth-child(4)").all_inner_texts()
    assert [roles.count(role) for role in ("distilled", "left", "what followed")] == [7, 18, 5]
    frame = page.locator("iframe.answer")
    page.wait_for_function("document.querySelector('iframe.answer').clientHeight > 1000")
    assert frame.get_attribute("sandbox") == "allow-scripts"
    link = page.get_by_role("link", name="Download as JSON")
    kind, _, data = link.get_attribute("href").partition(",")
    assert kind == "data:application/json;base64" and link.get_attribute("download") == "explanation.json"
    assert len(json.loads(base64.b64decode(data))["distilled"]) == 7


def test_moving_the_split_and_changing_the_target_change_the_answer_by_keyboard(visit):
    page = visit()
    split = page.get_by_role("slider", name="The history ends after event")
    split.focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    says(page, "of 22 past events explain")
    page.get_by_role("radio", name="Number of events").check()
    says(page, "^3 of 22 past events")
    page.get_by_role("radio", name="As in the paper").check()
    page.get_by_role("slider", name="Events before it to look at").focus()
    page.keyboard.press("ArrowLeft")
    says(page, "^3 of 22 past events")


def test_an_upload_is_read_and_its_sequences_can_be_chosen(visit, tmp_path):
    frame = load_example()
    both = [frame.assign(host="<b>one</b>"), frame[:20].assign(host="two")]
    file = tmp_path / "events.csv"
    pd.concat(both).to_csv(file, index=False)
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
    file.write_text(
        "when,what\n1,<script>window.stolen = true</script>\n2,<img src=x onerror='window.stolen = true'>\n"
    )
    page = visit()
    page.get_by_role("radio", name="File").check()
    page.locator("input[type=file]").set_input_files(file)
    page.get_by_role("alert").filter(has_text="Mark column").wait_for()
    assert "which column says what happened? The columns are when, what." in problem(page)
    page.get_by_role("button", name="Columns").click()
    page.get_by_label("Mark column").fill("what")
    page.keyboard.press("Tab")
    page.get_by_role("alert").filter(has_text="does not know 2 of these marks").wait_for()
    assert "<script>window.stolen = true</script>" in problem(page)
    assert page.evaluate("window.stolen") is None and page.locator("#answer img, #answer script").count() == 0
    assert page.get_by_role("link", name="Download as JSON").count() == 0


def test_light_and_dark_reach_into_the_frame_and_a_phone_has_room_enough(visit):
    for scheme, query, dark in (("light", "", False), ("dark", "", True), ("light", "/?__theme=dark", True)):
        page = visit(width=390, scheme=scheme, query=query)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        shade = "(e) => getComputedStyle(e).backgroundColor"
        frame = page.answer.locator("body")
        for _ in range(50):
            if (luminance(frame.evaluate(shade)) < 0.5) == dark:
                break
            page.wait_for_timeout(100)
        assert frame.evaluate(shade) == page.locator("gradio-app").evaluate(shade)
        assert (luminance(frame.evaluate(shade)) < 0.5) == dark


def test_every_control_has_a_name(visit):
    page = visit()
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
