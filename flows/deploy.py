"""``python -m flows.deploy``: the work pool and the deployment that the portal's launcher asks for."""

import asyncio
import sys
from pathlib import Path

POOL = "trainyard"


async def deploy() -> str:
    """The deployment's id. Called again, it changes nothing but the deployment's entry."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    from flows.attempt import attempt

    async with get_client() as client:
        try:
            await client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
        except ObjectAlreadyExists:
            pass
        flow_id = await client.create_flow(attempt)
        root = Path(__file__).resolve().parent.parent
        return str(
            await client.create_deployment(
                flow_id=flow_id,
                name="trainyard",
                work_pool_name=POOL,
                path=str(root),
                entrypoint="flows.attempt.attempt",
                enforce_parameter_schema=False,
                parameter_openapi_schema={"type": "object", "properties": {}},
                job_variables={"working_dir": str(root), "command": f"{sys.executable} -m prefect.engine"},
            )
        )


def main() -> int:
    """Print the deployment's id."""
    print(asyncio.run(deploy()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
