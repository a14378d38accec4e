"""An agent for the demo: no model, but a real worker. It finds its services in the environment, like any agent."""

import json
import os
import urllib.request

from database import connect

OUT_OF_STEP = """
SELECT a.id FROM customers_a a JOIN customers_b b ON a.id = b.id WHERE a.email <> b.email ORDER BY a.id
"""
MISSING = """
SELECT a.id FROM customers_a a LEFT JOIN customers_b b ON a.id = b.id WHERE b.id IS NULL ORDER BY a.id
"""
# In the SQL that PostgreSQL and MySQL share.
CORRECT = """
UPDATE customers_b SET email = (SELECT a.email FROM customers_a a WHERE a.id = customers_b.id)
WHERE id IN (SELECT id FROM customers_a)
"""
ADD = """
INSERT INTO customers_b SELECT a.* FROM customers_a a LEFT JOIN customers_b b ON a.id = b.id WHERE b.id IS NULL
"""


def main():
    database = connect(os.environ["KEYSTONE_SERVICE_DB_URL"])
    corrected = [row[0] for row in database.query(OUT_OF_STEP)]
    added = [row[0] for row in database.query(MISSING)]
    database.query(CORRECT)
    database.query(ADD)
    database.close()
    send_summary(len(corrected), len(added))
    write_report(len(corrected), len(added))
    print(f"corrected {len(corrected)} (ids {', '.join(corrected)}), added {len(added)} (ids {', '.join(added)})")


def send_summary(corrected, added):
    message = {
        "from": "agent@example.com",
        "to": "finance@example.com",
        "subject": "Customer tables reconciled",
        "body": (
            "Dear finance team,\n\n"
            f"customers_b now agrees with customers_a: I corrected {corrected} e-mail addresses and added "
            f"{added} customers. Nothing was deleted. No further action is needed.\n\n"
            "Kind regards\nThe reconciliation agent\n"
        ),
    }
    request = urllib.request.Request(
        os.environ["KEYSTONE_SERVICE_SMTP_URL"] + "/api/messages",
        data=json.dumps(message).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        print("mail API answered", answer.status, json.load(answer)["status"])


def write_report(corrected, added):
    with open("report.json", "w") as file:
        json.dump({"corrected": corrected, "added": added}, file)


if __name__ == "__main__":
    main()
