"""Replay of a trace of jobs in virtual time, under a scheduling rule."""
