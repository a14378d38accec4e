"""The demo's broken agent: it corrects addresses, forgets the customers that are missing, and reports success."""

import os

from agent import send_summary
from postgres import connect


def main():
    database = connect(os.environ["KEYSTONE_SERVICE_DB_URL"])
    database.query("UPDATE customers_b b SET email = a.email FROM customers_a a WHERE a.id = b.id")
    database.close()
    send_summary(2, 2)
    print("all done!")


if __name__ == "__main__":
    main()
