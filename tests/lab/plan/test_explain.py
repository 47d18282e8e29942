"""Every shipped experiment is explained without its target, and says what its YAML declares."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.cli import main
from dflash.lab.budget import RULES
from dflash.lab.experiment import load_experiment
from dflash.lab.plan.entries import make_plan
from dflash.lab.plan.explain import explain_text, slot_weights
from dflash.lab.plan.rates import Rate
from dflash.model.errors import UserError
from dflash.model.taps import resolve_taps

SHIPPED = sorted((Path(__file__).resolve().parents[3] / "experiments" / "ablation").glob("*.yaml"))
QWEN = ["target=qwen3_0_6b", "target.device=cpu"]
HUB_TARGETS = {  # layers, and parameters of the matrices in billions as their names promise
    "qwen3_0_6b": (28, 0.6),
    "qwen3_1_7b": (28, 1.7),
    "qwen3_4b": (36, 4.0),
    "qwen3_8b": (36, 8.2),
    "llama31_8b": (32, 8.0),
}


def explained(lab, name: str, overrides=QWEN, rate=None) -> str:
    return explain_text(lab, make_plan(lab, load_experiment(name, list(overrides))), rate, 1024)


def section(text: str, title: str) -> list[str]:
    """The lines under a heading that begins with ``title``."""
    return next(part for part in text.split("\n\n") if part.startswith(title)).splitlines()[1:]


@pytest.mark.usefixtures("experiments")
@pytest.mark.parametrize("tier", ["default", "paper"])
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_experiment_is_explained(lab, path, tier):
    text = explained(lab, path.stem, [*QWEN, f"tier={tier}"])
    experiment = load_experiment(path.stem, [*QWEN, f"tier={tier}"])
    lines = section(text, "WHAT DIFFERS")
    arms = [line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "]
    assert arms == [arm.name for arm in experiment.arms]
    keys = sorted(line.split(":")[0].strip() for line in lines if " -> " in line)
    declared = [key for arm in experiment.arms for key in arm.diff]
    if experiment.match:
        declared += [RULES[experiment.match].key] * (len(experiment.arms) - 1)
    assert keys == sorted(declared)
    assert max(map(len, text.splitlines())) <= 100
    for title in ("PARAMETERS", "TIME"):  # no table cuts a name
        assert [row.split()[0] for row in section(text, title)[2 : 2 + len(arms)]] == arms
    for name in ("PARAMETERS", "ATTENTION MASK", "WEIGHT", "TAPS", "DATA", "TIME", "STORE"):
        assert section(text, name)
    assert "unknown until one cell has run" in text
    assert "published sizes" in text
    assert not lab.store.root.exists()


@pytest.mark.usefixtures("experiments")
@pytest.mark.parametrize(
    ("name", "equal"),
    [
        ("no_qknorm", "control (and equally no_qknorm)"),
        ("mask_embedding", "control (and equally learned, mean, zero)"),
        ("plain_attention", "control"),
        ("context_window", "control"),
        ("block_size", "control"),
    ],
)
def test_arms_that_see_the_same_share_a_drawing(lab, name, equal):
    lines = section(explained(lab, name), "ATTENTION MASK")
    assert lines[0] == f"  {equal}"


@pytest.mark.usefixtures("experiments")
def test_a_leak_is_drawn_and_the_arm_called_invalid(lab):
    text = explained(lab, "leaky_context")
    lines = section(text, "ATTENTION MASK")
    drawn = {line.strip(): lines[at + 4] for at, line in enumerate(lines) if "leak_" in line}
    assert drawn["leak_1"].count("!") == 1
    assert drawn["leak_4"].count("!") == 4
    assert "leak_1  INVALID (negative control)" in text


@pytest.mark.usefixtures("experiments")
def test_slot_weights_and_taps_are_those_of_the_run(lab):
    plan = make_plan(lab, load_experiment("no_decay", [*QWEN, "recipe=paper"]))
    weights = [slot_weights(cell) for cell in plan.cells]
    assert weights[1] == [0.0] + [1.0] * 15
    assert weights[0][1:4] == pytest.approx([1.0, 0.8669, 0.7515], abs=1e-4)  # gamma 7
    for cell in make_plan(lab, load_experiment("taps", QWEN)).cells:
        assert cell.taps == resolve_taps(cell.switches.features.taps, 28)


@pytest.mark.usefixtures("experiments")
@pytest.mark.parametrize("name", HUB_TARGETS)
def test_a_shipped_hub_target_needs_no_hub(lab, name):
    overrides = [f"target={name}", "target.device=cpu", "target.mask_token_id=11"]
    (cell, _) = make_plan(lab, load_experiment("no_qknorm", overrides)).cells
    layers, billions = HUB_TARGETS[name]
    assert cell.info.num_layers == layers
    assert cell.sizes.parameters / 1e9 == pytest.approx(billions, rel=0.06)


@pytest.mark.usefixtures("experiments")
def test_a_target_of_which_nothing_is_known_is_one_line(lab):
    overrides = [*QWEN, "target.source=someone/model"]
    with pytest.raises(UserError, match="someone/model") as caught:
        make_plan(lab, load_experiment("no_qknorm", overrides))
    assert "\n" not in str(caught.value)


def test_a_directory_says_its_own_sizes(lab, small, small_overrides):
    text = explained(lab, small, small_overrides)
    assert "tiny (sizes: the model's config)" in " ".join(text.split())
    assert "nothing of this target is known" in text


@pytest.mark.usefixtures("experiments")
def test_a_stated_speed_gives_a_time(lab):
    plan = make_plan(lab, load_experiment("no_qknorm", QWEN))
    flops = plan.cells[0].training_flops
    text = explained(lab, "no_qknorm", rate=Rate(flops / 120, "stated"))
    for row in section(text, "TIME")[2:4]:
        assert " 2 min " in row
    assert "12 min for the training of 6 cells" in " ".join(text.split())
    text = explained(lab, "no_qknorm", [*QWEN, "train.devices=2"], Rate(flops / 120, "stated"))
    assert "6 min for the training of 6 cells" in " ".join(text.split())
    assert " 1 min " in section(text, "TIME")[2]


def test_the_command_explains_and_refuses_nonsense(small, small_overrides, tmp_path, capsys):
    store = ["--store", str(tmp_path / "store")]
    assert main(["explain", small, *small_overrides, *store]) == 0
    assert "WHAT DIFFERS" in capsys.readouterr().out
    for wrong in (["--throughput", "-1"], ["--flops", "1e12"], ["--mfu", "2"], ["--context", "0"]):
        assert main(["explain", small, *small_overrides, *store, *wrong]) == 2
        assert capsys.readouterr().err.count("\n") == 1
