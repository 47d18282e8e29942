"""Every switch of the drafter, with the paper's value as the default (design §5).

One frozen dataclass per component; this file is the only place where their defaults are written.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError

from dflash.model.errors import UserError

T = TypeVar("T")


def _check(where: str, value: str, names: tuple[str, ...], *prefixes: str) -> None:
    """Accept one of ``names`` or ``<prefix>:<positive integer>``."""
    if value in names:
        return
    match = re.fullmatch(r"([a-z]+):([1-9]\d*)", value)
    if match is None or match.group(1) not in prefixes:
        allowed = ", ".join([*names, *(f"{prefix}:<n>" for prefix in prefixes)])
        raise UserError.of(where, value, allowed)


def argument_of(value: str) -> int:
    """The integer of ``window:64``, ``top:4096`` or ``uniform:5``."""
    return int(value.partition(":")[2])


@dataclass(frozen=True)
class AttentionSwitches:
    """Who a slot sees, and what is normalised before it looks."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    block: Literal["bidirectional", "causal", "diagonal"] = "bidirectional"
    context: str = "full"  # full | window:<w> | latest | index_causal | none
    leak: int = 0  # training-only negative control: features at or after the anchor
    qk_norm: Literal["both", "q", "k", "none"] = "both"
    qk_norm_place: Literal["pre_rope", "post_rope"] = "pre_rope"

    def __post_init__(self) -> None:
        names = ("full", "latest", "index_causal", "none")
        _check("drafter.attention.context", self.context, names, "window")
        if self.leak < 0:
            raise UserError.of("drafter.attention.leak", self.leak, "0 or a positive integer")


@dataclass(frozen=True)
class KVSwitches:
    """What keys and values are made of, and how target features enter."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    source: Literal["target+draft", "draft", "target"] = "target+draft"
    projection: Literal["shared", "separate"] = "shared"
    fusion: Literal["fused", "input", "none"] = "fused"


@dataclass(frozen=True)
class FeatureSwitches:
    """Which layers of the target are tapped, and whether their mix is normalised."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    taps: str | tuple[int, ...] = "uniform:5"  # uniform:<n> | early | middle | late | last | ids
    norm: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.taps, str):
            names = ("early", "middle", "late", "last")
            _check("drafter.features.taps", self.taps, names, "uniform")
        elif not self.taps or min(self.taps) < 0 or len(set(self.taps)) < len(self.taps):
            raise UserError.of("drafter.features.taps", list(self.taps), "distinct layer ids")


@dataclass(frozen=True)
class RopeSwitches:
    """Rotary positions."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    context: bool = True  # rotate the keys made of target features


@dataclass(frozen=True)
class DrafterSwitches:
    """The drafter of the paper; change one field and you have an arm."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    num_layers: int = 5
    block_size: int = 16
    mlp_size: int | None = None  # inner width of every MLP; None: the target's
    attention: AttentionSwitches = field(default_factory=AttentionSwitches)
    kv: KVSwitches = field(default_factory=KVSwitches)
    features: FeatureSwitches = field(default_factory=FeatureSwitches)
    rope: RopeSwitches = field(default_factory=RopeSwitches)
    mask_embedding: Literal["reserved", "learned", "mean", "zero"] = "reserved"
    vocab: str = "full"  # full | top:<n>

    def __post_init__(self) -> None:
        if self.num_layers < 1:
            raise UserError.of("drafter.num_layers", self.num_layers, "an integer of at least 1")
        if self.block_size < 2:
            raise UserError.of("drafter.block_size", self.block_size, "an integer of at least 2")
        if self.mlp_size is not None and self.mlp_size < 1:
            allowed = "null or an integer of at least 1"
            raise UserError.of("drafter.mlp_size", self.mlp_size, allowed)
        _check("drafter.vocab", self.vocab, ("full",), "top")
        self._check_combination()

    def _check_combination(self) -> None:
        context, source = self.attention.context, self.kv.source
        if source == "target" and context == "none":
            raise UserError.of(
                "drafter.attention.context", context, "anything else when kv.source=target"
            )
        if self.kv.fusion == "input":
            if source == "target":
                raise UserError.of(
                    "drafter.kv.source", source, "target+draft, draft when kv.fusion=input"
                )
            if context in ("none", "index_causal"):
                raise UserError.of(
                    "drafter.attention.context",
                    context,
                    "full, window:<n>, latest with kv.fusion=input",
                )
        if self.attention.leak and not self.context_keys:
            raise UserError.of(
                "drafter.attention.leak", self.attention.leak, "0 when no slot has context keys"
            )

    @property
    def context_keys(self) -> bool:
        """Whether the committed context enters attention as keys and values."""
        visible = self.attention.context != "none" and self.kv.fusion != "input"
        return visible and self.kv.source != "draft"

    @property
    def block_keys(self) -> bool:
        """Whether a block's own slots enter attention as keys and values."""
        return self.kv.source != "target"


def parse_dataclass(cls: type[T], data: dict[str, Any], where: str) -> T:
    """Build a (nested) dataclass from plain data, strictly.

    Args:
        cls: a dataclass type.
        data: nested dictionaries and lists, e.g. from YAML.
        where: dotted name of ``data`` for messages, e.g. ``"drafter"``.

    Raises:
        UserError: unknown key (with the nearest valid one), wrong type or value.
    """
    try:
        return cast(T, _adapter(cast(Any, cls)).validate_python(data))
    except ValidationError as error:
        raise UserError(_first_line(error, cls, where)) from None


@functools.cache
def _adapter(cls: type) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


def _first_line(error: ValidationError, cls: type, where: str) -> str:
    first = error.errors()[0]
    parts = [str(part) for part in first["loc"]]  # members of a union stand among the names
    path = [part for part in parts if part not in ("str", "int") and not part.startswith("tuple[")]
    dotted = ".".join([where, *path])
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, UserError):
        return str(cause)
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        names = _fields_at(cls, path[:-1])
        near = difflib.get_close_matches(path[-1], names, n=1, cutoff=0.0)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"{dotted} is not a key; {hint}allowed: {', '.join(names)}"
    return f"{dotted}={first['input']!r} is not valid; {first['msg']}"


def _fields_at(cls: type, path: list[str]) -> list[str]:
    for name in path:
        default = next(f for f in dataclasses.fields(cls) if f.name == name)
        factory = default.default_factory
        cls = factory if isinstance(factory, type) else type(default.default)
    return [f.name for f in dataclasses.fields(cls)]
