"""The demo's broken agent: it corrects addresses, forgets the customers that are missing, and reports success."""

import os

from agent import CORRECT, send_summary, write_report
from database import connect


def main():
    database = connect(os.environ["KEYSTONE_SERVICE_DB_URL"])
    database.query(CORRECT)
    database.close()
    send_summary(2, 2)
    write_report(2, 2)
    print("all done!")


if __name__ == "__main__":
    main()
