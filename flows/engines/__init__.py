"""What starts, finds and ends node agents: one module per engine."""
