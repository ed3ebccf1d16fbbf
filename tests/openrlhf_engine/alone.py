"""An engine with a reservation of its own, which it gives back when it is closed."""

from __future__ import annotations

from harness.engines.openrlhf.cluster import Reservation
from harness.engines.openrlhf.engine import OpenRLHFEngine


class Alone(OpenRLHFEngine):
    def __init__(self, name, folder, *, settings, **options):
        self.reservation = Reservation({name: settings})
        try:
            super().__init__(name, folder, settings=settings, reservation=self.reservation, **options)
        except BaseException:
            self.reservation.close()
            raise

    def close(self):
        super().close()
        self.reservation.close()
