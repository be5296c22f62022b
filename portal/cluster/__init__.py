"""Nodes: their GPUs, health and place."""
