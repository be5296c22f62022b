"""People, teams, roles, tokens."""
