"""Stage "target": what the other stages need to know about a target without loading it."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PretrainedConfig

from dflash.lab.provenance import device_name
from dflash.lab.stages.common import Code, Lab, read_json, write_json
from dflash.lab.store import Key
from dflash.model.errors import UserError
from dflash.target import TargetConfig, check_mask_token, looks_unused
from dflash.target.load import device_of, hub_commit

CODE = Code(
    roots=("dflash.lab.stages.target", "dflash.target.load"),
    packages=("dflash.target", "dflash.model"),
)


@dataclass(frozen=True)
class TargetInfo:
    """A loaded target in words and numbers.

    Attributes:
        fingerprint: names weights and dtype.
        device: where it runs on this machine, in words.
        hf_config: its Hugging Face configuration, for sizes.
    """

    fingerprint: str
    template_hash: str
    attention: str
    num_layers: int
    device: str
    hf_config: PretrainedConfig

    @property
    def identity(self) -> dict[str, str]:
        """What makes answers and features of this target differ from another's."""
        return {
            "fingerprint": self.fingerprint,
            "template": self.template_hash,
            "attention": self.attention,
        }


def target_key(config: TargetConfig) -> Key:
    """Key from the source's own version: no weights are read."""
    parts: dict[str, Any] = asdict(config) | {"signature": _signature(config)}
    del parts["name"], parts["device"]  # neither changes what is told about it
    return CODE.key("target", parts, {})


def target_info(lab: Lab, config: TargetConfig) -> TargetInfo:
    """The stored description; the first call for a target loads (and if need be converts) it.

    Raises:
        UserError: the model cannot be found or loaded, or its mask token already means something.
    """

    def work(directory: Path) -> None:
        lab.say(f"loading target {config.name} ({config.source})")
        target = lab.target(config)
        if config.mask_token_id is not None:
            check_mask_token(target, config.mask_token_id)
            if not looks_unused(target, config.mask_token_id):
                lab.say(
                    f"target.mask_token_id={config.mask_token_id}: no other token's embedding "
                    "resembles this one's, so the target may use the token; please make sure"
                )
        target.model.config.save_pretrained(directory)
        facts = {
            "fingerprint": target.fingerprint,
            "template_hash": target.template_hash,
            "attention": config.attn_implementation,
            "num_layers": target.num_layers,
        }
        write_json(directory / "target.json", facts)

    entry = lab.store.build(target_key(config), work)
    hf_config = AutoConfig.from_pretrained(entry, trust_remote_code=config.trust_remote_code)
    device = device_name(str(device_of(config.device)))  # of this machine; stores are shared
    return TargetInfo(**read_json(entry / "target.json"), device=device, hf_config=hf_config)


def _signature(config: TargetConfig) -> str:
    """Changes when the weights behind the same source change, as far as it can be told cheaply."""
    kind, _, package = config.source.partition("package:")
    if not kind and package:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            raise UserError.of(
                "target.source", config.source, f"an installed package: pip install {package}"
            ) from None
    directory = Path(config.source).expanduser()
    if directory.is_dir():
        digest = hashlib.sha256()
        for path in sorted(directory.iterdir()):
            stat = path.stat()
            digest.update(f"{path.name} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:16]
    return hub_commit(config)
