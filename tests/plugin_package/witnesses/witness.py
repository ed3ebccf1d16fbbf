"""A regime whose import leaves a line in the file that the environment names."""

import os
from pathlib import Path

from regimes.independent import Independent

TRACE = Path(os.environ.get("WITNESS_TRACE", os.devnull))
with TRACE.open("a") as file:
    file.write("imported\n")


class Witness(Independent):
    """Independent training, observed."""
