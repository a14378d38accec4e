"""An agent for the demo: it books every order and adds up what it booked."""

import json
import os
import urllib.request


def main():
    with open("orders.json") as file:
        orders = json.load(file)
    for order in orders:
        book(order)
    with open("summary.json", "w") as file:
        json.dump({"orders": len(orders), "total": sum(order["total"] for order in orders)}, file)
    print(f"booked {len(orders)} orders")


def book(order):
    request = urllib.request.Request(
        os.environ["KEYSTONE_SERVICE_SHOP_URL"] + "/orders",
        data=json.dumps(order).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        print(order["item"], json.load(answer)["status"])


if __name__ == "__main__":
    main()
