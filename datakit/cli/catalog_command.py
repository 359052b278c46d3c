"""Implements `datakit catalog`, which lists the recipes that come with datakit or prints one of them."""

from __future__ import annotations

from datakit.cli.console import note, say, say_json, table
from datakit.cli.parameters import Flag


def catalog(name: str | None = None, /, *, json: Flag = False) -> int:
    """List the recipes that come with datakit.

    Examples:
      datakit catalog
      datakit catalog demo > my-recipe.toml

    Parameters
    ----------
    name
        Print the file of this recipe, so that you can save a copy and edit it.
    json
        Print one JSON object.
    """
    from datakit.recipe import catalog_names, load_recipe

    recipes = [load_recipe(f"{name}")] if name else [load_recipe(each) for each in catalog_names()]
    if json:
        say_json({"recipes": [recipe.document() for recipe in recipes]})
    elif name:
        from pathlib import Path

        say(Path(recipes[0].origin).read_text(encoding="utf-8").rstrip("\n"))
    else:
        rows = [[recipe.name, len(recipe.sources), recipe.description] for recipe in recipes]
        say(table(("recipe", "sources", "description"), rows))
        note("next: datakit run NAME, or datakit catalog NAME > my-recipe.toml to edit a copy")
    return 0
