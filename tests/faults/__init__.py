"""Faults to plant in tiny runs, and what the rules say about the evidence that each of them leaves."""

from faults.catalog import FAULTS
from faults.planting import HEALTHY, Evidence, Fault, figures_of, suspects

__all__ = ["FAULTS", "HEALTHY", "Evidence", "Fault", "figures_of", "suspects"]
