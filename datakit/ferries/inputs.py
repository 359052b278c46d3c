"""Prepares what the stages of a ferry read: copies recipes into the ferry's folder, and writes the warm-up's texts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from datakit.ferries.skewed_text import SENTENCES, hashes, sentences, words

RECIPES = Path(__file__).parent / "recipes"
NOTES, NOTE_SENTENCES = 40, 6


def recipe_file(name: str) -> Path | None:
    """Return the path of a file in `recipes/`; None if `name` is the name of a recipe in datakit's catalog."""
    return RECIPES / name if name.endswith(".toml") else None


def copy_recipe(name: str, folder: Path) -> Path:
    """Copy a file of `recipes/` into a folder, beside the texts that it names, and return the copy."""
    folder.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copyfile(RECIPES / name, folder / name))


def write_warm_up(folder: Path) -> Path:
    """Write the warm-up's recipe and texts, with exact and near duplicates, and return the recipe."""
    recipe = copy_recipe("warm-up.toml", folder)
    pool = [sentence.decode() for sentence in sentences(words())[:SENTENCES]]
    chosen = (hashes(9, 0, NOTES * NOTE_SENTENCES) % SENTENCES).reshape(NOTES, NOTE_SENTENCES).tolist()
    texts = [" ".join(pool[number] for number in row) for row in chosen]
    texts += [texts[0], f"{texts[1]} More."]
    (folder / "notes.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return recipe
