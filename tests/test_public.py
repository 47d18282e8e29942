"""The public interface of design §4, as a reader of the README would import it."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest


def test_the_names_of_the_readme():
    import dflash
    from dflash import dflash_generate
    from dflash.decoding import dflash_generate as of_decoding
    from dflash.model import (  # noqa: F401
        DFlashDraftModel,
        Qwen3DFlashAttention,
        Qwen3DFlashDecoderLayer,
        build_target_layer_ids,
        extract_context_feature,
    )

    assert dflash_generate is of_decoding
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dflash.nothing  # noqa: B018


def test_the_model_does_not_pull_in_the_layers_above():
    code = (
        "import sys, dflash.model; "
        "print([n for n in sys.modules if n.startswith(('dflash.dec', 'dflash.lab', 'dflash.tr'))])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert shown.strip() == "[]"


@pytest.mark.parametrize("package", ["dflash", "dflash.model", "dflash.target", "dflash.decoding"])
def test_every_public_name_is_found(package):
    module = importlib.import_module(package)
    for name in module.__all__:
        assert getattr(module, name).__name__ == name
    with pytest.raises(AttributeError, match=f"'{package}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


def test_bad_input_is_refused_without_loading_pytorch():
    code = (
        "import sys; from dflash.cli import main; status = main(['ablate', 'no_qknrm']); "
        "print(status, [n for n in ('torch', 'transformers', 'datasets') if n in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "2 []"
    assert "no_qknorm" in shown.stderr
