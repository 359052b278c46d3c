"""`datakit tokenizer train` writes a tokenizer that recipes can use."""

from __future__ import annotations

import json
from pathlib import Path

from datakit.cli.tokenizer_command import training_recipe
from datakit.pipeline.configuration.configure import configure
from tests.support.command_line import invoke
from tests.support.small_shelf import make_shelf, step


def test_trained_tokenizer_is_used_by_a_recipe(tmp_path: Path) -> None:
    recipe = make_shelf(tmp_path / "shelf")
    train = ["tokenizer", "train", "shelf/novels", "--vocabulary", "320"]
    trained = invoke(*train, "--output", "mine.json", cwd=tmp_path)
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout == "mine.json\n"
    assert len(json.loads((tmp_path / "mine.json").read_text())["model"]["vocab"]) <= 320
    again = invoke(*train, "--output", "mine.json", cwd=tmp_path)
    assert again.returncode == 2
    assert "never overwritten" in again.stderr
    text = recipe.read_text().partition("[tokenize]")[0] + '[tokenize]\ntokenizer = "../mine.json"\n'
    recipe.write_text(text)
    used = invoke("run", recipe, "--root", "root", cwd=tmp_path)
    assert used.returncode == 0, used.stderr
    cached = step(tmp_path, "root/shelf/tokenize-*/tokenizer.json")
    assert cached.read_bytes() == (tmp_path / "mine.json").read_bytes()
    other = invoke("tokenizer", "train", recipe, "--root", "root", "--vocabulary", "300", "--output", "b.json",
                    "--json", cwd=tmp_path)  # fmt: skip
    assert json.loads(other.stdout)["vocabulary"] <= 300


def test_documents_are_not_written_again_for_training(tmp_path: Path) -> None:
    """Training reads the normalized documents, so a consolidate step would only take time and could only fail."""
    recipe = make_shelf(tmp_path / "shelf")
    for given in (str(recipe), str(tmp_path / "shelf" / "novels")):
        stages = configure(training_recipe((given,), 300, ("<|endoftext|>",)))
        assert "train-tokenizer" in stages and "consolidate" not in stages
