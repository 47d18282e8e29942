"""Are the arms matched? Compares what the runs of a seed recorded about data and starting values.

An arm may differ from its control only where a key that it declares governs the difference. Any
other mismatch makes the run a failed row, so that no comparison rests on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from dflash.lab.config import LabConfig
from dflash.lab.experiment import Arm
from dflash.lab.grid import Outcome
from dflash.lab.invariants import MEASURED, Invariant, broken


@dataclass(frozen=True)
class Governor:
    """A key, or a section of keys, that may change an aspect of a run.

    Attributes:
        when: whether it does so, given the control's or the arm's configuration.
    """

    key: str
    when: Callable[[LabConfig], bool] = lambda config: True

    def covers(self, name: str) -> bool:
        return name == self.key or name.startswith(f"{self.key}.")


def _starts_from_target(config: LabConfig) -> bool:
    return config.train.init == "target"


# The target's answers; the prompts that judge are left out of those that train.
ROLLOUTS = tuple(
    Governor(key)
    for key in (
        "target",
        "data.train",
        "data.eval",
        "data.train_new_tokens",
        "data.rollouts",
        "data.temperature",
        "data.seed",
    )
)
SEED = Governor("train.seed_shift")
ORDER = (
    *ROLLOUTS,
    SEED,
    Governor("train.sequences"),
    Governor("train.max_length"),
)
ANCHORS = (
    *ORDER,
    Governor("train.anchors"),
    Governor("train.anchors_per_sequence"),
    Governor("drafter.block_size", lambda config: config.train.anchors == "uniform"),
)
FEATURES = (
    *ORDER,
    Governor("data.feature_dtype"),
    Governor("drafter.features.taps"),
    Governor("drafter.kv.fusion", lambda config: config.drafter.kv.fusion == "none"),
)
INIT = (
    Governor("target"),
    SEED,
    Governor("train.init"),
    *(
        Governor(key, _starts_from_target)
        for key in (
            *(governor.key for governor in ROLLOUTS),
            "drafter.num_layers",
            "drafter.features.taps",
        )
    ),
)


@dataclass(frozen=True)
class Aspect:
    """Something that matched arms have in common.

    Attributes:
        name: as tables and sentences call it.
        fact: where a run's facts say it.
        governors: what may change it; nothing else may.
    """

    name: str
    fact: str
    governors: tuple[Governor, ...]


ASPECTS = (
    Aspect("order", "order_hash", ORDER),
    Aspect("anchors", "anchor_hash", ANCHORS),
    Aspect("features", "feature_hash", FEATURES),
    Aspect("initial values", "init", INIT),
)


@dataclass(frozen=True)
class Comparison:
    """One aspect of one arm's run, beside the control's of the same seed.

    Attributes:
        declared: keys the arm declares that govern the aspect.
        shared: parameters of equal name and shape; 0 for the other aspects.
        different: those of them that start from other values.
    """

    arm: str
    seed: int
    aspect: str
    equal: bool
    declared: tuple[str, ...]
    shared: int = 0
    different: tuple[str, ...] = ()

    @property
    def allowed(self) -> bool:
        return self.equal or bool(self.declared)

    def __str__(self) -> str:
        parameters = f" of {', '.join(self.different[:3])}" if self.different else ""
        more = f" and {len(self.different) - 3} more" if len(self.different) > 3 else ""
        verb = "differs" if self.aspect == "order" else "differ"
        them = "it" if self.aspect == "order" else "them"
        return (
            f"{self.aspect}{parameters}{more} {verb} from the control's "
            f"although no declared key governs {them}"
        )


@dataclass(frozen=True)
class Proof:
    """What the comparison of all arms with their control found.

    Attributes:
        outcomes: as given, with every run that is not matched turned into a failed one.
    """

    outcomes: list[Outcome]
    comparisons: list[Comparison]

    def report(self) -> dict[str, Any]:
        """Plain data for ``matched.json``."""
        rows = [asdict(item) | {"allowed": item.allowed} for item in self.comparisons]
        return {"sentence": sentence(self.comparisons), "comparisons": rows}


def prove_matched(outcomes: Sequence[Outcome], invariants: Sequence[Invariant] = ()) -> Proof:
    """Compare every arm that ran with the control of its seed, also in what ``invariants`` say."""
    controls = {item.seed: item for item in outcomes if item.planned.arm.control}
    checked: list[Outcome] = []
    comparisons: list[Comparison] = []
    for item in outcomes:
        found = [] if item.planned.arm.control else compare(controls.get(item.seed), item)
        comparisons += found
        wrong = [str(comparison) for comparison in found if not comparison.allowed]
        if found and (fault := _broken(invariants, controls[item.seed], item)):
            wrong.append(fault)
        if wrong:
            item = replace(item, cell=None, error=f"not matched: {'; '.join(wrong)}")
        checked.append(item)
    return Proof(checked, comparisons)


def _broken(invariants: Sequence[Invariant], control: Outcome, other: Outcome) -> str | None:
    """The first invariant that a run breaks, in words."""
    facts = _facts_beside(control, other)
    asked = {item.what: MEASURED[item.what] for item in invariants if item.what in MEASURED}
    values = [{what: told[fact] for what, fact in asked.items()} for told in facts]
    return broken(invariants, other.planned.arm.name, *values)


def _facts_beside(*outcomes: Outcome) -> list[dict[str, Any]]:
    """Facts of runs; what they were fed, as far as the shortest of them went."""
    runs = [item.cell.trained for item in outcomes if item.cell is not None]
    steps = min(run.facts["steps"] for run in runs)
    return [run.facts_at(steps) for run in runs]


def compare(control: Outcome | None, other: Outcome) -> list[Comparison]:
    """Every aspect of two runs; none when one of them failed."""
    if control is None or control.cell is None or other.cell is None:
        return []
    theirs, ours = _facts_beside(control, other)
    arms = (control.planned.arm, other.planned.arm)
    found = []
    for aspect in ASPECTS:
        before, after = theirs[aspect.fact], ours[aspect.fact]
        row = Comparison(arms[1].name, other.seed, aspect.name, True, declared(aspect, *arms))
        if aspect.fact == "init":
            shared = [name for name in after if _shape(before.get(name)) == _shape(after[name])]
            different = tuple(name for name in shared if before[name] != after[name])
            row = replace(row, equal=not different, shared=len(shared), different=different)
        else:
            row = replace(row, equal=before == after)
        found.append(row)
    return found


def declared(aspect: Aspect, control: Arm, arm: Arm) -> tuple[str, ...]:
    """The keys in an arm's patch that govern an aspect."""
    governors = [
        governor
        for governor in aspect.governors
        if governor.when(control.config) or governor.when(arm.config)
    ]
    return tuple(name for name in arm.diff if any(item.covers(name) for item in governors))


def sentence(comparisons: Sequence[Comparison]) -> str:
    """The outcome in words, for the summary."""
    if not comparisons:
        return "Arms not compared: no arm ran beside its control."
    wrong = [item for item in comparisons if not item.allowed]
    if wrong:
        lines = (f"{item.arm}, seed {item.seed}: {item}" for item in wrong)
        return f"Arms NOT matched: {'; '.join(lines)}."
    counts = sorted({item.shared for item in comparisons if item.aspect == ASPECTS[-1].name})
    count = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    text = f"Arms matched: order, anchors, features, {count} shared parameters equal at the start"
    exceptions = dict.fromkeys(
        f"{item.arm}: {item.aspect} ({', '.join(item.declared)})"
        for item in comparisons
        if not item.equal
    )
    return f"{text}, except as declared: {'; '.join(exceptions)}." if exceptions else f"{text}."


def _shape(described: str | None) -> str | None:
    return None if described is None else described.partition(":")[0]
