"""Plans are made without the network: nothing here may reach for the hub."""

from __future__ import annotations

import pytest

import dflash.lab.plan.data as data
import dflash.lab.plan.target as target
import dflash.target.published as published


@pytest.fixture(autouse=True)
def no_hub(monkeypatch):
    """The hub does not answer, and nobody waits for it."""
    for module in (data, target, published):
        monkeypatch.setattr(module, "hub_answers", lambda: False)


@pytest.fixture(autouse=True)
def no_weights(monkeypatch, request):
    """Loading a target is an error, except in tests that say so."""
    if "weights" not in request.fixturenames:

        def refuse(*args, **kwargs):
            raise AssertionError("a plan loaded a target")

        monkeypatch.setattr("dflash.lab.stages.common.load_target", refuse)


@pytest.fixture
def weights():
    """This test runs something first."""
