"""Set before torch is imported anywhere: threads that spin against each other make tests up to fifty times slower."""

from __future__ import annotations

import os
import tempfile

for name, value in (
    ("OMP_NUM_THREADS", "1"),
    ("OMP_WAIT_POLICY", "passive"),
    ("GOMP_SPINCOUNT", "0"),
    ("HF_HUB_OFFLINE", "1"),
    ("HARNESS_MODELS", tempfile.gettempdir()),
):
    os.environ[name] = value
