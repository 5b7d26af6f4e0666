"""Reports: which windows are drawn, what they say together, and that no string of the data becomes markup."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
import torch

import ehd_hf
from ehd_hf.evaluation.scores import OURS
from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.explanation import Windows
from ehd_hf.present.pages import explanation_page, fragment, list_entry, window_data
from ehd_hf.present.report import draw_windows, judge_process, report_html, summarize, write_report
from explanations import HOSTILE, MARKS, MOMENT, made
from helpers import AdditiveMTPP, PoissonMTPP, from_lists, largest_file

VOID = {"meta", "link", "img", "input", "br", "hr"}
NUMBERS = {mark: index for index, mark in enumerate(MARKS)}
LABELS = dict(enumerate(MARKS))


class Page(HTMLParser):
    """What a browser would make of a page: elements with attributes, and their text; all must be closed."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open, self.texts = [], [], {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def data(self):
        return json.loads(self.texts["script"][0])


def sequences(lengths=(12, 5, 30, 3), marks=MARKS, starts=None):
    generator = np.random.default_rng(0)
    times = [generator.exponential(size=count).cumsum() for count in lengths]
    kinds = [generator.integers(len(marks), size=count) for count in lengths]
    return from_lists(times, kinds, id2label=dict(enumerate(marks)), starts=starts)


def additive(marks=MARKS, **options):
    """Explains by a process in which events of even number bring one another about."""
    weight = torch.zeros(len(marks), len(marks))
    weight[::2, ::2] = 1.5
    model = AdditiveMTPP([0.2] * len(marks), weight)
    model.config.id2label = dict(enumerate(marks))
    model.config.label2id = {label: mark for mark, label in enumerate(marks)}
    return EHDDistiller(model, **options)


# --- which windows


def test_a_whole_history_makes_a_window_and_a_short_sequence_is_one():
    events = sequences(starts=[-1.0, -2.0, np.nan, 0.0])
    windows, num_possible = draw_windows(events, future=3, history=6, size=1000)
    # 12 events: ends 9..12; 5: all of it; 30: ends 9..30; 3: nothing but future.
    assert num_possible == 4 + 1 + 22 == len(windows.first)
    assert windows.sequence.tolist() == [0] * 4 + [1] + [2] * 22
    assert windows.offset[:5].tolist() == [0, 1, 2, 3, 0] and windows.lengths[:5].tolist() == [9, 9, 9, 9, 5]
    assert (windows.first == events.offsets[windows.sequence] + windows.offset).all()
    # The clock starts at the event before, at the known start, or else at the window's own first event.
    first_times = events[0][0]
    assert windows.origins[:6].tolist() == [-1.0, *first_times[:3], -2.0, events[2][0][0]]


def test_a_window_is_explained_as_its_sequence_would_be_up_to_there():
    events, explainer = sequences(), additive(share=0.5)
    windows, _ = draw_windows(events, future=2, history=7, size=9, seed=1)
    answers = explainer.explain_windows(Windows.of(events, windows), explainer.question())
    for answer, sequence, end in zip(answers, windows.sequence, windows.offset + windows.lengths, strict=True):
        until = [[values[:end]] for values in events[sequence]]
        alone = explainer.explain(from_lists(*until, id2label=LABELS), future=2, history=7)
        assert answer.distill_mask == alone.distill_mask and answer.dppl_left == pytest.approx(alone.dppl_left)
        assert [event.time for event in answer.history] == [event.time for event in alone.history]


def test_a_draw_repeats_itself_in_the_order_of_the_data():
    events = sequences((40, 50))
    one, same, other = (draw_windows(events, 3, 6, 11, seed)[0].first.tolist() for seed in (0, 0, 1))
    assert len(one) == 11 and sorted(one) == one == same != other


def test_windows_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(ValueError, match="longer than the future of 40 events; the longest of 4 has 30. Ask for a"):
        draw_windows(sequences(), future=40, history=5, size=3)
    out = tmp_path / "report.html"
    with pytest.raises(ValueError, match="Say how many of the last events to explain.*Pass future=5"):
        write_report(additive(), sequences(), out)
    with pytest.raises(ValueError, match="max_explanations must be at least 1; got 0"):
        write_report(additive(), sequences(), out, future=2, max_explanations=0)
    assert not out.exists()


# --- what they say together


def test_the_summary_of_two_windows_by_hand():
    # Distilled of 5: the events 2 and 4 (the last); of 2 (a shorter history): both.
    first = replace(made(5, 2), distill_mask=(False, False, True, False, True))
    summary = summarize([first, made(2, 2)], [0, 1], MARKS)
    assert summary["sizes"] == [0.0, 0.0, 1.0, 0.0, 0.0, 0.0] and summary["median"] == 2
    assert summary["reach"]["share"] == [1.0, 0.5, 1.0, 0.0, 0.0]  # only one window has a third last event
    assert summary["reach"]["recent"] == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert summary["last_share"] == 3 / 4 and summary["is_most_recent"] == 1 / 2
    assert summary["met"] == summary["certified"] == 1.0 and summary["nothing"] == 0.0
    shares = {row["label"]: row for row in summary["mark_shares"]}
    assert shares["deploy"]["num_events"] == 2 and shares["deploy"]["share"] == 1 / 2
    assert shares["deploy"]["expected"] == pytest.approx((2 / 5 + 1) / 2)
    nothing = summarize([replace(made(), distill_mask=(False,) * 7)], [0], MARKS)
    assert nothing["last_share"] is None and nothing["sizes"][0] == 1.0


def test_the_process_is_judged_beside_trivial_ones_on_the_same_events():
    events = sequences((40, 30))
    rows, note = judge_process(additive(), events)
    assert [row["model"] for row in rows][::3] == ["Poisson + unigram", OURS] and "chosen_from" in rows[2]
    assert {row["num_events"] for row in rows} == {68} and all(len(row["qq"]) == 99 for row in rows)
    assert "fitted to these very events, which flatters them" in note
    assert "flatters" not in judge_process(additive(), events, train=events)[1]


def test_a_process_is_judged_where_a_trivial_model_does_not_exist():
    even = from_lists([[1.0, 2.0, 3.0]], [[0, 1, 0]], id2label=LABELS)
    rows, _ = judge_process(additive(), even)  # no gamma distribution for equal intervals
    assert [row["model"].split(" + ")[0] for row in rows] == ["Poisson"] * (len(rows) - 1) + [OURS]
    assert judge_process(additive(), from_lists([[1.0]], [[0]], id2label=LABELS)) == ([], "")


def test_large_data_is_judged_on_some_of_its_sequences(monkeypatch):
    monkeypatch.setattr("ehd_hf.present.report.MAX_SCORED_EVENTS", 50)
    rows, note = judge_process(additive(), sequences((30,) * 6))
    assert rows[-1]["num_events"] == 58 and note.startswith("Scored on 60 events, 2 of 6 sequences.")


# --- the page


@pytest.fixture(scope="module")
def bundled(tmp_path_factory):
    """The report of the bundled example."""
    explainer = ehd_hf.EHDDistiller.from_pretrained("incidents")
    file = tmp_path_factory.mktemp("report") / "deep" / "report.html"
    for _ in range(2):  # a report repeats itself
        before = file.read_text(encoding="utf-8") if file.exists() else None
        assert write_report(explainer, ehd_hf.load_example(), file, history=10, share=0.5, title="Why?") == file
    assert file.read_text(encoding="utf-8") == before
    return before


def test_a_report_is_one_well_formed_file_that_asks_for_nothing(bundled):
    page = Page(bundled)
    assert not [tag for tag, _ in page.elements if tag in ("iframe", "object", "embed", "base")]
    for tag, attributes in page.elements:
        for name in ("src", "href", "srcset", "action", "poster", "data"):
            assert (attributes.get(name) or "#").startswith(("#", "data:,")), (tag, attributes)
        assert "style" not in attributes and not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"@import|url\(", bundled)
    assert len(page.texts["script"]) == 2 and page.texts["title"] == ["Why?"]
    (policy,) = [a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy"]
    for kind, text in (("script", page.texts["script"][1]), ("style", page.texts["style"][0])):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy


def test_a_report_says_how_good_the_model_is_and_what_the_windows_say(bundled):
    page = Page(bundled)
    words = " ".join(text for texts in page.texts.values() for text in texts)
    for text in ("Poisson + unigram", "Gamma + bigram", "this model", "Target met", "Among the most recent"):
        assert text in words
    assert "30 events of 9 kinds in 1 sequence." in words and "50% of what the whole history explains is lost" in words
    data = page.data
    assert len(data["explanations"]) == 16 and data["moments"] and len(data["calibration"]) == 3  # 30 - 15 + 1
    assert data["explanations"][0]["name"] == "Events 1 to 15 of 30"
    assert len(data["sizes"]) == 11 and sum(data["sizes"]) == pytest.approx(1, abs=1e-3)
    labels = {a["for"] for a in page.all("label") if "for" in a}
    named = {a["id"] for tag in ("select", "input") for a in page.all(tag) if "id" in a}
    assert {"search", "status", "mark", "recency", "sort", "intensity-mark"} <= labels & named


def test_a_model_is_judged_by_unseen_events_and_failure_keeps_the_file(tmp_path):
    out, events = tmp_path / "report.html", sequences((40, 30, 20))
    write_report(additive(), events, out, future=1, history=5, test=events.select([2]), train=events.select([0]))
    before = out.read_text(encoding="utf-8")
    assert "Scored on 20 events of 1 sequence. The model was not trained on these." in before
    with pytest.raises(OSError), largest_file(1000):
        write_report(additive(), events, out, future=1, history=5)
    assert out.read_text(encoding="utf-8") == before and [path.name for path in tmp_path.iterdir()] == [out.name]


def test_windows_may_have_the_whole_history(tmp_path):
    out = write_report(additive(), sequences(), tmp_path / "r.html", future=2, history="all", max_explanations=9)
    data = Page(out.read_text(encoding="utf-8")).data
    assert [len(one["times"]) for one in data["explanations"]] == [12, 5, 30, 3] and not data["moments"]


def test_a_model_that_knows_nothing_is_called_so(tmp_path):
    poor = PoissonMTPP([50.0] * 5)
    poor.config.id2label = LABELS
    events = sequences((250, 130))
    text = write_report(EHDDistiller(poor), events, tmp_path / "r.html", future=2, max_explanations=5).read_text()
    assert "the point process predicts no better than" in text and "poorly calibrated" in text
    assert "the target was not met" in text and "history explains nothing" in text
    few = write_report(EHDDistiller(poor), sequences((9, 8)), tmp_path / "few.html", future=2).read_text()
    assert "with 15 events to predict there are too few to judge" in few and "no better than" not in few


def test_a_table_with_timestamps_is_reported_on_by_its_own_clock(tmp_path):
    times = pd.date_range("2026-03-01", periods=9, freq="7min").tolist() * 2
    frame = pd.DataFrame({"seq_id": ["web"] * 9 + ["db"] * 9, "time": times, "mark": (list(MARKS) * 4)[:18]})
    explainer = additive(share=0.5)
    explainer.mtpp.config.time_unit = "h"
    data = Page(write_report(explainer, frame, tmp_path / "r.html", future=2, history=5).read_text()).data
    assert data["moments"] and data["unit"] == "h"
    assert {one["name"] for one in data["explanations"]} == {"Sequence web", "Sequence db"}
    first = data["explanations"][0]
    assert first["start"] == pd.Timestamp("2026-03-01").timestamp() * 1000
    assert first["times"][:3] == [0, 420_000, 840_000] and first["where"] == "events 1 to 7 of 9"


# --- hostile names


def scripts_of(text):
    return re.findall(r"<script[^>]*>", text)


def test_no_name_becomes_markup(tmp_path):
    events = replace(sequences((12, 9, 8), marks=HOSTILE), seq_ids=(HOSTILE[0], HOSTILE[3], HOSTILE[7]))
    options = {"future": 2, "history": 6, "title": HOSTILE[1]}
    file = write_report(additive(HOSTILE, share=0.5), events, tmp_path / "report.html", **options)
    text = file.read_text(encoding="utf-8")
    page = Page(text)
    assert scripts_of(text) == ['<script type="application/json" id="data">', "<script>"] and not page.all("img")
    assert not [a for _, a in page.elements if any(name.startswith("on") for name in a)]
    assert page.texts["title"] == [HOSTILE[1]] and page.texts["h1"] == [HOSTILE[1]]
    assert page.data["marks"] == list(HOSTILE)  # as they are, character for character
    assert {HOSTILE[0], HOSTILE[1], HOSTILE[2], HOSTILE[4]} <= set(page.texts["th"])  # the table of marks
    assert max(len(text) for text in page.texts["span"]) <= 121
    block = text.split('id="data">')[1].split("</script>")[0]
    assert not set("<>&") & set(block) and len(block) > 1000


@pytest.mark.parametrize("moments", [False, True])
def test_one_explanation_is_a_page_of_its_own(moments):
    page = Page(made(marks=HOSTILE, moments=moments, seq_id=HOSTILE[0]).to_html(title=HOSTILE[2]))
    assert page.texts["h1"] == [HOSTILE[2]] and page.texts["h2"] == [f"Sequence {HOSTILE[0]}"]
    assert len(page.data["explanations"]) == 1


def test_a_notebook_gets_a_picture_and_text_without_script():
    explanation = made(marks=HOSTILE[:6], seq_id=HOSTILE[0])
    text = explanation._repr_html_()
    page = Page(text)
    (image,) = page.all("img")
    assert base64.b64decode(image["src"].removeprefix("data:image/png;base64,")).startswith(b"\x89PNG")
    assert "past events explain" in image["alt"] and not scripts_of(text) and text == fragment(explanation)
    assert "".join(page.texts["p"]).startswith("2 of 7 past events explain")


# --- the numbers in it


def test_the_data_of_a_window_is_what_the_explanation_holds():
    explanation = made(moments=True)
    data = window_data(explanation, NUMBERS, "name", "where")
    assert data["start"] == MOMENT.astype("datetime64[ms]").astype(int)
    assert data["times"] == [4_500_000 * i for i in range(11)] and data["future"] == 4
    assert data["marks"] == [i % 5 for i in range(11)] and data["distilled"] == [2, 5]
    assert data["scores"] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    assert data["reached"] == 0.75 and data["target"] == pytest.approx(0.7) and data["isShare"]
    assert data["curve"] == pytest.approx(explanation.tradeoff()["explained_share"], abs=1e-4)
    assert data["kinds"] == ["certified", "met"] and data["recent"] is False and data["lastShare"] == 0.5


def test_shares_of_next_to_nothing_are_not_drawn_as_shares():
    data = window_data(made(dppl_empty=-0.001), NUMBERS, "", "")
    assert not data["isShare"] and data["curve"][-1] == -2.0
    assert data["reached"] == 1 and list_entry(data)["said"] == "2 of 7 events, 100% explained"


def test_curves_survive_their_packing():
    explanation = made()
    packed, curves = window_data(explanation, NUMBERS, "", "")["intensity"], explanation.intensity
    values, places = (np.frombuffer(base64.b64decode(packed[key][2:]), "<u2") / 65535 for key in ("values", "places"))
    rows, split = values.reshape(2 * len(packed["scales"]), -1), packed["numHistory"]
    np.testing.assert_allclose(rows[0] * packed["scales"][0], curves.whole, atol=1e-3)
    np.testing.assert_allclose(rows[3] * packed["scales"][1], curves.left_by_mark[0], atol=1e-3)
    np.testing.assert_allclose(places[:split] * 7.5, curves.times[:split], atol=1e-3)
    np.testing.assert_allclose(7.5 + places[split:] * 5.0, curves.times[split:], atol=1e-3)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), float("inf")])
def test_numbers_that_json_has_not_are_left_out(value):
    text = explanation_page(made(dppl_left=value, dppl_empty=value, curve=(0.0, value, *(-1.0,) * 6)))
    assert Page(text).data["explanations"][0]["left"] is None


def test_two_hundred_explanations_stay_below_three_megabytes():
    explanations = [made(40, 15, moments=True, seq_id=f"user {number}") for number in range(200)]
    events = sequences((60,) * 200)
    text = report_html(events, *draw_windows(events, 15, 40, 200), explanations)
    assert Page(text) and len(text) < 3_000_000
