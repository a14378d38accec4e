"""Looks at the order, reads the policy, and refunds what was paid."""

import json
import sys

from shop import Shop

shop = Shop(sys.argv[1])
order = json.loads(shop.call("get_order", id=7)[0])
if order["state"] == "paid" and "may be refunded in full" in shop.read("docs://policy"):
    answer, failed = shop.call("refund", order=order["id"], amount=order["total"])
    if failed:
        answer, failed = shop.call("refund", order=order["id"], amount=order["total"])
    print(f"Order 7: refunded {order['total']}, {answer}")
