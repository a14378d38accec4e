"""What a model costs, from the price list of the package genai-prices, which it brings along: nothing is fetched."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from genai_prices.types import PriceCalculation

PACKAGE = "genai_prices"
"""Imported when the first price is asked for; it takes a third of a second."""
_PROVIDERS = {"anthropic": "anthropic", "openai": "openai", "gemini": "google"}
"""Our names of APIs → the list's of providers."""
_DEARER = {"fast", "priority"}
"""Kinds of service that cost more than the usual one."""


class Purse(Protocol):
    """What the job may spend. limit: US dollars, None = any."""

    @property
    def limit(self) -> float | None: ...

    def spend(self, usd: float) -> None:
        """Count what was paid."""

    def refusal(self) -> str:
        """Why nothing more may be asked of a model; empty while something may."""


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens. None = as `input`."""

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None


@dataclass(frozen=True, slots=True)
class Extras:
    """What makes a request cost other than its tokens do."""

    tier: str = ""
    """Of the service, in the provider's words."""
    speed: str = ""
    """Of the service, in the provider's words."""
    hour_writes: int = 0
    """Tokens that were written to a cache for an hour."""
    searches: int = 0
    """How often the web was searched."""
    has_others: bool = False
    """Whether the provider did something else that it bills."""


NO_EXTRAS = Extras()


def read_prices() -> None:
    """Read the list now. It takes a third of a second, for which the first request would wait."""
    import genai_prices  # noqa: F401


def cost_of(
    api: str,
    model: str,
    *,
    uncached: int,
    output: int,
    cache_read: int = 0,
    cache_write: int = 0,
    extras: Extras = NO_EXTRAS,
    prices: Mapping[str, Price] | None = None,
) -> float | None:
    """US dollars of one request; None where the model, or something that was used with it, has no price.

    api: `anthropic`, `openai` or `gemini`. uncached, cache_read, cache_write: tokens of the input, none counted twice.
    output: tokens, reasoning included. prices: globs of model names, for models that the list lacks; they win.
    """
    for glob, price in (prices or {}).items():
        if fnmatchcase(model, glob):
            if extras.searches or extras.has_others:
                return None
            read, write = (price.input if one is None else one for one in (price.cache_read, price.cache_write))
            return (uncached * price.input + cache_read * read + cache_write * write + output * price.output) / 1e6
    from genai_prices import Usage, calc_price

    usage = Usage(
        input_tokens=uncached + cache_read + cache_write,
        cache_read_tokens=cache_read,
        cache_write_tokens=cache_write,
        output_tokens=output,
        **({"cache_write_1h_tokens": min(extras.hour_writes, cache_write)} if extras.hour_writes else {}),
        **({"web_searches": extras.searches} if extras.searches else {}),
    )
    context = {"service_tier": extras.tier, "speed": extras.speed}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kinds of tokens that a model has no price of its own for
        try:
            found = calc_price(usage, model, provider_id=_PROVIDERS.get(api, api), price_context=context)
        except (LookupError, ValueError):
            return None
    return float(found.total_price) if _has_prices(found, extras, context) else None


def _has_prices(found: PriceCalculation, extras: Extras, context: Mapping[str, str]) -> bool:
    """Whether the list has a price for all of it; it leaves out what it does not know."""
    price = found.model_price
    if (
        extras.has_others
        or (extras.searches and price.web_searches_kcount is None)
        or (extras.hour_writes and price.cache_write_1h_mtok is None)
    ):
        return False
    known = [variant.when for variant in found.model.price_variants or ()]
    return all(
        value not in _DEARER or any(when.get(name) == value for when in known) for name, value in context.items()
    )


def is_priced(api: str, model: str, prices: Mapping[str, Price] | None = None) -> bool:
    """Whether `cost_of` knows what it costs."""
    return any(fnmatchcase(model, glob) for glob in prices or {}) or _is_listed(api, model)


@lru_cache(maxsize=256)
def _is_listed(api: str, model: str) -> bool:
    return cost_of(api, model, uncached=0, output=0) is not None
