"""The scheduler's process: read the rows, decide, apply; woken by hints, and by its own timer."""

import os
import secrets
import signal
import socket
import threading
import time
from datetime import timedelta

import structlog
from celery import Signature
from celery.exceptions import OperationalError as BrokerAway
from django.conf import settings
from django.db import DatabaseError, close_old_connections, connection
from django.utils import timezone
from kombu.exceptions import OperationalError as KombuAway

from portal.celery import app as celery
from portal.dispatch.apply import Applied, plan_apply
from portal.dispatch.launcher import order_send, orders_due
from portal.dispatch.lease import LeaseLost, lease_drop, lease_take
from portal.dispatch.load import snapshot_load
from portal.dispatch.sweep import books_close, sweep
from portal.dispatch.tasks import launch
from portal.wake import wait_for_wake
from scheduler import decide

log = structlog.get_logger(__name__)


class Dispatcher:
    """One scheduler process. Two of them share the lease: one works, the other waits."""

    def __init__(self, holder: str | None = None) -> None:
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self.lease = timedelta(seconds=settings.ENVIRONMENT.lease_s)
        self.interval_s = settings.ENVIRONMENT.dispatch_interval_s
        self.epoch: int | None = None
        self.stopping = threading.Event()
        self._chores: dict[str, float] = {}

    def run(self) -> None:
        """Tick until asked to stop; a database that is away is waited for."""
        launcher = threading.Thread(target=self._launch_forever, name="launcher", daemon=True)
        launcher.start()
        while not self.stopping.is_set():
            try:
                close_old_connections()
                busy = self.tick() is not None
            except DatabaseError as error:
                # Every tick starts from the rows, so nothing is lost by leaving this one out.
                log.error("database_away", error=str(error))
                connection.close()
                busy = False
            wait_for_wake(self.interval_s if busy else min(self.interval_s, 0.5))
        if self.epoch is not None:
            lease_drop(epoch=self.epoch, now=timezone.now())

    def tick(self) -> Applied | None:
        """One pass: what it changed, or None when another scheduler holds the lease."""
        now = timezone.now()
        self.epoch = lease_take(holder=self.holder, now=now, length=self.lease)
        if self.epoch is None:
            return None
        sweep(now=now)
        books_close(now=now)
        self._hint_chores()
        snapshot = snapshot_load(now=now)
        if not snapshot.pending:
            return Applied()
        plan = decide(snapshot)
        try:
            applied = plan_apply(plan=plan, epoch=self.epoch, now=timezone.now(), lease=self.lease)
        except LeaseLost:
            log.warning("lease_lost", epoch=self.epoch)
            self.epoch = None
            return None
        for order_id in applied.orders:
            hint_launch(order_id)
        if applied.started or applied.preempted or applied.skipped:
            log.info("pass", started=applied.started, preempted=applied.preempted, skipped=applied.skipped)
        return applied

    def _hint_chores(self) -> None:
        """Ask a worker for the chores that are due. One that is lost comes again."""
        now = time.monotonic()
        for name, every_s in settings.CHORES.items():
            if now - self._chores.get(name, float("-inf")) >= every_s:
                self._chores[name] = now
                hint(celery.signature(name, immutable=True), expires=every_s)

    def _launch_forever(self) -> None:
        """Send what no Celery worker has sent: the worker, the broker or its message may be gone."""
        while not self.stopping.wait(0.5):
            try:
                close_old_connections()
                for order_id in orders_due(now=timezone.now() - timedelta(seconds=1)):
                    order_send(order_id=order_id, now=timezone.now())
            except DatabaseError as error:
                log.error("database_away", error=str(error))
                connection.close()


def hint_launch(order_id: int) -> None:
    """Ask a Celery worker to send the order now. The launcher thread finds it anyway, a second later."""
    hint(launch.s(order_id), expires=30)


def hint(chore: Signature, *, expires: float) -> None:
    """Send a chore to the workers, without waiting for a broker that is away."""
    try:
        chore.apply_async(retry=False, expires=expires)
    except (BrokerAway, KombuAway, OSError) as error:
        log.info("hint_lost", chore=chore.task, error=str(error))


def stop_on_signals(dispatcher: Dispatcher) -> None:
    """SIGTERM and SIGINT end the loop after the pass that runs."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: dispatcher.stopping.set())
