"""Queues, cohorts and their limits per GPU type."""
