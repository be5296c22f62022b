"""Why an attempt ended. Pure: exit records, exit codes and last lines in, a cause out."""

from flows.failures.case import Case, Cause, RankExit
from flows.failures.classify import classify

__all__ = ["Case", "Cause", "RankExit", "classify"]
