"""Keeps account of the requests to a model server, across tasks, machines and runs: how many were sent, what they cost,
and until when the rate limit is used up.

The account is a sequence of numbered files, each with the totals so far. Whoever wants to send requests first reserves
them by creating the next file, which fails if another process has created it; then the totals are read again. So the
limits hold without a lock, also in an object store. Requests are reserved in blocks of at most BLOCK, and those that
were not sent are given back when a task ends. A task that is killed gives nothing back: a limit may be reached early,
but is never exceeded. The cost of a request is known only afterwards, so its highest possible cost is reserved.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from datakit.annotate.model_server.config import ModelServerConfig
from datakit.annotate.model_server.request_body import most_tokens
from datakit.errors import CorruptError
from datakit.storage import atomic, urls
from datakit.storage.json_data import decode_errors

BLOCK = 64
RATE_BLOCK_SECONDS = 10.0  # under a rate limit, a block is at most what may be sent in this time
UNIT = 1e9  # costs are whole billionths of the currency, so that sums are exact
FOLDER = "spending"


class SpentError(Exception):
    """A budget that is used up. The message says which, and what to do."""


class Account(msgspec.Struct, frozen=True):
    """The totals so far, with what is reserved. cost: in billionths. busy_until: when the last reserved request may be
    sent, in seconds since 1970.
    """

    requests: int = 0
    cost: int = 0
    busy_until: float = 0.0


class Ledger:
    """The account in a folder. number: that of the newest file that this process knows."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._number = max((int(urls.name(file.path)[:10]) for file in urls.listing(folder)), default=0)
        self._totals = self._read(self._number) if self._number else Account()

    def totals(self) -> Account:
        """Return the newest totals."""
        while urls.exists(self._url(self._number + 1)):
            self._number += 1
        self._totals = self._read(self._number) if self._number else Account()
        return self._totals

    def change(self, changed: Callable[[Account], Account]) -> Account:
        """Replace the totals by `changed(totals)`, and return the new ones. `changed` is called again if another
        process is faster.
        """
        while True:
            new = changed(self.totals())
            if atomic.create_bytes(msgspec.json.encode(new), self._url(self._number + 1)):
                self._number, self._totals = self._number + 1, new
                return new

    def _url(self, number: int) -> str:
        return urls.join(self._folder, f"{number:010d}.json")

    def _read(self, number: int) -> Account:
        try:
            with decode_errors():
                return msgspec.json.decode(urls.read_bytes(self._url(number)), type=Account)
        except msgspec.DecodeError as error:
            raise CorruptError(f"{self._url(number)} is damaged: {error}; restore it") from error


class Allowance:
    """The requests that a task may send. `take` may be called by several threads."""

    def __init__(self, name: str, config: ModelServerConfig, store: str, documents: int) -> None:
        """documents: how many the task asks about. It reserves no more than one request for each; requests that are
        repeated are reserved one by one, so a budget that just suffices is not split between tasks in vain.
        """
        self._name, self._config, self._first_requests = name, config, documents
        self._ledger = Ledger(urls.join(store, FOLDER))
        self._lock = threading.Lock()
        self._left, self._next, self._unsent, self._returned = 0, 0.0, 0, 0
        self._bound = cost_of(config, most_tokens(config), config.max_tokens)

    def take(self) -> float:
        """Take one request. Return the time at which it may be sent, in seconds since 1970; 0 without a rate limit.
        Raises SpentError if a limit is reached.
        """
        with self._lock:
            if not self._left:
                self._reserve()
            self._left -= 1
            self._first_requests -= 1
            moment, self._next = self._next, self._next + self._interval
            return moment if self._interval else 0.0

    def give_back(self) -> None:
        """Report that a request that was taken will not be sent. It is not taken again, as its moment is past."""
        with self._lock:
            self._unsent += 1

    def settle(self, input_tokens: int | None, output_tokens: int | None) -> None:
        """Report the numbers of tokens of a request; its highest possible cost counts if they are unknown."""
        if input_tokens is None or output_tokens is None:
            return
        with self._lock:
            self._returned += self._bound - cost_of(self._config, input_tokens, output_tokens)

    def close(self) -> None:
        """Give back what was not used."""
        with self._lock:
            unused = self._left + self._unsent
            returned = self._returned + unused * self._bound
            self._left = self._unsent = self._returned = 0
            if unused or returned:
                self._ledger.change(lambda now: Account(now.requests - unused, now.cost - returned, now.busy_until))

    @property
    def _interval(self) -> float:
        return 60.0 / self._config.requests_per_minute if self._config.requests_per_minute else 0.0

    def _reserve(self) -> None:
        count = 0

        def reserved(now: Account) -> Account:
            nonlocal count
            now = Account(now.requests, now.cost - self._returned, now.busy_until)
            count = self._grantable(now)
            self._next = max(time.time(), now.busy_until)
            until = self._next + count * self._interval if self._interval else now.busy_until
            return Account(now.requests + count, now.cost + count * self._bound, until)

        self._ledger.change(reserved)
        self._left, self._returned = count, 0

    def _grantable(self, now: Account) -> int:
        """Return how many requests may be reserved. Raises SpentError if there are none."""
        config, most = self._config, max(1, min(BLOCK, self._first_requests))
        place = f"annotate.model_server.{self._name}"
        if self._interval:
            most = max(1, min(most, int(RATE_BLOCK_SECONDS / self._interval)))
        if config.max_requests:
            most = min(most, config.max_requests - now.requests)
            if most <= 0:
                raise SpentError(
                    f"{place}: {now.requests:,} requests have been sent or reserved, and max_requests is "
                    f"{config.max_requests:,}; raise max_requests, and run again to go on"
                )
        if config.max_cost:
            most = min(most, (round(config.max_cost * UNIT) - now.cost) // max(1, self._bound))
            if most <= 0:
                raise SpentError(
                    f"{place}: requests for {now.cost / UNIT:.4f} have been sent or reserved, another one may cost up "
                    f"to {self._bound / UNIT:.4f}, and max_cost is {config.max_cost:g}; raise max_cost, and run again "
                    "to go on"
                )
        return most


def cost_of(config: ModelServerConfig, input_tokens: int, output_tokens: int) -> int:
    """Return the cost of a request in billionths of the currency, rounded up."""
    price = config.price_per_1k_input_tokens * input_tokens + config.price_per_1k_output_tokens * output_tokens
    return -int(-price / 1000 * UNIT // 1)
