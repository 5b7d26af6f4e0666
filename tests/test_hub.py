"""Cards are made from data, and say where the data came from."""

import re

import pytest
import yaml

from ehd_hf.hub import model_card
from ehd_hf.pipeline import CHECKPOINTS, EHDDistiller, list_pretrained

TRAINING = {
    "args": {"batch_size": 7, "learning_rate": 0.003, "seed": 5, "metric": "size_or_all"},
    "steps_run": 1234,
    "best": {"step": 900},
}
DATA = {"license": "apache-2.0", "pretty_name": "A log", "provenance": "Drawn\nby lot."}
ROW = {"pair": "5-25", "ds": 1.25, "ds_std": 0.5, "recency_ds": 1.2, "size": 6.0, "constraint_met": 0.98}


@pytest.fixture(scope="module")
def model():
    return EHDDistiller.from_pretrained("incidents").model


def test_a_card_tells_what_the_model_knows_and_how_it_was_made(model):
    card = model_card("incidents", model, data=DATA, training=TRAINING, commands=["train it", "twice"], rows=[ROW])
    front, body = re.fullmatch(r"---\n(.*?)\n---\n(.*)", card, re.DOTALL).groups()
    assert yaml.safe_load(front)["license"] == "apache-2.0"
    for said in (
        "deploy, config change",
        "Times in h.",
        "Drawn by lot.",
        "train it\ntwice",
        "1,234 steps of 7 windows",
    ):
        assert said in body
    assert "| 5-25   | 1.250 |" in body and "98.0%" in body and "best by size_or_all at step 900" in body
    assert "$" not in body


def test_a_card_without_results_is_refused(model):
    with pytest.raises(ValueError, match="needs evaluation rows"):
        model_card("incidents", model, data=DATA, training=TRAINING, commands=[], rows=[])


@pytest.mark.parametrize("name", list_pretrained())
def test_bundled_cards_have_front_matter_results_and_the_commands_that_trained_them(name):
    card = (CHECKPOINTS / name / "README.md").read_text()
    assert yaml.safe_load(card.split("---")[1])["library_name"] == "transformers"
    assert "scripts/train.py --config" in card and "DS of the last k" in card
