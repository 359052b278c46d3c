"""A page is composed while no other thread changes what it shows, and all followers of a page are kept."""

from __future__ import annotations

import threading
from pathlib import Path

from datakit.serve.followers import MOST, Follower
from datakit.serve.root import Entry, ServedRoot
from datakit.serve.root_pages import MOST_TRAININGS
from datakit.serve.streams import MOST_STREAMS


def test_nobody_reads_events_while_a_page_is_composed(tmp_path: Path) -> None:
    place = tmp_path / "books" / "runs" / "r"
    place.mkdir(parents=True)
    follower = Follower(ServedRoot(str(tmp_path)), Entry("run", "books", "r", str(place)))
    other = threading.Thread(target=follower.look)

    def compose(one: Follower) -> bool:
        other.start()
        other.join(0.2)
        return other.is_alive() and one.version() is not None

    assert follower.composed(compose)
    other.join(10)
    assert not other.is_alive()


def test_followers_of_a_page_and_of_all_streams_are_kept() -> None:
    assert MOST >= MOST_TRAININGS + MOST_STREAMS
