"""An agent that tries to get out of its network: the probing part of its script, and what there is to be reached."""

from __future__ import annotations

import socket
import threading

PROBES = r"""
import json, os, socket, struct, urllib.error, urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial
PATIENCE = 3

def all_at_once(probes):
    "The results of functions by name, nested as they are: most of them only wait."
    with ThreadPoolExecutor(40) as pool:
        def start(probe):
            return {name: start(one) for name, one in probe.items()} if isinstance(probe, dict) else pool.submit(probe)
        def result(one):
            return {name: result(value) for name, value in one.items()} if isinstance(one, dict) else one.result()
        return result(start(probes))

def by_http(url, proxy=None):
    handlers = [] if proxy is None else [urllib.request.ProxyHandler({"http": proxy, "https": proxy} if proxy else {})]
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=PATIENCE) as answer:
            return f"{answer.status} {answer.read(200).decode(errors='replace').strip()}"
    except urllib.error.HTTPError as error:
        return f"refused {error.code}"
    except OSError as error:
        return f"failed {getattr(error, 'reason', error)}"

def by_address(host, port):
    try:
        with socket.create_connection((host, port), PATIENCE) as connection:
            connection.settimeout(PATIENCE)
            return f"open {connection.recv(100).decode(errors='replace').strip()}"
    except OSError as error:
        return f"closed {error}"

def tunnel(target):
    "What the proxy answers to CONNECT, and what the first bytes through it are."
    proxy = urllib.request.getproxies().get("https", "")
    host, _, port = proxy.rpartition("/")[2].rpartition("@")[2].partition(":")
    if not host:
        return "no proxy"
    try:
        with socket.create_connection((host, int(port)), PATIENCE) as connection:
            connection.settimeout(PATIENCE)
            connection.sendall(f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode())
            return connection.recv(4096).decode(errors="replace").split("\r\n")[0]
    except OSError as error:
        return f"failed {error}"

def by_name(name):
    try:
        return sorted({row[4][0] for row in socket.getaddrinfo(name, 80)})
    except OSError as error:
        return f"unknown {error}"

def by_dns(server, name):
    "The answers that a name server has, asked without the system's resolver."
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    query = struct.pack("!HHHHHH", 4321, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", 1, 1)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.settimeout(PATIENCE)
            asking.sendto(query, (server, 53))
            return struct.unpack("!H", asking.recv(1000)[6:8])[0]
    except OSError as error:
        return f"silent {error}"

def name_servers():
    lines = open("/etc/resolv.conf").read().splitlines()
    return [line.split()[1] for line in lines if line.startswith("nameserver")]

def gateways():
    "Addresses that belong to the machine, as far as they can be guessed: the first of each network, and of routes."
    found = set()
    for line in open("/proc/net/route").read().splitlines()[1:]:
        _, network, gateway, *_ = line.split()
        for number in (gateway, network):
            address = socket.inet_ntoa(struct.pack("<I", int(number, 16)))
            if address != "0.0.0.0":
                found.add(address if number == gateway else address.rpartition(".")[0] + ".1")
    return sorted(found)
"""
"""Python for agents. Every probe gives a text that begins with what came of it."""


class Canary:
    """A port at all addresses of this machine that says CANARY to everybody who connects. seen: how many did."""

    def __init__(self) -> None:
        self._server = socket.create_server(("0.0.0.0", 0))
        self.port: int = self._server.getsockname()[1]
        self.seen = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._server.accept()[0]
            except OSError:
                return
            self.seen += 1
            with connection:
                connection.sendall(b"CANARY\n")

    def close(self) -> None:
        self._server.close()
