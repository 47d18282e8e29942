"""The token that stands for "not drafted yet" (contract: Mask token; pitfalls row 39)."""

from __future__ import annotations

from dflash.model.errors import UserError
from dflash.target.load import Target

MEANINGFUL = ("pad", "eos", "bos", "unk")


def check_mask_token(target: Target, mask_token_id: int | None) -> int:
    """The id, if it may serve as mask token.

    Raises:
        UserError: no id, an id outside the embedding, or one that already means something to the
            target. The first reason is never repaired by a guess.
    """
    field = "target.mask_token_id"
    if mask_token_id is None:
        raise UserError.of(field, None, "the id of a token this target never uses")
    if not 0 <= mask_token_id < target.vocab_size:
        raise UserError.of(field, mask_token_id, f"an id from 0 to {target.vocab_size - 1}")
    for role, ids in _roles(target).items():
        if mask_token_id in ids:
            raise UserError.of(field, mask_token_id, f"an unused id; this one is {role}")
    return mask_token_id


def _roles(target: Target) -> dict[str, set[int]]:
    """Ids with a meaning, from the tokenizer, the model config and the stop tokens."""
    roles: dict[str, set[int]] = {"a stop token": set(target.stop_token_ids)}
    for role in MEANINGFUL:
        for owner in (target.tokenizer, target.model.config):
            value = getattr(owner, f"{role}_token_id", None)
            ids = value if isinstance(value, list) else [value]
            roles.setdefault(role, set()).update(token for token in ids if token is not None)
    return roles


def looks_unused(target: Target, token_id: int, similarity: float = 0.999) -> bool:
    """Whether training seems never to have touched the embedding row of ``token_id``.

    Rows of tokens that no text contains are moved only by what moves all rows alike (the softmax
    pushing absent tokens down, weight decay), so they end up pointing the same way. A row counts as
    unused when another row's cosine with it is at least ``similarity``. A hint for a warning, not a
    proof; a lone unused row is not recognised.
    """
    weight = target.embedding.weight.detach()  # [V, H]
    norms = weight.norm(dim=-1).clamp(min=1e-12)  # padding rows may be zero
    cosine = weight @ weight[token_id] / (norms * norms[token_id])  # [V]
    cosine[token_id] = -1.0
    return bool(cosine.max() >= similarity)
