"""The scheduler's process: read, decide, apply."""
