"""Refunds a guess, three times, and a tool that is not there."""

import sys

from shop import Shop

shop = Shop(sys.argv[1])
for _ in range(3):
    shop.call("refund", order=7, amount=10)
try:
    shop.call("cancel_order", id=7)
except LookupError as problem:
    print(f"Refunded 10, but: {problem}")
