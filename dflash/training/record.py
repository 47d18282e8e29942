"""Where a run leaves what it was fed; apart from ``fed``, which needs Lightning to write it."""

FED = "fed.json"
FED_HASHES = ("order_hash", "anchor_hash", "feature_hash")
