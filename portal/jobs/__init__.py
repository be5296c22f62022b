"""Jobs, attempts, and everything that happens to them."""
