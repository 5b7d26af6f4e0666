"""Pages in a real browser: nothing is fetched, nothing is complained about, and everything can be done by keyboard."""

from dataclasses import replace

import numpy as np
import pytest

from ehd_hf.present.report import draw_windows, report_html
from explanations import HOSTILE, MARKS, made
from helpers import from_lists

CALIBRATION = [
    {"model": name, "nll": nll, "time_nll": 1.0, "mark_nll": nll - 1, "ks": 0.05, "num_events": 60}
    | {"qq": np.quantile(np.random.default_rng(seed).exponential(size=500), np.arange(1, 100) / 100).tolist()}
    for seed, (name, nll) in enumerate([("Poisson + unigram", 3.0), ("Gamma + bigram", 2.5), ("this model", 2.0)])
]


def report(explanations, marks, title="A report"):
    """A report of explanations made by hand, one sequence each."""
    times = [np.arange(len(one.history) + len(one.future)) for one in explanations]
    events = from_lists(times, [0 * one for one in times], id2label=dict(enumerate(marks)))
    windows = draw_windows(events, len(explanations[0].future), 10**4, len(explanations))
    return report_html(events, *windows, explanations, CALIBRATION, title=title)


@pytest.fixture(scope="module")
def varied_report():
    """A report of twelve explanations that differ in size, mark, status and recency."""
    changes = {3: {"status": "explains_nothing", "dppl_empty": 0.2}, 5: {"intensity": None, "curve": None}}
    changes[4] = {"distill_mask": (False,) * 9 + (True,) * 2}
    marks = (MARKS[:3], MARKS)
    users = [made(7 + number, 4, marks=marks[number % 2], seq_id=f"user {number:02d}") for number in range(12)]
    return report([replace(one, **changes.get(number, {})) for number, one in enumerate(users)], MARKS)


def names(page):
    return page.locator("#explanations-list li:visible .name").all_inner_texts()


def tip(page):
    return page.locator(".tip").inner_text().splitlines()


def focused(page):
    """Id, text or tag of what has the focus."""
    named = "const e = document.activeElement; return e.id || e.textContent.trim().slice(0, 30) || e.tagName"
    return page.evaluate(f"(() => {{ {named} }})()")


def title(page):
    return page.locator("#detail-title").inner_text()


# --- the report


def test_a_report_draws_everything_at_any_width(visit, varied_report):
    page = visit(varied_report)
    assert page.title() == "A report"
    for chart in ("calibration", "sizes", "reach", "marks"):
        drawing = page.locator(f"#{chart}-chart svg[role=img]")
        assert drawing.count() == 1 and len(drawing.get_attribute("aria-label")) > 20
        assert drawing.bounding_box()["height"] > 100
    # The curves: with and without, in the past and the future.
    for part, count in (("window-chart .dot", 11), ("window-chart .dot.distilled", 2), ("window-chart .curve", 4)):
        assert page.locator(f"#{part}").count() == count, part
    assert page.locator("#tradeoff-chart svg").count() == 1 and title(page) == "Sequence user 00"
    assert page.locator("#detail-text p").first.inner_text().startswith("2 of 7 past events explain")
    for width in (320, 390, 800, 1600):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_function("document.querySelector('#window-chart svg').clientWidth <= innerWidth")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width


def test_explanations_are_filtered_sorted_and_searched(visit, varied_report):
    page = visit(varied_report)
    assert len(names(page)) == 12
    page.fill("#search", "USER 07")
    assert names(page) == ["Sequence user 07"]
    assert page.locator("#shown-count").inner_text() == "1 of 12 explanations"
    page.fill("#search", "nobody at all")
    assert names(page) == [] and page.locator("#none-found").is_visible()
    page.get_by_role("button", name="Reset").click()
    assert len(names(page)) == 12 and page.locator("#none-found").is_hidden()
    for control, value, user in (("#status", "explains_nothing", "03"), ("#recency", "recent", "04")):
        page.select_option(control, value)
        assert names(page) == [f"Sequence user {user}"]
        page.select_option(control, "")
    for order, user in (("most", "11"), ("fewest", "00")):
        page.select_option("#sort", order)
        assert names(page)[0] == f"Sequence user {user}"
    page.select_option("#mark", label="ticket")
    shown = names(page)
    assert 0 < len(shown) < 12 and all(int(name[-2:]) % 2 for name in shown)  # only odd ones have tickets


def test_an_explanation_opens_by_click_by_step_and_by_address(visit, varied_report):
    page = visit(varied_report)
    assert page.locator("#previous").is_disabled()
    page.locator("#explanations-list a").nth(2).click()
    assert title(page) == "Sequence user 02"
    assert page.url.endswith("#explanation-3") and focused(page) == "detail-title"
    assert page.locator("#explanations-list a[aria-current]").count() == 1
    page.locator("#next").click()
    assert title(page) == "Sequence user 03"
    page.locator("#previous").click()
    page.locator("#previous").click()
    assert title(page) == "Sequence user 01"
    page.evaluate("location.hash = '#explanation-12'")
    page.wait_for_function("document.getElementById('detail-title').textContent === 'Sequence user 11'")
    assert page.locator("#next").is_disabled()
    page.fill("#search", "user 05")  # steps stay within what is shown
    page.locator("#next").click()
    assert title(page) == "Sequence user 05"
    assert page.locator("#tradeoff-chart").is_hidden() and page.locator("#window-chart .curve").count() == 0


def test_what_removing_does_can_be_seen(visit, varied_report):
    page = visit(varied_report)
    assert page.locator("#intensity-mark option").all_inner_texts() == ["all marks", "check", "alert", "deploy"]
    page.select_option("#intensity-mark", label="alert")
    assert page.locator("#window-chart .title", has_text="expected events per hour: alert").count() == 1
    page.check("#remove")
    assert page.locator("#window-chart .dots.removed").count() == 1
    assert page.locator("#window-chart .curve.whole.faded").count() == 2
    page.check("#evenly")
    assert page.locator("#window-chart .title", has_text="evenly spaced events").count() == 2
    before = page.locator("#window-chart .curve.whole").first.get_attribute("d")
    page.check("#logarithmic")
    assert page.locator("#window-chart .curve.whole").first.get_attribute("d") != before
    for _ in range(2):
        page.locator("#first-events").press("ArrowRight")
    assert page.locator("output").inner_text() == "4 events: 76% explained"
    assert page.locator("#window-chart .dot.first").count() == 4


def test_pointing_at_an_event_or_a_curve_says_what_it_is(visit, varied_report):
    page = visit(varied_report)
    page.locator("#window-chart").scroll_into_view_if_needed()
    page.locator("#window-chart .dot.distilled").last.hover(force=True)  # small ones lie over large ones
    assert tip(page) == ["alert", "2.5 h", "distilled; score 0.3, rank 5 of 7"]
    page.locator("#window-chart .dot.future").first.hover(force=True)
    assert tip(page)[2] == "what followed, event 1 of 4"
    box = page.locator("#window-chart .future .face").nth(1).bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    lines = tip(page)
    assert lines[0].endswith(" h") and lines[1].startswith("whole history: ") and lines[2].startswith("without the")
    page.mouse.move(5, 5)
    assert page.locator(".tip").is_hidden()


def test_all_of_it_works_by_keyboard(visit, varied_report):
    page = visit(varied_report)
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the explanations"
    page.keyboard.press("Enter")
    order = []
    for _ in range(40):
        page.keyboard.press("Tab")
        order.append(focused(page))
    expected = ["search", "status", "mark", "recency", "sort", "Reset"]
    expected += ["next", "intensity-mark", "remove", "evenly", "logarithmic", "first-events"]
    places = [order.index(name) for name in expected]
    assert places == sorted(places)
    # In the list, arrows move and Enter opens.
    page.locator("#explanations-list a").first.focus()
    for key in ("ArrowDown", "End", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    assert title(page) == "Sequence user 10" and focused(page) == "detail-title"
    # In the picture, left and right go through all events, up and down through the distilled ones.
    chart = page.get_by_role("slider", name="Events of this window")
    chart.focus()
    assert tip(page)[0] == chart.get_attribute("aria-valuetext").split(", ")[0]
    for key, now, text in (("Home", "1", "left in"), ("ArrowDown", "3", "distilled"), ("End", "21", "what followed")):
        page.keyboard.press(key)
        assert chart.get_attribute("aria-valuenow") == now and text in chart.get_attribute("aria-valuetext")
    page.keyboard.press("Escape")
    assert page.locator(".tip").is_hidden()


def test_a_screen_reader_finds_landmarks_headings_and_names(visit, varied_report):
    page = visit(varied_report)
    for role, name in (("navigation", "Parts of this report"), ("search", "Filter explanations")):
        assert page.get_by_role(role, name=name).count() == 1
    for role in ("banner", "main", "contentinfo"):
        assert page.get_by_role(role).count() == 1
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3, h4')].map((e) => Number(e.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(levels, levels[1:], strict=False))
    unnamed = page.evaluate(
        """[...document.querySelectorAll('a, button, input, select, [role=slider], [role=img], [role=region]')]
        .filter((e) => !(e.labels?.length || e.getAttribute('aria-label') || e.textContent.trim())).length"""
    )
    assert unnamed == 0
    for image in page.locator("svg:not([role=img])").all():
        assert image.get_attribute("aria-hidden") == "true"
    page.locator("#events-table summary").click()
    rows = page.locator("#events-table tbody tr")
    rows.first.wait_for()
    assert rows.count() == 11 and rows.nth(2).locator("td").all_inner_texts()[1:4] == ["2.5 h", "alert", "distilled"]
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((e) => e.id)")
    assert len(ids) == len(set(ids))


def luminance(colour):
    """Relative luminance of "rgb(r, g, b)", as WCAG has it."""
    channels = np.array([float(part) for part in colour.split("(")[1].rstrip(")").split(",")[:3]]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_shapes_stand_out_in_light_and_dark(visit, varied_report, scheme):
    page = visit(varied_report, scheme=scheme)

    def style(selector, name):
        return luminance(page.eval_on_selector(selector, f"(e) => getComputedStyle(e).{name}"))

    def contrast(one, other):
        return (max(one, other) + 0.05) / (min(one, other) + 0.05)

    ground = style("body", "backgroundColor")
    assert (ground > 0.5) == (scheme == "light")
    for least, name, selectors in (
        (4.5, "color", ("body", ".soft", "nav a", "label")),
        (4.5, "fill", ("svg .tick",)),
        (3, "fill", ("#window-chart .dot.distilled", "#window-chart .dot.future")),
        (3, "stroke", ("#window-chart .dot.left", "#window-chart .curve.whole", "#window-chart .curve.without")),
    ):
        for selector in selectors:
            assert contrast(ground, style(selector, name)) >= least, selector


# --- names and sizes


def test_the_worst_names_are_shown_and_never_run(visit):
    explanations = [made(9, 3, marks=HOSTILE, seq_id=name, moments=True) for name in HOSTILE]
    page = visit(report(explanations, HOSTILE, title=HOSTILE[1]), width=390)
    for number in range(len(HOSTILE)):
        page.locator("#explanations-list a").nth(number).click()
        name = " ".join(f"Sequence {HOSTILE[number]}".split())
        assert page.locator("#detail-title").text_content().rstrip("…") == name[:119]
    page.locator("#events-table summary").click()
    page.locator("#events-table tbody tr").first.wait_for()
    assert HOSTILE[0] in page.locator("#events-table").text_content()
    chart = page.get_by_role("slider", name="Events of this window")
    chart.focus()
    for _ in range(12):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("window.stolen") is None
    assert page.locator("img, svg script, #detail-text script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert HOSTILE[1] == page.title()


def test_should_a_script_ever_get_in_the_policy_stops_it(browser, tmp_path, varied_report):
    thief = "<script>window.stolen = true</script><img src='https://example.org/x'>"
    broken = varied_report.replace("<h1>", f"{thief}<h1>")
    (tmp_path / "broken.html").write_text(broken, encoding="utf-8")
    page, failed = browser.new_page(), []
    page.on("requestfailed", lambda request: failed.append(request.failure))
    page.goto((tmp_path / "broken.html").as_uri())
    assert page.evaluate("window.stolen") is None and page.locator("#window-chart .dot").count() == 11
    assert all("csp" in reason.lower() for reason in failed)
    page.close()


@pytest.mark.parametrize(
    ("size", "num_marks", "moments"), [((1, 1), 1, True), ((2, 1), 1, False), ((2000, 40), 100, True)]
)
def test_windows_of_any_size_are_drawn(visit, size, num_marks, moments):
    explanation = made(*size, marks=[f"mark {number}" for number in range(num_marks)], moments=moments)
    page = visit(explanation.to_html(title="One"))
    assert page.locator("#window-chart .dot").count() == sum(size)
    lanes = page.locator("#window-chart .lane")
    assert lanes.count() == min(num_marks, 24)
    if num_marks > 24:
        assert lanes.last.text_content().startswith("77 other marks")
    page.check("#evenly")
    assert page.locator("#window-chart .dot").count() == sum(size)
    drawn = page.locator("#window-chart svg").evaluate("(e) => e.outerHTML")
    assert "NaN" not in drawn and "Infinity" not in drawn and "undefined" not in drawn


def test_events_at_the_same_time_are_drawn_and_counted(visit):
    one = made(5, 2, marks=("alert",), has_intensity=False)
    history, future = (tuple(event._replace(time=1.0) for event in events) for events in (one.history, one.future))
    page = visit(replace(one, history=history, future=future).to_html())
    assert page.locator("#window-chart .several").all_text_contents() == ["5x", "2x"]
    assert "NaN" not in page.locator("#window-chart svg").evaluate("(e) => e.outerHTML")


def test_without_script_the_numbers_are_still_there(browser, tmp_path, varied_report):
    (tmp_path / "page.html").write_text(varied_report, encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.get_by_role("row", name="this model").is_visible()
    assert page.get_by_text("The pictures need JavaScript.").is_visible()
    assert page.locator("#explanations-list li").count() == 12
    context.close()
