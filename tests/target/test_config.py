from pathlib import Path

import pytest
import yaml

from dflash.model.errors import UserError
from dflash.model.switches import parse_dataclass
from dflash.target import TargetConfig

SHIPPED = sorted(Path("experiments/target").glob("*.yaml"))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "a/b"),
        ("name", ""),
        ("source", " "),
        ("dtype", "float16"),
        ("attn_implementation", "flash"),
        ("device", "tpu"),
        ("device", "cuda:x"),
    ],
)
def test_bad_value_names_the_field(field: str, value: str) -> None:
    given = {"name": "toy", "source": "somewhere", field: value}
    with pytest.raises(UserError, match=rf"target\.{field}=") as caught:
        TargetConfig(**given)
    assert "\n" not in str(caught.value)


def test_remote_code_is_off_unless_asked_for() -> None:
    assert TargetConfig("toy", "x").trust_remote_code is False


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_targets_parse(path: Path) -> None:
    config = parse_dataclass(TargetConfig, yaml.safe_load(path.read_text()), "target")
    assert config.name == path.stem


def test_shipped_targets_are_complete() -> None:
    names = {path.stem for path in SHIPPED}
    qwen = {"qwen3_0_6b", "qwen3_1_7b", "qwen3_4b", "qwen3_8b"}
    assert names >= {"smollm2_135m", "llama31_8b"} | qwen


def test_unknown_key_is_refused() -> None:
    with pytest.raises(UserError, match="sourc"):
        parse_dataclass(TargetConfig, {"name": "toy", "source": "x", "sourc": "y"}, "target")
