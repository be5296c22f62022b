"""The process on each node that owns its ranks."""
