"""The labels of a figure do not cover one another."""

from __future__ import annotations

import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datakit.cache.layout import SourceSums
from datakit.cache.summary import CacheSummary
from datakit.loader.mixture.preview import Preview
from datakit.plots import cache, mixture, training
from datakit.trainer.metrics.json_lines import FILE_NAME

pytest.importorskip("matplotlib")


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that were saved."""
    saved: list[Any] = []
    for module in (cache, mixture):
        monkeypatch.setattr(module, "save", lambda figure, url: saved.append(figure))
    monkeypatch.setattr(training.files, "save", lambda figure, url: saved.append(figure))
    return saved


def collisions(figure: Any) -> list[tuple[str, str]]:
    """The pairs of visible texts whose boxes overlap."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    boxes = [(text.get_text(), text.get_window_extent(canvas.get_renderer()).padded(-1)) for text in texts]
    outside = {name for axes in figure.axes for axis in (axes.xaxis, axes.yaxis) for name in hidden_ticks(axis)}
    shown = [(name, box) for name, box in boxes if (name, box.bounds) not in outside]
    return [(one, other) for (one, a), (other, b) in combinations(shown, 2) if a.overlaps(b)]


def hidden_ticks(axis: Any) -> list[tuple[str, Any]]:
    """The texts and boxes of tick labels beyond the ends of an axis, which exist but are not drawn."""
    low, high = sorted(axis.get_view_interval())
    labels = [tick.label1 for tick in axis.get_major_ticks() if not low <= tick.get_loc() <= high]
    return [(label.get_text(), label.get_window_extent().padded(-1).bounds) for label in labels]


def test_labels_of_a_large_cache(figures: list[Any]) -> None:
    lengths = [(2**k // 2, 2**k, (k + 1) * 123_456_789) for k in range(22)]
    sources = {f"source-{k}-with-quite-a-long-name": SourceSums(1, 9, 10**9 + k, 10**10) for k in range(30)}
    frequent = [(k, 10**9 - k) for k in range(32)]
    summary = CacheSummary("cache", 10**10, 10**12, 10**12, "uint16", 9, lengths, sources, frequent, {})
    cache.write_plot(summary, {k: "\n" + " " * k for k in range(32)}, "cache.png")
    assert collisions(figures[0]) == []


def test_labels_of_a_mixture_with_changes_close_together(figures: list[Any]) -> None:
    names, steps = [f"component-{k}-with-a-long-name" for k in range(30)], np.linspace(0, 1000, 51)
    values, share = np.tile(steps[:, None], (1, 30)), np.full((50, 30), 1 / 30)
    changes = [(step, "stage: " + "component 0.5, " * 20) for step in (500, 503, 504, 510, 900)]
    mixture.write_plot(Preview(names, steps, values, values, share, changes, "never"), "a mixture", "mixture.png")
    assert collisions(figures[0]) == []
    numbers = [text.get_text() for text in figures[0].axes[0].texts]
    assert numbers == ["1 to 4", "5"]


def test_mixture_without_changes_is_drawn(figures: list[Any]) -> None:
    values = np.tile(np.linspace(0, 100, 11)[:, None], (1, 2))
    view = Preview(["code", "web"], values[:, 0], values, values, np.full((10, 2), 0.5), [], "never")
    mixture.write_plot(view, "a mixture", "mixture.png")
    assert [text.get_text() for text in figures[0].axes[0].texts] == []


def test_names_of_many_validation_sets_are_beside_the_axes(figures: list[Any], tmp_path: Path) -> None:
    bits = {f"eval/a-validation-set-{k}/bpb": 1.0 + k for k in range(30)}
    rows = [{"global_step": step, "train/cross_entropy_loss": 2.0, **bits} for step in range(1, 4)]
    (tmp_path / FILE_NAME).write_text("".join(json.dumps(row) + "\n" for row in rows))
    training.plot_run(str(tmp_path))
    assert collisions(figures[0]) == []
    axes = figures[0].axes[1]
    assert axes.get_legend().get_window_extent().x0 > axes.get_window_extent().x1
