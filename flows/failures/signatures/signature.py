"""What a row of the tables is: a pattern, what it means, how much it proves, and what to do about it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# How much a line proves. FATAL: the machine or the engine says that it happened (kernel, Slurm, Kubernetes).
# CAUSE: a program says what it died of, and nothing else prints these words. PLAIN: an exception whose reason
# lies in its text. HINT: often seen before a death and sometimes without one. VICTIM: somebody else failed first.
FATAL, CAUSE, PLAIN, HINT, VICTIM = 80, 60, 40, 25, 5

RETRY, EXCLUDE, QUARANTINE = "retry_same", "retry_exclude_node", "quarantine_node"
USER, CONFIG, REQUEUE = "fail_user", "fail_config", "requeue"
ELSEWHERE, ONCE, NONE = "resume_elsewhere", "stop_unknown_then_retry_once", "none"

# Where the name of an exception begins: at the line's begin, or behind what a logger puts before it.
EXC = r"(?:^|[\]:|>-] )(?:\w+\.)*"
SHORTEST_LITERAL = 3


@dataclass(frozen=True)
class Signature:
    """A pattern, what it means, and what to do about it.

    ``literals``: a line that matches holds one of these (in lower case); empty when that cannot be said.
    """

    pattern: re.Pattern[str]
    weight: int
    class_: str
    code: str
    action: str
    literals: tuple[str, ...]

    def matches(self, line: str, lowered: str) -> bool:
        """Whether the line says this. Most lines say nothing: they are told apart without the pattern."""
        if self.literals and not any(literal in lowered for literal in self.literals):
            return False
        return self.pattern.search(line) is not None


def rows(weight: int, class_: str, *entries: tuple[str, str, str]) -> list[Signature]:
    """Signatures of one class out of (code, action, pattern)."""
    return [
        Signature(re.compile(pattern, re.IGNORECASE), weight, class_, code, action, literals_of(pattern))
        for code, action, pattern in entries
    ]


def literals_of(pattern: str) -> tuple[str, ...]:
    """Texts in lower case of which every match holds at least one; () when that cannot be said."""
    found: list[str] = []
    for alternative in _alternatives(pattern):
        runs, groups = _pieces(alternative)
        longest = max(runs, key=len, default="")
        if len(longest) >= SHORTEST_LITERAL:
            found.append(longest.lower())
            continue
        inside: list[tuple[str, ...]] = [texts for texts in map(literals_of, groups) if texts]
        if not inside:
            return ()
        fewest = sorted(inside, key=len)[0]
        found += fewest
    return tuple(dict.fromkeys(found))


def _alternatives(pattern: str) -> list[str]:
    """The pattern cut at each ``|`` that is in no group and no class."""
    parts, depth, start = [], 0, 0
    for place, sign in _signs(pattern):
        if sign in ("(", ")"):
            depth += 1 if sign == "(" else -1
        elif sign == "|" and depth == 0:
            parts.append(pattern[start:place])
            start = place + 1
    return [*parts, pattern[start:]]


def _pieces(alternative: str) -> tuple[list[str], list[str]]:
    """Stretches of plain text outside of groups, and the insides of groups, that every match must hold."""
    runs, run, groups, depth, start = [], "", [], 0, 0
    for place, sign in _signs(alternative):
        if sign == "(":
            if depth == 0:
                runs.append(run)
                run, start = "", place + 1
            depth += 1
        elif sign == ")":
            depth -= 1
            after = alternative[place + 1 : place + 2]
            inside = alternative[start:place]
            if depth == 0 and after not in ("?", "*", "{") and not inside.startswith(("?!", "?<", "?=")):
                groups.append(inside.removeprefix("?:"))
        elif depth == 0:
            if len(sign) == 1 and sign in "?*{":
                runs.append(run[:-1])  # what stands before it may be absent
                run = ""
            elif len(sign) == 1 and sign not in ".^$+}|":
                run += sign
            elif len(sign) == 2 and not sign[1].isalnum():
                run += sign[1]
            else:
                runs.append(run)
                run = ""
    return [*runs, run], groups


def _signs(pattern: str) -> Iterator[tuple[int, str]]:
    """Each sign with its place: an escape is one sign of two letters, a class is one sign, so are ``{…}``."""
    place = 0
    while place < len(pattern):
        sign, length = pattern[place], 1
        if sign == "\\":
            sign, length = pattern[place : place + 2], 2
        elif sign == "[":
            length = pattern.index("]", place + 2) + 1 - place
            sign = "[…]"
        elif sign == "{":
            length = pattern.index("}", place) + 1 - place
        yield place, sign
        place += length
