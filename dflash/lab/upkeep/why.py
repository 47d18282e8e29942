"""Why an entry would be built: what differs from the nearest one that is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from dflash.lab.code_version import module_file
from dflash.lab.schema import difference, plain
from dflash.lab.stages.answers import CODE as ROLLOUTS
from dflash.lab.stages.common import Code
from dflash.lab.stages.decode import CODE as DECODE
from dflash.lab.stages.features import CODE as FEATURES
from dflash.lab.stages.floors import CODE as FLOOR
from dflash.lab.stages.pace import CODE as PACE
from dflash.lab.stages.replay import CODE as REPLAY
from dflash.lab.stages.target import CODE as TARGET
from dflash.lab.stages.train import CODE as TRAIN
from dflash.lab.store import Key, StoreError, check_entry, stage_of
from dflash.lab.upkeep.catalogue import Catalogue
from dflash.lab.upkeep.wanted import Wanted
from dflash.model.errors import UserError

CODES: dict[str, Code] = {
    "target": TARGET,
    "rollouts": ROLLOUTS,
    "features": FEATURES,
    "train": TRAIN,
    "pace": PACE,
    "replay": REPLAY,
    "autoregressive": DECODE,
    "decode": DECODE,
    "floor": FLOOR,
}
INDENT = "  "


def why_experiment(catalogue: Catalogue, wanted: Mapping[str, Wanted]) -> Iterator[str]:
    """Lines on every wanted entry that is missing or damaged, in the order of building."""
    reasons = Reasons(catalogue, {name: item.key for name, item in wanted.items()})
    missing = 0
    for name, item in wanted.items():
        state = _state(catalogue, name)
        if state:
            missing += 1
            others = f" and {len(item.runs) - 1} more" if len(item.runs) > 1 else ""
            yield f"{name} (for {item.runs[0]}{others}) {state}"
            if state == "is missing":
                yield from _indented(reasons.of_missing(item.key))
    yield f"{len(wanted) - missing} of {len(wanted)} entries are stored"
    if all(item.key.stage == "target" for item in wanted.values()):
        yield "the others are named by what the target's entry says"


def why_entry(catalogue: Catalogue, name: str) -> Iterator[str]:
    """Lines on one stored entry: is it whole, and would the code of now make it again?

    Raises:
        UserError: no such entry.
    """
    if _state(catalogue, name) == "is missing":
        stage = stage_of(name)
        known = [other for other in catalogue.manifests if stage_of(other) == stage]
        raise UserError.of("NAME", name, f"a stored entry: {', '.join(known[-3:]) or 'none yet'}")
    if state := _state(catalogue, name):
        yield f"{name} {state}"
        return
    keys: dict[str, Key] = {}
    key = refreshed(catalogue, name, keys)
    if key.name == name:
        yield f"{name} is whole and up to date: it would be used as it is"
        return
    yield f"{name} is whole but out of date: the same configuration now makes {key.name}"
    yield from _indented(Reasons(catalogue, keys).between(catalogue.manifests[name], key))


def refreshed(catalogue: Catalogue, name: str, keys: dict[str, Key]) -> Key:
    """The key of an entry's configuration by the code of now; ``keys`` gets the inputs' as well."""
    manifest = catalogue.manifests[name]
    inputs = {
        role: refreshed(catalogue, other, keys).name if other in catalogue.manifests else other
        for role, other in manifest["inputs"].items()
    }
    if manifest["stage"] not in CODES:
        raise UserError.of("NAME", name, f"an entry of a stage of now: {', '.join(CODES)}")
    key = CODES[manifest["stage"]].key(manifest["stage"], manifest["config"], inputs)
    keys[key.name] = key
    return key


class Reasons:
    """Differences between stored entries and the keys that are wanted, each told once.

    Args:
        keys: name -> key of everything wanted, so that the inputs of a key can be followed.
    """

    def __init__(self, catalogue: Catalogue, keys: Mapping[str, Key]) -> None:
        self.manifests = catalogue.manifests
        self.keys = keys
        self._told: set[tuple[str, str]] = set()

    def of_missing(self, key: Key) -> Iterator[str]:
        """Against the nearest entry of the same stage: the one with the fewest differences."""
        rivals = [name for name, known in self.manifests.items() if known["stage"] == key.stage]
        if not rivals:
            yield f"no {key.stage} entry is stored yet"
            return
        distance = {name: self._distance(self.manifests[name], key) for name in reversed(rivals)}
        nearest = min(distance, key=lambda name: distance[name])  # the newest of equals
        yield f"nearest: {nearest}"
        yield from self.between(self.manifests[nearest], key)

    def between(self, manifest: Mapping[str, Any], key: Key) -> Iterator[str]:
        """Configuration, code and inputs that differ; inputs are followed to what changed there."""
        yield from _config_lines(manifest, key)
        yield from _code_lines(manifest, key)
        for role, before, now in _changed_inputs(manifest, key):
            yield f"{role}: {before or 'none'} -> {now or 'none'}"
            if (before, now) in self._told:
                yield f"{INDENT}as above"
            elif before in self.manifests and now in self.keys:
                self._told.add((before, now))
                yield from _indented(self.between(self.manifests[before], self.keys[now]))

    def _distance(self, manifest: Mapping[str, Any], key: Key) -> int:
        own = [*_config_lines(manifest, key), *_code_lines(manifest, key)]
        deeper = [
            self._distance(self.manifests[before], self.keys[now])
            for _, before, now in _changed_inputs(manifest, key)
            if before in self.manifests and now in self.keys
        ]
        return len(own) + len(list(_changed_inputs(manifest, key))) + sum(deeper)


def _state(catalogue: Catalogue, name: str) -> str:
    """Empty for an entry that can be used."""
    path = catalogue.store.root / name
    if not path.is_dir():
        return "is missing"
    try:
        check_entry(path)
    except StoreError as error:
        return f"cannot be used: {error}"
    return ""


def _config_lines(manifest: Mapping[str, Any], key: Key) -> Iterator[str]:
    for name, (before, now) in difference(manifest["config"], plain(key.config)).items():
        yield f"config {name}: {json.dumps(before)} -> {json.dumps(now)}"


def _code_lines(manifest: Mapping[str, Any], key: Key) -> Iterator[str]:
    if manifest["code"] == key.code:
        return
    modules = manifest.get("modules")
    if not modules:
        yield "code changed; the entry does not say which modules it was made by"
        return
    for name in sorted({*modules, *key.modules}):
        if name not in key.modules:
            yield f"code of {name} is no longer used"
        elif modules.get(name) != key.modules[name]:
            verb = "changed" if name in modules else "is new"
            yield f"code of {name} {verb} ({module_file(name)})"


def _changed_inputs(manifest: Mapping[str, Any], key: Key) -> Iterator[tuple[str, str, str]]:
    for role in sorted({*manifest["inputs"], *key.inputs}):
        before, now = manifest["inputs"].get(role, ""), key.inputs.get(role, "")
        if before != now:
            yield role, before, now


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return (f"{INDENT}{line}" for line in lines)
