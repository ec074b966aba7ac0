"""Faults to plant in tiny runs, and the findings of the rules about each of them."""

from faults.catalog import FAULTS
from faults.planting import HEALTHY, Evidence, Fault, figures_of, suspects

__all__ = ["FAULTS", "HEALTHY", "Evidence", "Fault", "figures_of", "suspects"]
