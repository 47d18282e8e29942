"""Looking after a store: what is in it, why something is missing, what is damaged or unused."""
