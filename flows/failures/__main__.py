"""``python -m flows.failures CASE.json``: the cause as JSON."""

import json
import sys
from pathlib import Path

from flows.failures.classify import classify
from flows.failures.read import BadCase, case_read


def main() -> int:
    """0 and one JSON object, or 2 and one sentence."""
    if len(sys.argv) != 2:
        print("Give one file: python -m flows.failures CASE.json", file=sys.stderr)
        return 2
    try:
        cause = classify(case_read(Path(sys.argv[1])))
    except BadCase as error:
        print(error, file=sys.stderr)
        return 2
    pairs = zip(cause.sources, cause.evidence, strict=False)
    evidence = [{"source": source, "line": line} for source, line in pairs]
    print(json.dumps({**cause.as_json(), "evidence": evidence}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
