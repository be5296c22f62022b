"""The one append-only record of what happened."""
