"""Plans and runs recipes, describes and lists steps, traces documents, and finds the leftovers of killed runs."""

from datakit.normalize.inspection.report import RawReport
from datakit.pipeline.fate import Answer, Difference, diff, why
from datakit.pipeline.garbage import Leftover, find_leftovers, remove_leftovers
from datakit.pipeline.lineage import Ancestor, StepDescription, inspect
from datakit.pipeline.overview import ListedStep, Overview, overview
from datakit.pipeline.planning import PlannedStep, RunPlan, plan
from datakit.pipeline.run_summary import StageLine, stage_lines
from datakit.pipeline.running import RunResult, StepResult, run

__all__ = [
    "Ancestor",
    "Answer",
    "Difference",
    "Leftover",
    "ListedStep",
    "Overview",
    "PlannedStep",
    "RawReport",
    "RunPlan",
    "RunResult",
    "StageLine",
    "StepDescription",
    "StepResult",
    "diff",
    "find_leftovers",
    "inspect",
    "overview",
    "plan",
    "remove_leftovers",
    "run",
    "stage_lines",
    "why",
]
