"""Prices of a small shop, in cents."""


def discounted(price, percent):
    """The price after a discount, rounded down to whole cents."""
    if not 0 <= percent <= 100:
        raise ValueError(f"a discount is between 0 and 100 percent, not {percent}")
    return price - price * percent // 10
