"""A run that cannot work: said in one sentence, with the exit status that asks for no retry."""


class Refused(Exception):
    """Retrying unchanged cannot help."""
