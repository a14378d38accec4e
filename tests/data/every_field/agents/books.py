"""Asks its model, reads two pages, and books in both databases."""

import json
import os
import urllib.request
from pathlib import Path

import psycopg
import pymysql
from models import ask, user

asked = user(os.environ["KEYSTONE_PROMPT"])
answer = ask(os.environ["ROUTER_URL"], os.environ["ROUTER_KEY"], "in-house-1", asked)
(call,) = (one for one in answer if one["type"] == "tool_use")
pages = [
    urllib.request.urlopen(url, timeout=30).read().decode().strip()
    for url in (os.environ["KEYSTONE_SERVICE_PAGES_URL"], "http://allowed.example.com:8000/allowed")
]
assert urllib.request.urlopen("http://www.example.com:8000", timeout=30).read().decode().strip() == pages[0]
Path("said.txt").write_text(" ".join([call["input"]["say"], *pages]))
with psycopg.connect(os.environ["KEYSTONE_SERVICE_ORDERS_URL"]) as orders:
    orders.execute("INSERT INTO orders VALUES (12, 'booked')")
bills = pymysql.connect(
    host=os.environ["KEYSTONE_SERVICE_BILLS_HOST"],
    port=int(os.environ["KEYSTONE_SERVICE_BILLS_PORT"]),
    user="app",
    password="app-secret",
    database="shop",
    autocommit=True,
)
with bills, bills.cursor() as cursor:
    cursor.execute("INSERT INTO bills VALUES (12, 20)")
print(json.dumps({"output": "booked", "tool_calls": [{"name": "Book"}]}))
