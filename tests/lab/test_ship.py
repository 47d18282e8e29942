"""Adding to the answers that the repository carries."""

from __future__ import annotations

import pytest

from dflash.data import shipped
from dflash.data.shipped import shipped_answers
from dflash.lab.config import compose_config
from dflash.lab.ship import ship
from dflash.model.errors import UserError

GREEDY = ["data.temperature=0", "data.train={gsm_symbolic: 0, docstrings: 0, written: 4}"]


def test_what_was_missing_is_added_and_then_found(
    lab, small, small_overrides, tmp_path, monkeypatch
):
    monkeypatch.setattr(shipped, "FOLDER", str(tmp_path / "shipped"))
    shipped._files.cache_clear()
    overrides = [*small_overrides, *GREEDY]
    path = tmp_path / "shipped" / "tiny.parquet"
    assert ship(overrides, lab.store.root, path) == path
    config = compose_config(overrides)
    target = lab.target(config.target)
    carried = shipped_answers(target, config.data.eval_new_tokens)
    assert len(carried) >= 3 + 4  # every first turn
    before = path.read_bytes()
    ship(overrides, tmp_path / "another_store", path)  # nothing is missing any more
    assert path.read_bytes() == before
    shipped._files.cache_clear()
    with pytest.raises(UserError, match=r"data\.temperature=1\.0"):
        ship([*overrides, "data.temperature=1"], lab.store.root, path)
