"""Who may import whom, and what a program loads before it has something to do."""

import ast
import gc
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from base import lasting_imports

ROOT = Path(__file__).parent.parent
FILES = sorted(
    [*ROOT.glob("*.py"), *ROOT.glob("docs/*.py")]
    + [path for package in ROOT.glob("*/__init__.py") for path in package.parent.rglob("*.py")]
)
NAMES = {path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__"): path
         for path in FILES}  # fmt: skip
STANDARD = sys.stdlib_module_names


def imported(path):
    """Modules that a file imports anywhere, in full: `from a.b import c` is a.b and a.b.c."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def tops(*paths):
    return {name.split(".")[0] for path in paths for name in imported(path)}


def of(folder):
    files = [path for path in FILES if ROOT / folder in path.parents]
    assert files
    return files


def test_every_product_file_is_looked_at():
    names = {path.relative_to(ROOT).as_posix() for path in FILES}
    assert {"train.py", "base.py", "model/position/base.py", "data/corpus.py", "configs/__init__.py"} <= names
    folders = {name.split("/")[0] for name in names if "/" in name}
    assert folders == {"model", "data", "configs", "sampling", "training", "comparison", "docs"}


LIBRARIES = {"tokenizers", "datasets", "pyarrow", "huggingface_hub"}
EXPORT = {"gguf", "tokenizers"}
REPORTS = {"matplotlib", "numpy", "scipy"}
OURS = {path.relative_to(ROOT).with_suffix("").parts[0] for path in FILES}


@pytest.mark.parametrize(
    ("folder", "allowed"),
    [
        ("model", {"base", "settings", "model", "torch", "safetensors", "pydantic", *EXPORT}),
        ("data", {"base", "settings", "data", "pydantic", "numpy", "torch"} | LIBRARIES),
        ("configs", {"base", "settings", "configs", "data", "model", "yaml", "pydantic"}),
        ("sampling", {"base", "data", "model", "sampling", "jinja2", "tokenizers", "torch"}),
        (
            "training",
            {"base", "settings", "configs", "data", "model", "training", "numpy", "pydantic", "torch", "tqdm", "wandb"}
            | {"yaml"},
        ),
        (
            "comparison",
            {"base", "settings", "comparison", "configs", "data", "model", "training", "pydantic", "torch"}
            | {"tokenizers"}
            | REPORTS,
        ),
    ],
)
def test_a_folder_imports_only_what_lies_below_it(folder, allowed):
    assert tops(*of(folder)) - STANDARD <= allowed


def test_what_only_the_export_needs_is_imported_there_alone():
    assert [path.name for path in of("model") if tops(path) & EXPORT] == ["gguf.py"]
    assert not any("model.gguf" in imported(path) for path in FILES)


def test_no_file_imports_itself_through_others():
    """Also not inside a function, which only hides it."""
    graph = {name: imported(path) & NAMES.keys() - {name} for name, path in NAMES.items()}
    TopologicalSorter(graph).prepare()  # which raises CycleError


def test_a_name_is_imported_from_the_file_that_has_it():
    """So that there is one place to look; but for the schemes, which their registry gathers."""
    for path in [*FILES, *ROOT.glob("tests/*.py")]:
        for name in imported(path) - NAMES.keys():
            module, _, own = name.rpartition(".")
            if module in NAMES.keys() - {"model.position"}:
                text = NAMES[module].read_text(encoding="utf-8")
                assert re.search(rf"^(class |def |\w+, )?{own}\b(?! import)", text, re.M), f"{path}: {name}"


def test_configs_see_only_config_classes_of_model_and_data():
    below = {name for path in of("configs") for name in imported(path) if name.split(".")[0] in ("model", "data")}
    strangers = {name for name in below if not name.endswith(("Config", "POSITIONS"))}
    assert strangers <= {"model.config", "model.position", "data.config"}


def test_the_seam_lies_below_the_families_and_they_below_the_registry():
    found = {path.stem: imported(path) for path in of("model/position")}
    families = {f"model.position.{stem}" for stem in found.keys() - {"__init__", "base"}}
    assert len(families) >= 4 and {*families, "model.position.base"} <= found["__init__"]
    for stem in found.keys() - {"__init__"}:
        assert not found[stem] & {"model.position", "model.config", "model.attention", "model.transformer"}
        assert ("model.position.base" in found[stem]) == (stem != "base")
    assert not found["base"] & families


def test_what_all_may_import_imports_nothing_of_ours():
    assert not tops(ROOT / "base.py", ROOT / "settings.py") & OURS


def test_a_program_is_imported_by_none_and_sees_what_it_needs():
    assert not tops(*FILES) & {"prepare", "train", "generate", "compare"}
    drawn = {name for name in imported(ROOT / "train.py") if name.startswith("comparison")}
    assert drawn == {"comparison.single", "comparison.single.draw"}, "the picture of a run that is done"
    text = (ROOT / "train.py").read_text(encoding="utf-8")
    assert text.index(" train(config") < text.index("from comparison."), "which loads matplotlib"
    assert tops(ROOT / "generate.py") & OURS == {"base", "model", "sampling"}
    assert "sampling" not in tops(ROOT / "compare.py")
    assert tops(ROOT / "prepare.py") & OURS == {"base", "configs", "data"}


def test_wandb_is_imported_in_one_place_inside_a_function():
    assert [path.name for path in FILES if "wandb" in tops(path)] == ["tracking.py"]
    tree = ast.parse((ROOT / "training" / "tracking.py").read_text(encoding="utf-8"))
    at_import = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [alias for node in at_import for alias in node.names if "wandb" in alias.name]
    assert not [node for node in at_import if isinstance(node, ast.ImportFrom) and "wandb" in node.module]


def test_importing_the_programs_loads_nothing_heavy():
    """So that --help and a mistake in the command line answer at once."""
    heavy = ["torch", "datasets", "transformers", "wandb", "matplotlib", "numpy", "pyarrow", "tokenizers", "yaml"]
    code = f"import sys, prepare, train, generate, compare; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_neither_building_nor_training_a_model_imports_the_compiler():
    """torch's own initialization on the meta device does, and its optimizers: seconds before the first token or step."""
    code = """
import sys
import torch
from configs import TrainConfig
from model.config import ModelConfig
from model.transformer import Transformer
from training.optimizer import build_optimizer, restore_optimizer
from training.step import optimizer_step
for kind in ("rope", "learned", "t5"):
    Transformer(ModelConfig(vocab_size=8, position=kind), seed=None)
model, ids = Transformer(ModelConfig(vocab_size=8, hidden_size=16, num_attention_heads=2)), torch.zeros(1, 4).long()
for optimizer in ("adamw", "muon"):
    config = TrainConfig(optimizer=optimizer, batch_size=1)
    optimizer = build_optimizer(model, config)
    assert optimizer_step(model, optimizer, ids, ids, 1e-3, config).is_finite
    restore_optimizer(optimizer, optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_new_text_is_tokenized_without_pandas():
    """Which pyarrow imports, half a second, for what looks like an array of it."""
    code = """
import sys
from data.config import TokenizerConfig
from data.encoding import token_chunks
from data.tokenizer import train_tokenizer
config, texts = TokenizerConfig(kind="bpe", vocab_size=300), ["the cat, the cats", "the cat"]
assert sum(len(chunk.ids) for chunk in token_chunks(train_tokenizer(config, texts), config, texts)) > 4
print("pandas" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize("program", ["train", "generate", "compare", "prepare"])
def test_what_a_program_imports_is_not_collected_again_and_again_nor_at_the_end(program):
    code = f"""
import atexit, gc, sys, {program}
collected = []
gc.callbacks.append(lambda phase, info: collected.append("torch" in sys.modules) if info["generation"] == 2 else None)
atexit.register(lambda: print(gc.get_freeze_count() > len(gc.get_objects()), gc.isenabled(), any(collected)))
sys.argv[1:] = ["nowhere"]
{program}.main()
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: nowhere") and done.stderr.count("\n") == 1
    assert done.stdout.split() == ["True", "True", "False"]


def test_what_there_is_at_a_second_call_of_a_program_is_collected():
    frozen = gc.get_freeze_count()
    with lasting_imports():
        garbage = [[]]
    assert garbage and gc.get_freeze_count() == frozen and gc.isenabled()
