"""Plans and runs recipes, describes and lists steps, and traces documents."""

from datakit.normalize.inspection.report import RawReport
from datakit.pipeline.fate import Answer, Difference, diff, why
from datakit.pipeline.lineage import Ancestor, StepDescription, inspect
from datakit.pipeline.overview import ListedStep, Overview, overview
from datakit.pipeline.planning import PlannedStep, RunPlan, plan
from datakit.pipeline.run_summary import StageLine, stage_lines
from datakit.pipeline.running import RunResult, StepResult, run

__all__ = [
    "Ancestor",
    "Answer",
    "Difference",
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
    "inspect",
    "overview",
    "plan",
    "run",
    "stage_lines",
    "why",
]
