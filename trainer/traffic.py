"""Simulated motorway traffic, seeded: where cars were, to learn where they will be. Free of torch.

Cars follow the Intelligent Driver Model (Treiber et al. 2000) on a ring of three lanes, want different speeds, and
change lanes when the gap there is better and safe (MOBIL's idea, simplified). The same seed gives the same traffic.
"""

import numpy as np

LANES, LANE_WIDTH_M, RING_M = 3, 3.6, 800.0
TICK_S = 0.1
ACCELERATION, BRAKING, HEADWAY_S, GAP_M, CAR_M = 1.5, 2.0, 1.2, 2.0, 4.8
CHANGE_S = 3.0


def scene(seed: int, *, num_cars: int = 24, num_steps: int = 240, warm_up: int = 150) -> np.ndarray:
    """x, y, vx, vy of every car at every tenth of a second: [num_steps, num_cars, 4], metres and metres per second.

    x grows without wrapping, so that a car's track has no jumps.
    """
    source = np.random.default_rng(seed)
    position = np.sort(source.uniform(0, RING_M, num_cars))
    lane = source.integers(0, LANES, num_cars)
    lateral = lane * LANE_WIDTH_M
    speed = source.uniform(15, 25, num_cars)
    wanted = source.normal(27, 5, num_cars).clip(15, 40)
    since_change = np.full(num_cars, CHANGE_S)
    rows = []
    for tick in range(warm_up + num_steps):
        acceleration = _idm(position, speed, wanted, lane)
        if tick % 5 == 0:
            lane, since_change = _change_lanes(position, speed, wanted, lane, since_change, acceleration)
        since_change = since_change + TICK_S
        speed = np.maximum(0.0, speed + acceleration.clip(-8, ACCELERATION) * TICK_S)
        position = position + speed * TICK_S
        sideways = (lane * LANE_WIDTH_M - lateral).clip(-1.2, 1.2)
        lateral = lateral + sideways * TICK_S
        if tick >= warm_up:
            rows.append(np.stack([position, lateral, speed, sideways], axis=1))
    return np.stack(rows).astype(np.float32)


def _idm(position: np.ndarray, speed: np.ndarray, wanted: np.ndarray, lane: np.ndarray) -> np.ndarray:
    """Each car's acceleration behind the next one in its lane."""
    gap, closing = _leader(position, speed, lane)
    desired = GAP_M + np.maximum(0.0, speed * HEADWAY_S + speed * closing / (2 * np.sqrt(ACCELERATION * BRAKING)))
    return ACCELERATION * (1 - (speed / wanted) ** 4 - (desired / np.maximum(gap, 0.5)) ** 2)


def _leader(position: np.ndarray, speed: np.ndarray, lane: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gap to the car ahead in the same lane, and how fast it closes; a lone car sees itself a ring away."""
    ahead = (position[None, :] - position[:, None]) % RING_M
    ahead = np.where((lane[None, :] == lane[:, None]) & (ahead > 0), ahead, np.inf)
    nearest = ahead.argmin(axis=1)
    gap = ahead[np.arange(len(position)), nearest]
    alone = ~np.isfinite(gap)
    closing = np.where(alone, 0.0, speed - speed[nearest])
    return np.where(alone, RING_M, gap) - CAR_M, closing


def _change_lanes(
    position: np.ndarray,
    speed: np.ndarray,
    wanted: np.ndarray,
    lane: np.ndarray,
    since_change: np.ndarray,
    acceleration: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """At most one car changes: the one that gains most, if nobody there must brake hard for it."""
    best, choice = 0.4, None
    for car in np.flatnonzero(since_change >= CHANGE_S):
        for side in (-1, 1):
            target = lane[car] + side
            if not 0 <= target < LANES:
                continue
            tried = lane.copy()
            tried[car] = target
            after = _idm(position, speed, wanted, tried)
            gain = after[car] - acceleration[car]
            if gain > best and after.min() > -BRAKING:
                best, choice = gain, (car, target)
    if choice is None:
        return lane, since_change
    lane, since_change = lane.copy(), since_change.copy()
    lane[choice[0]], since_change[choice[0]] = choice[1], 0.0
    return lane, since_change
