"""How much depends on the model: the answers of an ensemble are its first member's, and say how many others agree."""

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from test_certificates import HISTORY, INFLUENCES, additive, chosen
from test_explanation import make
from torch import nn

from ehd_hf.explain.explainer import EHDDistiller
from ehd_hf.explain.explanation import AGREEMENT, FIELDS, explanations_to_frame
from ehd_hf.explain.many import explain_many
from ehd_hf.models.ensemble import EnsembleConfig, EnsembleModel
from ehd_hf.models.from_function import from_callable
from ehd_hf.models.hawkes import HawkesConfig, HawkesModel
from ehd_hf.models.ranking import RankingDistillerModel
from helpers import TINY, from_lists, tiny_fullynn, wild

DRAW = np.random.default_rng(3)
EVENTS = from_lists(
    [np.cumsum(DRAW.exponential(size=14)) for _ in range(9)],
    [DRAW.integers(4, size=14) for _ in range(9)],
    id2label={0: "deploy", 1: "alert", 2: "ticket", 3: "check"},
    time_unit="h",
)
NAMES = {"num_marks": 4, "id2label": dict(EVENTS.id2label), "time_unit": "h"}
ASKED = {"future": 3, "history": 9}
QUESTIONS = [{}, {"share": 0.4, "delta": 0.2}, {"epsilon": 0.9, "refine": "prefix"}, {"size": 2}]


@pytest.fixture(scope="module")
def members():
    hawkes = (HawkesModel(HawkesConfig(num_scales=3, num_shapes=3, **NAMES)) for _ in range(2))
    wilder = [wild(tiny_fullynn(**NAMES), 0.5), *(wild(model, 3.0, seed=seed) for seed, model in enumerate(hawkes))]
    return [model.float() for model in wilder]


@pytest.fixture(scope="module")
def ensemble(members):
    return EnsembleModel.of(members).eval()


def counted(answers):
    """In how many answers that meet their target each event is."""
    return tuple(np.sum([np.array(one.distill_mask) & (one.status == "explained") for one in answers], 0).tolist())


def test_agreement_worked_by_hand():
    model = EnsembleModel.of([tiny_fullynn(num_marks=4)] * 2).double()
    # The marks are 0, 1, 2, 0, 2. The first model needs both 2s, the second the 1; to the third nothing matters.
    model.members = nn.ModuleList(map(additive, [INFLUENCES, (0.0, 3.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0)]))
    answer = EHDDistiller.from_mtpp(model).explain(HISTORY, future=1, share=0.6)
    assert chosen(answer) == [2, 4] and answer.agreement == (0, 1, 1, 0, 1) and answer.num_models == 3
    assert str(answer).endswith("\n1 of 3 names each of these.")
    model.members = nn.ModuleList(map(additive, [INFLUENCES, *[(0.0, 0.0, 3.0, 0.0)] * 2]))
    answer = EHDDistiller.from_mtpp(model).explain(HISTORY, future=1, share=0.6)
    assert answer.agreement == (0, 0, 3, 0, 3) and str(answer).endswith("\nAll 3 models name each of these.")


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_agreement_counts_the_answers_that_each_member_gives_alone(members, ensemble, question):
    answers = EHDDistiller.from_mtpp(ensemble).explain(EVENTS, **ASKED, **question)
    alone = [EHDDistiller.from_mtpp(member).explain(EVENTS, **ASKED, **question) for member in members]
    for answer, *each in zip(answers, *alone, strict=True):
        assert replace(answer, agreement=None, num_models=None) == each[0]  # the first member's, to the bit
        assert answer.agreement == counted(each) and answer.num_models == 3 and each[0].agreement is None
    assert len({count for answer in answers for count in answer.agreement}) > 2  # they differ, and agree


def test_a_distiller_orders_for_the_first_member_only(members, ensemble, tmp_path):
    target = {"share": 0.7, "conditioning": "survival"}
    EHDDistiller(RankingDistillerModel.from_mtpp(ensemble, history=9, future=3, **target, **TINY)).save_pretrained(
        tmp_path
    )
    explainer = EHDDistiller.from_pretrained(tmp_path)
    assert [type(one) for one in explainer.mtpp.members] == [type(one) for one in members]
    others = (EHDDistiller.from_mtpp(member).explain(EVENTS, **ASKED) for member in members[1:])
    for answer, *each in zip(explainer.explain(EVENTS), *others, strict=True):
        assert answer.agreement == counted([answer, *each])
    assert explainer.explain(EVENTS, refine="none")[0].agreement is None  # nobody else can be asked so
    scores = EHDDistiller.from_mtpp(ensemble).attribute(EVENTS, future=3, method="leave_one_out")
    expected = EHDDistiller.from_mtpp(members[0]).attribute(EVENTS, future=3, method="leave_one_out")
    assert all(np.array_equal(*pair, equal_nan=True) for pair in zip(scores, expected, strict=True))


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl", "folder"])
def test_rows_of_an_ensemble_have_two_columns_more(members, ensemble, tmp_path, name):
    source = tmp_path / "events.parquet"
    frame = {"seq_id": list(EVENTS.seq_ids), "times": [t for t, _ in EVENTS], "marks": [m for _, m in EVENTS]}
    pd.DataFrame(frame).to_parquet(source)
    for model, fields in ((ensemble, [*FIELDS, *AGREEMENT]), (members[0], [*FIELDS])):
        explainer, out = EHDDistiller.from_mtpp(model), tmp_path / type(model).__name__ / name
        out.parent.mkdir()
        explain_many(explainer, source, out, **ASKED)
        rows = pd.read_json(out, lines=True) if name.endswith("jsonl") else pd.read_parquet(out)
        answers = explanations_to_frame(explainer.explain(EVENTS, **ASKED))
        assert list(rows.columns) == list(answers.columns) == fields
        for column in set(AGREEMENT) & set(fields):
            assert [np.asarray(value).tolist() for value in rows[column]] == answers[column].tolist()


def test_agreement_is_said_in_words_tables_and_numbers():
    answer = make((1, 0, 0, 1, 1), num_models=4, agreement=(4, 3, 2, 1, 4))
    assert str(answer).split("\n")[-1] == (
        "All 4 models name deploy at 0 h and deploy at 5 h; 1 of 4 names ticket at 3.75 h. "
        "Not in this answer: 3 of 4 name check at 1.25 h."
    )
    frame = answer.to_frame()
    assert frame["agreement"].tolist() == [4, 3, 2, 1, 4] + [pd.NA] * 3 and frame["agreement"].dtype == "Int32"
    plain = json.loads(answer.to_json())
    assert [event["agreement"] for event in plain["distilled"] + plain["left"]] == [4, 1, 4, 3, 2]
    assert "agreement" not in plain["future"][0] and plain["num_models"] == 4
    assert answer.to_row()["agreement"] == [4, 1, 4]
    assert "agreement" in explanations_to_frame([answer], per="event") and "agreement" not in make().to_frame()
    nothing = make((0, 0, 0), num_models=2, agreement=(0, 0, 0), status="explains_nothing", dppl_empty=math.log(2))
    assert "models" not in str(nothing)


def test_members_that_do_not_belong_together_are_refused(members):
    with pytest.raises(ValueError, match="same marks and time unit; got .* Train them on one log"):
        EnsembleModel.of([members[0], tiny_fullynn(num_marks=2)])
    with pytest.raises(ValueError, match="at least 2 members; got 1"):
        EnsembleModel.of(members[:1])
    with pytest.raises(ValueError, match="can be saved; got a CallableConfig"):
        EnsembleModel.of([from_callable(lambda *events: events[0], num_marks=2)])


def test_an_ensemble_fits_the_time_scale_of_each_member():
    model = EnsembleModel(EnsembleConfig(num_marks=3))
    model.fit_time_scale(torch.tensor([1.0, 5.0]))
    assert [member.mean_interval.item() for member in model.members] == [3.0, 3.0]
    assert {member.config.model_type for member in model.members} == {"lognormmix"}
