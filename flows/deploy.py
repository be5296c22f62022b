"""``python -m flows.deploy``: the work pool and the deployment that the portal's launcher asks for.

Three calls of Prefect's REST API. Its client would do the same after a second of imports.
"""

import base64
import os
import sys
from pathlib import Path
from typing import Any

from flows.ask import ask

POOL = "trainyard"
TIMEOUT_S = 30.0


class DeployRefused(Exception):
    """Prefect answered and did not do it, or is away."""


def deploy(api_url: str, auth: str) -> str:
    """The deployment's id. Called again, it changes nothing but the deployment's entry."""
    root = str(Path(__file__).resolve().parent.parent)
    _post(f"{api_url}/work_pools/", auth, {"name": POOL, "type": "process"}, there=409)
    flow = _post(f"{api_url}/flows/", auth, {"name": "attempt"})
    deployment = _post(
        f"{api_url}/deployments/",
        auth,
        {
            "name": "trainyard",
            "flow_id": flow["id"],
            "work_pool_name": POOL,
            "path": root,
            "entrypoint": "flows.attempt.attempt",
            "enforce_parameter_schema": False,
            "parameter_openapi_schema": {"type": "object", "properties": {}},
            "job_variables": {"working_dir": root, "command": f"{sys.executable} -m prefect.engine"},
        },
    )
    return str(deployment["id"])


def _post(url: str, auth: str, body: dict[str, Any], *, there: int = 0) -> dict[str, Any]:
    """The answer; ``there`` is the status that says that it exists already."""
    headers = {"Authorization": "Basic " + base64.b64encode(auth.encode()).decode()} if auth else {}
    try:
        status, answer = ask(url, body=body, headers=headers, timeout_s=TIMEOUT_S)
    except OSError as error:
        raise DeployRefused(f"Prefect does not answer at {url} ({error}). Start its server first.") from None
    if status == there:
        return {}
    if status >= 400 or not isinstance(answer, dict):
        raise DeployRefused(f"Prefect answered {status} to {url}: {str(answer)[:300]}")
    return answer


def main() -> int:
    """Print the deployment's id."""
    api_url = os.environ.get("PREFECT_API_URL", "")
    if not api_url.startswith("http://"):
        print("deploy: PREFECT_API_URL must be the http:// address of Prefect's API.", file=sys.stderr)
        return 2
    try:
        print(deploy(api_url.rstrip("/"), os.environ.get("PREFECT_API_AUTH_STRING", "")))
    except DeployRefused as error:
        print(f"deploy: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
