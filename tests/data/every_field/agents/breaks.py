"""Breaks every rule of containers.keystone.yaml."""

import json
import os
import urllib.request
from pathlib import Path

import psycopg
import pymysql
from models import ask, user

asked = user(json.dumps({"WebSearch": {"query": "weather"}, "Bash": {"command": "rm -rf /"}}))
ask(os.environ["ROUTER_URL"], os.environ["ROUTER_KEY"], "in-house-1", asked)
try:
    urllib.request.urlopen("http://outside:8000/page", timeout=30)
except OSError as error:
    print(f"not let out: {error}")
Path("spare.json").write_text("{}")
with psycopg.connect(os.environ["KEYSTONE_SERVICE_ORDERS_URL"]) as orders:
    orders.execute("CREATE TABLE spare (word text)")
    orders.execute("INSERT INTO spare VALUES (%s)", [os.environ["WORD"]])
bills = pymysql.connect(
    host=os.environ["KEYSTONE_SERVICE_BILLS_HOST"],
    port=int(os.environ["KEYSTONE_SERVICE_BILLS_PORT"]),
    user="app",
    password="app-secret",
    database="shop",
    autocommit=True,
)
with bills, bills.cursor() as cursor:
    cursor.execute("CREATE TABLE spare (id int)")
