"""Cards are made from rows, say where the data came from, and are checked before anybody else reads them."""

import re

import pytest
import yaml

from ehd_hf.data.export import export_windows
from ehd_hf.data.synthetic import simulated_splits
from ehd_hf.explain.explainer import CHECKPOINTS, EHDDistiller, list_pretrained
from ehd_hf.models.fullynn import FullyNNConfig, FullyNNModel
from ehd_hf.models.ranking import RankingDistillerModel
from ehd_hf.present.cards import check_card, model_card

DATA = {"license": "apache-2.0", "pretty_name": "A log", "provenance": "Drawn\nby lot.", "citation": "By nobody."}
ARGS = {"steps": 1234, "batch_size": 7, "learning_rate": 0.003, "seed": 5, "metric": "size_or_all", "out": "/tmp/x"}
TRAINING = {"args": ARGS, "steps_run": 1234, "best": {"step": 900}}
SETTING = {"data": "log", "split": "test", "pair": "5-25", "checkpoint": "abc", "num_windows": 2000}
DISTILLER = SETTING | {"task": "distiller", "ds": 1.25, "recency_ds": 1.2, "size": 6.0, "constraint_met": 0.98}
DISTILLER |= {"is_last_k": 0.25}
EXPLAINED = SETTING | {"task": "explain", "solver": "distiller", "size": 7.5, "size_low": 7.0, "size_high": 8.0}
MTPP = {"task": "mtpp", "data": "log", "split": "test", "pair": "5-25", "num_events": 4321, "checkpoint": None}
PROCESS = [
    MTPP | {"model": "Gamma + bigram", "nll": 2.5, "time_nll": 1.0, "mark_nll": 1.5, "ks": 0.1, "future_nll": 2.4},
    MTPP | {"model": "true process", "nll": 2.0, "time_nll": None, "mark_nll": None, "ks": 0.01},
    MTPP | {"model": "runs/m", "checkpoint": "def", "nll": 2.125, "ks": 0.05, "future_nll": 2.1},
]


def solver_row(task, solver, value, difference=None, **others):
    metric = "ds" if task == "ehed" else "lmhs"
    row = SETTING | {"conditioning": "paper", "batch_size": 250, "task": task, "solver": solver, "evaluations": 12.0}
    row |= {metric: value, f"{metric}_low": value - 1, f"{metric}_high": value + 1, "difference": difference}
    low, high = (None, None) if difference is None else (difference - 0.5, difference + 0.5)
    return row | {"difference_low": low, "difference_high": high} | others


@pytest.fixture(scope="module")
def model():
    return EHDDistiller.from_pretrained("incidents-paper").model


def card_of(model, rows, name="somebody/incidents", **options):
    return model_card(name, model, data=DATA, training=TRAINING, rows=rows, **options)


def parts(card):
    front, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", card, re.DOTALL).groups()
    return yaml.safe_load(front), body


def metrics(header):
    return [metric for result in header["model-index"][0]["results"] for metric in result["metrics"]]


def test_a_card_tells_what_the_model_knows_and_how_it_was_made(model):
    header, body = parts(card_of(model, [DISTILLER], commands=["train it", "twice"], dataset="somebody/log"))
    assert header["license"] == "apache-2.0" and header["datasets"] == ["somebody/log"]
    for text in (
        "Marks (9): deploy, config change",
        "Times in h.",
        "Drawn by lot.",
        "train it\ntwice",
        "1,234 steps of 7 items, seed 5; the weights are those of step 900",
        "learning_rate 0.003",
        "trained on 25 history events and 5 future ones",
        "less than 0.5 times as likely",
        "By nobody.",
    ):
        assert text in body, text
    assert "/tmp" not in body and "warmup_steps" not in body  # nothing local, nothing unknown


def test_results_stand_beside_recency_and_say_what_they_are_worth(model):
    _, body = parts(card_of(model, [DISTILLER]))
    assert "On 2,000 test windows it distils 6.0 of 25 events on average and meets what is asked in 98.0%" in body
    assert "Its DS is 1.250, that of as many of the most recent events 1.200. 25.0% of its answers" in body
    assert "which is the trivial answer" in body and "little more than what happened last" not in body
    assert "says little more than what happened last" in card_of(model, [DISTILLER | {"is_last_k": 0.9}])


def test_solvers_are_judged_from_the_interval_of_the_difference(model):
    rows = [
        solver_row("ehed", "greedy_search", 1.5, difference=0.75),
        solver_row("ehed", "distiller", 0.75),
        solver_row("ehed", "recency", 0.5, difference=-0.25),
        solver_row("emhd", "distiller", 6.0),
        solver_row("emhd", "greedy_search", 9.0, difference=3.0),
        solver_row("emhd", "distiller", 99.0, batch_size=1, num_windows=3000),  # made to take the time
        solver_row("ehed", "distiller", 0.5, num_windows=90_000, split="all"),  # a setting with fewer solvers
    ]
    _, body = parts(card_of(model, rows))
    lines = [re.sub(" +", " ", line) for line in body.splitlines() if line.startswith("|")]
    assert lines[2:] == [
        "| this model | 0.750 [-0.250, 1.750] | – | 12 | 6.00 [5.00, 7.00] | – | 12 |",
        "| recency | 0.500 [-0.500, 1.500] | level | 12 | – | – | – |",
        "| greedy | 1.500 [0.500, 2.500] | better | 12 | 9.00 [8.00, 10.00] | worse | 12 |",
    ]
    assert "2,000 windows of test, paper conditioning" in body and "90,000" not in body


def test_certified_sizes_are_shown_where_they_were_measured(model):
    rows = [EXPLAINED | {"target": "share 0.7", "reached": 0.9}, EXPLAINED | {"solver": "recency", "size": None}]
    header, body = parts(card_of(model, [DISTILLER, *rows]))
    assert re.search(r"\| share 0.7 +\| this model +\| 7.50 \[7.00, 8.00\] +\| +90.0% \|", body)
    assert {"type": "size", "name": "certified size, share 0.7", "value": 7.5} in metrics(header)
    few = {key: EXPLAINED[key] for key in ("task", "solver", "size", "checkpoint", "data")}
    assert "| this model | 7.50 " in re.sub(" +", " ", card_of(model, [few]))


def test_the_model_index_holds_the_models_own_results_only(model):
    fewer = DISTILLER | {"num_windows": 100, "ds": 9.0}
    solved = [solver_row("emhd", "recency", 5.0, difference=0.0), solver_row("emhd", "distiller", 6.0)]
    header, _ = parts(card_of(model, [DISTILLER, fewer, *solved, *PROCESS]))
    assert {metric["name"]: metric["value"] for metric in metrics(header)} == {
        "DS": 1.25,
        "events distilled": 6.0,
        "share of windows whose constraint is met": 0.98,
        "LMHS": 6.0,
        "NLL per event": 2.125,
        "NLL per event of the futures": 2.1,
    }
    expected = {"name": "A log", "type": "log", "config": "5-25", "split": "test"}
    assert header["model-index"][0]["results"][0]["dataset"] == expected


def test_a_point_process_stands_beside_trivial_ones_and_the_truth():
    process = FullyNNModel(FullyNNConfig(num_marks=2, id2label={0: "a", 1: "{{ 7 * 7 }} `b`"}, hidden_size=4))
    card = card_of(process, PROCESS, name="somebody/process")
    check_card(card)
    _, body = parts(card)
    assert (
        "On the 4,321 events of the test split it needs 2.125 nats per event, 0.375 less than the best trivial "
        "model (Gamma + bigram); the process that drew them needs 2.000." in body
    )
    assert "EHDDistiller.from_pretrained" not in body and 'from_pretrained("somebody/process"' in body
    assert re.search(r"\| this model +\| 2.125 \| +– \| +– \| 0.050 \| +2.100 \|", body)
    assert "a, {{ 7 &#42; 7 }} &#96;b&#96;." in body  # a name is text, neither markup nor template


def test_cards_say_a_share_in_words_and_bundled_ones_no_repository(model):
    ranking = RankingDistillerModel.from_mtpp(model.mtpp, history=7, future=4)
    _, body = parts(card_of(ranking, [DISTILLER]))
    assert "70% of what the whole history explains is lost" in body and "survival conditioning" in body
    assert "trust_remote_code" in card_of(model, [DISTILLER])
    assert "trust_remote_code" not in card_of(model, [DISTILLER], name="incidents")


@pytest.mark.parametrize("rows", [[], [DISTILLER | {"task": "case_study"}], [PROCESS[0]]])
def test_a_card_without_results_is_refused(model, rows):
    with pytest.raises(ValueError, match="needs evaluation rows of the checkpoint.*Run scripts/paper/evaluate.py"):
        card_of(model, rows)


# --- fit to be published


@pytest.fixture(scope="module")
def cards(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("windows") / "log"
    splits = simulated_splits("incident", num_sequences={"train": 3, "test": 2}, horizon=9.0, seed=0)
    export_windows(splits, out, [(2, 3)], name="log", card={key: DATA[key] for key in ("pretty_name", "provenance")})
    return {"model": card_of(model, [DISTILLER]), "dataset": (out / "README.md").read_text()}


@pytest.mark.parametrize(
    ("kind", "old", "new", "reason"),
    [
        ("model", "license: apache-2.0\n", "", "no license"),
        ("model", "license: apache-2.0", "license: My Licence", "license must be an identifier of the Hub"),
        ("model", "library_name: transformers", "library_name: other", "must be transformers, got 'other'"),
        ("model", "value: 1.25", "value: .nan", "ds must be a number, got nan"),
        ("model", "value: 1.25", "value: good", "must be a number, got 'good'"),
        ("model", "      type: log\n", "", "its front matter cannot be read"),
        ("model", "## How good it is\n", "## Praise\n", "no section 'How good it is'"),
        ("model", r"(## How good it is\n).*?(?=## What it is)", r"\1\n", "nothing under 'How good it is'"),
        ("model", "Drawn by lot", "Drawn in /home/me/data", "a local path, /home/me/data"),
        ("model", r"---\n.*?\n---\n", "", "no license; no library_name; no tags; no model-index"),
        ("model", r"license: apache-2.0\n(.*)## What it knows", r"\1## Else", "no license; no section"),
        ("dataset", "config_name: 2-3", "config_name: small", "config_name must be sequences or K-L, got 'small'"),
        ("dataset", "path: 2-3/train.parquet", "path: train.csv", "data_files must be Parquet, got 'train.csv'"),
        ("dataset", "size_categories:\n- n<1K", "size_categories: []", "no size_categories"),
        ("dataset", "configs:\n", "configs: all\nothers:\n", "its front matter cannot be read"),
        ("dataset", "## Source\n", "## From\n", "no section 'Source'"),
    ],
)
def test_a_spoilt_card_is_refused(cards, kind, old, new, reason):
    check_card(cards[kind], kind)
    spoilt, changes = re.subn(old, new, cards[kind], count=1, flags=re.DOTALL)
    assert changes == 1
    with pytest.raises(ValueError, match=f"not fit to be published.*{re.escape(reason)}"):
        check_card(spoilt, kind)


@pytest.mark.parametrize("name", list_pretrained())
def test_bundled_cards_are_fit_and_name_the_commands_that_trained_them(name):
    card = (CHECKPOINTS / name / "README.md").read_text()
    check_card(card)
    assert "scripts/train.py --config" in card and ("most recent events" in card or "| recency " in card)
