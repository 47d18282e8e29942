"""The command line: exit status, one line for a mistake, help worth reading."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from dflash.cli import RESUME, build_parser, main
from dflash.model.errors import UserError


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["ablate", "no_qnorm"], "did you mean 'no_qknorm'"),
        (["ablate", "no_qknorm", "drafter.num_layer=3"], "did you mean 'drafter.num_layers'"),
        (["ablate", "no_qknorm", "drafter.num_layers=many"], "drafter.num_layers='many'"),
        (["ablate", "no_qknorm", "drafter.attention.qk_norm=none"], "so it tests nothing"),
        (["ablate", "no_qknorm", "--tier", "smokey"], "did you mean 'smoke'"),
        (["ablate", "no_qknorm", "--seeds", "a"], "seeds="),
        (["ablate", "no_qknorm", "--seeds", "1,1"], "seeds=[1, 1]"),
        (["ablate", "no_qknorm", "--wat"], "'--wat' is not understood"),
        (["ablate", "no_qknorm", "oops"], "oops"),
        (["ablate"], "NAME"),
        (["explain", "no_qnorm"], "did you mean 'no_qknorm'"),
        (["cost", "no_qknorm", "--price", "cheap"], "cheap"),
        (["generate", " ", "target.device=cpu"], "PROMPT=' '"),
        (["generate", "hi", "--new-tokens", "few"], "few"),
        (["train", "no_qknorm/other"], "no_qknorm"),
        (["evaluate", "/nowhere"], "drafter='/nowhere'"),
        (["evaluate", "/nowhere", "drafter.num_layers=2"], "the checkpoint decides"),
        (["frobnicate"], "frobnicate"),
        ([], "VERB"),
    ],
)
def test_a_mistake_is_one_line_and_status_two(argv, message, capsys, tmp_path):
    store = ["--store", str(tmp_path)] if argv[:1] not in ([], ["frobnicate"]) else []
    assert main([*argv, *store]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert output.err.startswith("dflash: ")
    assert message in output.err


def test_a_reader_that_has_read_enough_is_no_fault():
    program = [sys.executable, "-m", "dflash", "list"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


def test_list_names_every_experiment(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("no_qknorm ") and line.endswith("?") for line in lines)


@pytest.fixture
def recorded(monkeypatch):
    """What `ablate` would run, instead of running it."""
    calls = []

    def install(effect=None):
        def fake(lab, experiment, results, together, quota):
            calls.append((lab, experiment, results, together))
            raise effect or UserError("stop here")

        monkeypatch.setattr(importlib.import_module("dflash.lab.run"), "run_experiment", fake)
        return calls

    return install


@pytest.mark.parametrize(
    "argv",
    [
        ["--tier", "smoke", "train.lr=0.5", "--seeds", "3,4", "drafter.num_layers=3"],
        ["train.lr=0.5", "drafter.num_layers=3", "--tier", "smoke", "--seeds", "3,4"],
        ["train.lr=0.5", "tier=smoke", "drafter.num_layers=3", "seeds=[3,4]"],
        [
            "--tier",
            "smoke",
            "~data.eval.gsm8k",
            "train.lr=0.5",
            "drafter.num_layers=3",
            "--seeds=3,4",
        ],
    ],
)
def test_options_and_overrides_mix_in_any_order(argv, recorded, tmp_path):
    calls = recorded()
    assert main(["ablate", "no_qknorm", *argv, "--results", str(tmp_path / "r")]) == 2
    ((_, experiment, results, together),) = calls
    assert not together
    assert experiment.seeds == (3, 4)
    assert (experiment.config.train.lr, experiment.config.drafter.num_layers) == (0.5, 3)
    assert experiment.config.tier == "smoke"
    assert results == tmp_path / "r"


def test_arms_train_together_on_demand(recorded):
    calls = recorded()
    assert main(["ablate", "no_qknorm", "--together", "data.mode=online"]) == 2
    assert calls[0][-1] is True


def test_an_interruption_says_how_to_go_on(recorded, capsys):
    recorded(KeyboardInterrupt())
    assert main(["ablate", "no_qknorm"]) == 1
    assert capsys.readouterr().err == f"dflash: {RESUME}\n"


def test_a_fault_of_ours_keeps_its_traceback(recorded):
    recorded(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):  # the interpreter then exits with 1
        main(["ablate", "no_qknorm"])


def test_help_shows_every_verb_with_an_example(capsys):
    parser = build_parser()
    with pytest.raises(SystemExit) as stopped:
        parser.parse_args(["--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    for verb in ("ablate", "explain", "cost", "train", "evaluate", "generate", "list"):
        assert verb in text
        with pytest.raises(SystemExit):
            parser.parse_args([verb, "--help"])
        shown = capsys.readouterr().out
        assert "--store" in shown
        assert verb == "list" or f"dflash {verb}" in shown.partition("example")[2]
