"""Prefect flows that run attempts, and the agents on the nodes that own the ranks."""
