"""Free GPUs of a simulated cluster: by node, or as one number."""

from scheduler.nodes import Ints, pools_build
from scheduler.placement import Placement, place
from scheduler.shapes import Shape
from scheduler.sim.replay import SimJob
from scheduler.sim.trace import cluster_nodes
from scheduler.snapshot import PlacementRule


class Space:
    """What is free. `count_only` leaves nodes aside: any free GPUs serve any job."""

    def __init__(self, num_nodes: int, gpus_per_node: int, *, count_only: bool) -> None:
        self.count_only = count_only
        self.gpus_per_node = gpus_per_node
        nodes = cluster_nodes(1, num_nodes * gpus_per_node) if count_only else cluster_nodes(num_nodes, gpus_per_node)
        self.pool = pools_build(nodes, ())[0]["gpu"]
        self.free: Ints = self.pool.free
        self.total = num_nodes * gpus_per_node
        self._shapes: dict[int, Shape] = {}

    def find(self, job: SimJob, free: Ints | None = None) -> Placement | None:
        """Nodes for the job among what is free, now or as given; None when it does not fit."""
        room = self.free if free is None else free
        size = job.num_gpus
        if self.count_only:
            return [(0, size)] if room[0] >= size else None
        if size not in self._shapes:
            worker = job.trace.worker_gpus(self.gpus_per_node)
            self._shapes[size] = Shape(size // worker, worker, spread=False)
        return place(self.pool, room, self._shapes[size], PlacementRule.BEST_FIT)

    def take(self, placement: Placement) -> None:
        """These GPUs are held."""
        move(self.free, placement, -1)

    def give(self, placement: Placement) -> None:
        """These GPUs are free again."""
        move(self.free, placement, 1)


def move(free: Ints, placement: Placement, sign: int) -> None:
    """Add the placement's GPUs to what is free, or take them away."""
    for node, gpus in placement:
        free[node] += sign * gpus
