"""What a job has spent on agents and judges, against its limit (contract, 5.6 "Budgets")."""

from __future__ import annotations

import threading

_ROUNDING = 1e-9
"""US dollars: a sum of cents may be a little less than they are."""


class Spending:
    """Fed by judges, by cells and by the threads of gateways. limit: US dollars, None = any."""

    def __init__(self, limit: float | None = None) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._spent = 0.0

    @property
    def spent(self) -> float:
        """US dollars so far."""
        with self._lock:
            return self._spent

    def spend(self, usd: float) -> None:
        """Count what was paid."""
        with self._lock:
            self._spent += usd

    def refusal(self) -> str:
        """Why nothing more may be asked of a model; empty while something may."""
        spent = self.spent
        if self.limit is None or spent < self.limit - _ROUNDING:
            return ""
        return f"stopped at ${spent:.2f} of ${self.limit:.2f}"
