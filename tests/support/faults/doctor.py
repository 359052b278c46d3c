"""Runs `datakit doctor` as a command and reads its findings."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

DOCTOR = (sys.executable, "-m", "datakit", "doctor", "--json")


def findings_of(done: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """Return the findings by check; asserts that the exit code and the next steps agree with them."""
    assert done.stdout, done.stderr
    findings = {finding["check"]: finding for finding in json.loads(done.stdout)["findings"]}
    problem = any(finding["state"] == "problem" for finding in findings.values())
    assert done.returncode == (2 if problem else 0)
    assert all(finding["next_step"] for finding in findings.values() if finding["state"] != "ok")
    return findings
