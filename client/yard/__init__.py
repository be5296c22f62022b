"""The client of Trainyard: ``yard`` on the command line, ``Client`` in Python."""

from yard.client import Client, NotReachable, Refused

__all__ = ["Client", "NotReachable", "Refused"]
