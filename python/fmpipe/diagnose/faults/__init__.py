"""Faults to plant in a tiny run, the evidence each leaves, and one ranking of all that checks and hypotheses say."""

from fmpipe.diagnose.faults.catalog import FAULTS
from fmpipe.diagnose.faults.planting import HEALTHY, Evidence, Fault, verdicts
from fmpipe.diagnose.faults.ranking import Suspect, rank, suspects

__all__ = ["FAULTS", "HEALTHY", "Evidence", "Fault", "Suspect", "rank", "suspects", "verdicts"]
