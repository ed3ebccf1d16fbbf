"""Another name of `harness.verification.conformance`, by which tests of packages made earlier import it."""

from harness.verification.conformance import *  # noqa: F403  # whatever that module offers
from harness.verification.conformance import CHECKS, name_of

__all__ = ["CHECKS", "name_of"]
