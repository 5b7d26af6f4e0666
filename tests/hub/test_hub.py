"""What goes into a repository: the rows of exactly these weights, files that open anywhere, weights that are whole."""

import json

import pytest
from safetensors.torch import load_file

from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.files import checkpoint_stamp
from ehd_hf.hub.fetch import CHECKPOINTS, check_weights, fetch_model
from ehd_hf.hub.push import MODELING_FILE, model_files, portable_files, rows_of

INCIDENTS = CHECKPOINTS / "incidents-paper"
DATA = {"license": "apache-2.0", "pretty_name": "A log", "provenance": "Drawn by lot."}
EVENTS = {"data": "log", "data_digest": "0", "split": "test", "jitter_seed": None, "pair": "5-25"}


@pytest.fixture(scope="module")
def model():
    return EHDDistiller.from_pretrained("incidents-paper").model


@pytest.fixture
def rows(model, tmp_path):
    """Rows of the model, of its point process, of a baseline on the same events, and three that are of others."""
    model.mtpp.save_pretrained(tmp_path / "mtpp")
    own, process = (checkpoint_stamp(folder)["checkpoint"] for folder in (INCIDENTS, tmp_path / "mtpp"))
    distiller = {"num_windows": 9, "ds": 1.0, "recency_ds": 1.0, "size": 6.0, "constraint_met": 1.0, "is_last_k": 0.1}
    mtpp = EVENTS | {"task": "mtpp", "nll": 2.0, "num_events": 99}
    return [
        mtpp | {"model": "Gamma + bigram", "checkpoint": None},
        mtpp | {"model": "Gamma + bigram", "checkpoint": None, "data": "another"},
        mtpp | {"model": "runs/m", "checkpoint": process},
        mtpp | {"model": "runs/other", "checkpoint": "0123456789ab"},
        EVENTS | {"task": "distiller", "checkpoint": own, "model": "ehd", **distiller},
        EVENTS | {"task": "distiller", "checkpoint": "0123456789ab", "model": "ehd", **distiller},
        EVENTS | {"task": "case_study", "checkpoint": own, "model": "ehd"},
    ]


def test_rows_are_those_of_the_weights_of_the_process_inside_and_of_baselines_on_its_events(model, rows):
    assert rows_of(model, rows) == [rows[0], rows[2], rows[4], rows[6]]
    assert rows_of(model.mtpp, rows) == [rows[0], rows[2]]


def test_a_repository_tells_the_rows_that_its_card_shows(model, rows):
    files = model_files(model, "somebody/name", rows=rows, data=DATA)
    assert [json.loads(line) for line in files["results.jsonl"].splitlines()] == [rows[0], rows[2], rows[4]]
    assert files["model.safetensors"] == (INCIDENTS / "model.safetensors").read_bytes()
    assert files == model_files(model, "somebody/name", rows=rows, data=DATA)  # the same again, byte for byte
    with pytest.raises(ValueError, match="needs evaluation rows of the checkpoint .*got none"):
        model_files(model, "somebody/name", rows=[rows[3], rows[5]], data=DATA)  # of other weights


def test_a_portable_config_names_the_code_beside_it_and_keeps_the_rest(model):
    files = portable_files(model)
    config = json.loads(files["config.json"])
    classes = {"AutoConfig": "EHDDistillerConfig", "AutoModel": "EHDDistillerModel"}
    assert config.pop("auto_map") == {auto: f"modeling_ehd_hf.{name}" for auto, name in classes.items()}
    impl = "modeling_ehd_hf.EventHistoryPipeline"
    assert config.pop("custom_pipelines") == {"event-history-distillation": {"impl": impl, "pt": ["AutoModel"]}}
    assert config["id2label"] == json.loads((INCIDENTS / "config.json").read_text())["id2label"]
    assert not hasattr(model.config, "auto_map")  # the model at hand is left alone
    code = {MODELING_FILE, "fullynn.py", "gated_lstm.py", "point_process.py", "recent_marks.py"}
    assert set(portable_files(model.mtpp)) == {"config.json", "model.safetensors", *code}
    assert "custom_pipelines" not in json.loads(portable_files(model.mtpp)["config.json"])


def test_a_model_of_several_files_opens_too(model, tmp_path):
    model.save_pretrained(tmp_path, max_shard_size="300KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert fetch_model(str(tmp_path)) == str(tmp_path)
    EHDDistiller.from_pretrained(tmp_path)


def test_a_folder_is_taken_as_it_is_and_a_damaged_file_in_it_stays(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes((INCIDENTS / "model.safetensors").read_bytes())
    check_weights(tmp_path)
    assert load_file(weights)
    weights.write_bytes(weights.read_bytes()[:-4])
    with pytest.raises(ValueError, match="model.safetensors of .* is not the file that was saved.*Copy it again"):
        fetch_model(str(tmp_path))
    assert weights.is_file()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="it holds nothing. Check the name"):
        check_weights(tmp_path / "empty")
