"""The drafter's KV cache: it keeps committed context and forgets each block.

Any ``DynamicCache`` works. A forward with a cache appends the new context's keys and the block's;
after the step the block must go again, since its tokens may be rejected and, when accepted, enter
as target features. Drafters without context keys have nothing to keep and write nothing.
"""

from __future__ import annotations

from transformers import DynamicCache
from transformers.cache_utils import Cache


def crop_to(cache: Cache, length: int) -> None:
    """Keep the first ``length`` entries, the committed context; a shorter cache stays as it is."""
    surplus = cache.get_seq_length() - length
    if surplus > 0:
        cache.crop(-surplus)


def new_cache() -> DynamicCache:
    """An empty cache; its layers appear at the first forward."""
    return DynamicCache()
