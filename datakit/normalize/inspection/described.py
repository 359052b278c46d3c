"""Describes for `datakit plan` what a source's settings select: the columns of the text, splits, and the limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from datakit.errors import counted
from datakit.normalize.config import Config
from datakit.normalize.settings.splits import split_of_files


def selections(source: str, config: Config, paths: Sequence[str] | None) -> Iterator[str]:
    """Yield phrases that follow the word "reads". paths: the files of the source; None if they are not known.

    Raises RecipeError if a file is in several splits, and NoInputError if a split has no file.
    """
    if config.text_form is not None:
        yield f"for the text: {', '.join(path.whole for path in config.text_paths)}"
    if config.splits:
        found = Counter(split_of_files(source, paths, config.splits).values()) if paths is not None else {}
        sizes = [f"{name} ({counted(found[name], 'file')})" if name in found else name for name in config.splits]
        yield f"the splits {', '.join(sizes)}"
    if config.limit is not None:
        yield f"what makes the first {counted(config.limit, 'document')}"
