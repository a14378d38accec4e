"""The demo's inventive agent: it books one order and makes up the summary."""

import json

from agent import book


def main():
    book({"item": "telescope", "total": 24900})
    with open("summary.json", "w") as file:
        json.dump({"orders": 3, "total": 99999}, file)
    print("booked 3 orders")


if __name__ == "__main__":
    main()
