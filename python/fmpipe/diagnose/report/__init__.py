"""What a run's log says is wrong, with the evidence: read it, judge the hypotheses, write them down."""

from fmpipe.diagnose.report.compare import Comparison, compare
from fmpipe.diagnose.report.finding import THRESHOLDS, limits
from fmpipe.diagnose.report.html import html
from fmpipe.diagnose.report.judge import CONFIRMED, REJECTED, UNKNOWN, Hypothesis, judge
from fmpipe.diagnose.report.read import read
from fmpipe.diagnose.report.said import Said
from fmpipe.diagnose.report.stats import RunStats, SamplingTrace, Series
from fmpipe.diagnose.report.write import markdown, observations

__all__ = [
    "CONFIRMED",
    "REJECTED",
    "THRESHOLDS",
    "UNKNOWN",
    "Comparison",
    "Hypothesis",
    "RunStats",
    "Said",
    "SamplingTrace",
]
__all__ += ["Series", "compare", "html", "judge", "limits", "markdown", "observations", "read"]
