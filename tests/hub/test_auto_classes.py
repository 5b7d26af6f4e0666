"""`import ehd_hf` is enough for the Auto classes, whichever import comes first, and loads neither torch nor them."""

import subprocess
import sys

import pytest

FOLDER = "folder = ehd_hf.__path__[0] + '/checkpoints/incidents-paper'\n"
OPEN = FOLDER + "print(type(AutoModel.from_pretrained(folder)).__module__)"


def run(code):
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.parametrize(
    "imports",
    [
        "import ehd_hf\nfrom transformers import AutoModel\n",
        "from transformers import AutoModel\nimport ehd_hf\n",
        "import transformers, ehd_hf\nfrom transformers import pipeline, AutoModel\n",
    ],
)
def test_models_open_in_any_order_of_imports(imports):
    assert run(imports + OPEN) == "ehd_hf.models.ehd"


def test_configs_open_and_unknown_types_are_still_refused():
    code = "import ehd_hf\nfrom transformers import AutoConfig\n" + FOLDER
    code += "print(AutoConfig.from_pretrained(folder).model_type, AutoConfig.for_model('fullynn').model_type)\n"
    code += "try:\n    AutoConfig.for_model('nonsense')\nexcept ValueError:\n    print('refused')"
    assert run(code).split() == ["ehd_distiller", "fullynn", "refused"]


def test_a_bundled_name_opens_by_the_model_class():
    code = "import ehd_hf\nprint(type(ehd_hf.EHDDistillerModel.from_pretrained('incidents-paper')).__name__)"
    assert run(code) == "EHDDistillerModel"
