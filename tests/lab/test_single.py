"""One drafter outside an experiment: train, evaluate, generate."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console

from dflash.cli import main
from dflash.decoding.speculative import dflash_generate
from dflash.lab.config import compose_config
from dflash.lab.experiment import load_arm
from dflash.lab.generate import Printer, TextStream, stream_answer
from dflash.lab.single import evaluate_checkpoint, latest_drafter, train_drafters
from dflash.lab.stages.answers import answers_key
from dflash.lab.stages.common import Lab
from dflash.lab.stages.target import target_info
from dflash.lab.stages.train import Trained, train_key
from dflash.lab.store import Store
from dflash.model import DFlashDraftModel
from dflash.model.errors import UserError
from dflash.training.precision import precision_of


@pytest.fixture
def config(small, small_overrides):
    return compose_config(small_overrides)


def say(lab, config, **changes) -> tuple[str, object]:
    """What `dflash generate` prints where no terminal is."""
    options = {"drafter": None, "new_tokens": 12, "temperature": 0.0} | changes
    console = Console(file=io.StringIO(), force_terminal=False, width=80)
    result = stream_answer(lab, config, "Hello there", console=console, **options)
    return console.file.getvalue(), result


def test_train_evaluate_generate(lab, config, small_overrides, tmp_path):
    with pytest.raises(UserError, match="dflash train --target tiny"):
        latest_drafter(lab.store, config)
    paths = list(train_drafters(lab, config, None))
    assert len(set(paths)) == 2
    assert list(train_drafters(lab, config, None)) == paths
    assert latest_drafter(lab.store, config).checkpoint == paths[1]

    lines = list(evaluate_checkpoint(lab, config, paths[0]))
    assert [line.split()[:3] for line in lines[1:]] == [
        ["vicuna", "replay", "3"],
        ["vicuna", "decode", "1"],
    ]
    assert lines[2].split()[4] == "1/1"

    text, result = say(lab, config)
    target = lab.target(config.target)
    ids = target.encode_chat([{"role": "user", "content": "Hello there"}])
    plain = dflash_generate(
        None, target, torch.tensor([ids]), 12, target.stop_token_ids, block_size=1
    )
    assert result.output_ids.tolist() == plain.tolist()
    shown = target.decode([t for t in plain[0, len(ids) :].tolist() if t != 3]).rstrip("\ufffd")
    answer = text.partition("\n\n")[2].rpartition("\n\n")[0]
    assert answer.replace("[", "").replace("]", "") == shown.replace("[", "").replace("]", "")
    assert f"τ {result.acceptance().tau:.2f}" in text
    assert "tok/s" in text

    output = tmp_path / "copy"
    assert list(train_drafters(lab, compose_config([*small_overrides, "seeds=[0]"]), output)) == [
        output
    ]
    assert say(lab, config, drafter=output)[1].output_ids.tolist() == plain.tolist()
    with pytest.raises(UserError, match="--output"):
        list(train_drafters(lab, config, output))


def test_a_drafter_of_another_target_is_refused(lab, config, tmp_path, small_overrides):
    (path,) = train_drafters(lab, compose_config([*small_overrides, "seeds=[0]"]), None)
    text = (path / "config.json").read_text()
    copy = tmp_path / "other"
    copy.mkdir()
    (copy / "config.json").write_text(text.replace('"hidden_size": 32', '"hidden_size": 64'))
    (copy / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    with pytest.raises(UserError, match="hidden_size=64 is not valid; allowed: 32"):
        say(lab, config, drafter=copy)
    with pytest.raises(UserError, match="a folder with config"):
        say(lab, config, drafter=tmp_path / "absent")


def test_an_arm_can_be_trained_by_name(small, small_overrides):
    for name, norm in ((f"{small}/bare", "none"), (small, "both")):
        _, arm = load_arm(name, small_overrides)
        assert arm.config.drafter.attention.qk_norm == norm
    with pytest.raises(UserError, match="control, bare, leaky"):
        load_arm(f"{small}/bear", small_overrides)


def test_unfinished_characters_wait_for_their_bytes():
    stream = TextStream(lambda ids: bytes(ids).decode(errors="replace"), hidden=[0])
    assert [stream.push([byte]) for byte in "aé!".encode()] == ["a", "", "é", "!"]
    assert stream.push([0]) == ""


@pytest.mark.parametrize(
    ("terminal", "expected"),
    [(False, "[ab]c"), (True, "\x1b[32mab\x1b[0m\x1b[1;33mc\x1b[0m")],
)
def test_accepted_and_own_tokens_are_told_apart(terminal, expected):
    file = io.StringIO()
    system = "standard" if terminal else None
    console = Console(file=file, force_terminal=terminal, color_system=system, _environ={})
    Printer(console, TextStream(lambda ids: bytes(ids).decode(), hidden=[])).step([97, 98], 99)
    assert file.getvalue() == expected


def test_a_lab_keeps_one_target(lab, config):
    assert lab.target(config.target) is lab.target(config.target)
    assert isinstance(lab, Lab)
    assert isinstance(lab.store, Store)


def test_entries_of_another_version_are_passed_over(lab, config, tmp_path):
    paths = list(train_drafters(lab, config, None))
    newest = next(e for e in lab.store.entries("train") if e in paths[1].parents)
    facts = newest / "train.json"
    facts.write_text(facts.read_text(encoding="utf-8").replace('"path"', '"checkpoint"'))
    assert latest_drafter(lab.store, config).checkpoint == paths[0]


def test_a_negative_control_is_not_what_generate_takes(lab, config, small_overrides):
    honest, _ = train_drafters(lab, config, None)
    leaky = compose_config([*small_overrides, "drafter.attention.leak=1", "seeds=[7]"])
    (path,) = train_drafters(lab, leaky, None)
    assert path != honest
    assert latest_drafter(lab.store, config).checkpoint.parent.name.startswith("train-")
    assert latest_drafter(lab.store, config).checkpoint != path


def test_a_drafter_in_bf16_keeps_its_rotary_frequencies(lab, config, small_overrides):
    (path,) = train_drafters(lab, compose_config([*small_overrides, "seeds=[0]"]), None)
    exact = DFlashDraftModel.from_pretrained(path).rotary_emb.inv_freq
    rounded = compose_config([*small_overrides, "target.dtype=bfloat16"])
    drafter = Trained.of_checkpoint(path).load(lab.target(rounded.target))
    assert drafter.dtype == torch.bfloat16
    assert drafter.rotary_emb.inv_freq.dtype == torch.float32
    assert torch.equal(drafter.rotary_emb.inv_freq, exact)


def test_the_key_of_answers_holds_the_text_of_every_set_that_is_asked(monkeypatch):
    monkeypatch.setattr("dflash.lab.stages.answers.prompt_versions", list)
    config = compose_config(
        ["data.train={written: 5, gsm8k: 0, docstrings: 0, gsm_symbolic: 0}", "data.eval.gsm8k=3"]
    )
    evaluation = ["gsm8k", "humaneval", "mt_bench", "vicuna"]
    asked = {split: answers_key(config, split, {}).config["prompts"] for split in ("train", "eval")}
    assert asked == {"train": [*evaluation, "written"], "eval": evaluation}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("target.attn_implementation=sdpa", "target.attn_implementation=eager"),
        ("train.precision=32-true", "train.precision=bf16-mixed"),
        (
            "data={mode: online, feature_dtype: float32}",
            "data={mode: online, feature_dtype: bfloat16}",
        ),
    ],
)
def test_what_changes_a_drafter_is_in_its_key(lab, small, small_overrides, one, other):
    names = []
    for override in (one, other):
        config = compose_config([*small_overrides, override])
        info = target_info(lab, config.target)
        names.append(train_key(config, 0, info.identity, "rollouts", None).name)
    assert names[0] != names[1]
    same = compose_config([*small_overrides, "train.precision=32-true"])
    auto = compose_config([*small_overrides, "train.precision=auto"])
    if precision_of("auto", torch.device("cpu")) == "32-true":
        assert train_key(same, 0, info.identity, "r", None) == train_key(
            auto, 0, info.identity, "r", None
        )


@pytest.mark.parametrize("verb", [("train",), ("evaluate", "folder"), ("generate", "Hello")])
def test_work_on_one_drafter_refuses_an_executor(small, verb, capsys, tmp_path):
    words = [*verb, "target=tiny", "executor.workers=2", "--store", str(tmp_path)]
    assert main(words) == 2
    text = capsys.readouterr().err
    assert "executor.workers=2 is not valid; allowed: None: one drafter is worked on" in text
    assert text.count("\n") == 1
