"""A connection that a process of a sandbox makes, for us to speak over: so it is made by the sandbox's user, from its
network, under its rules, and not by us.

The process says first, in one line, what came of it: `connected`, or why not. Then it passes on what comes, both ways.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from keystone_action.sandbox.protocol import ServedConnection

Obstacle = Literal["name", "link-local", "refused", "program"]
_SENTENCES: dict[str, str] = {
    "name": "the name {host} can't be resolved",
    "link-local": "{host} is a link-local address, where machines of a cloud hand out their credentials",
    "refused": "{host}:{port} does not accept connections",
    "program": "nothing in the image can open a connection: it has neither python3 nor bash with getent nor nc",
}
_LONGEST_LINE = 500


class CannotDial(Exception):  # noqa: N818 - an outcome, whose fault it is the caller knows
    """There is no connection; str() is a sentence without its full stop."""

    def __init__(self, obstacle: Obstacle, host: str, port: int, said: str = "") -> None:
        sentence = _SENTENCES[obstacle].format(host=host, port=port)
        super().__init__(f"{sentence} ({said})" if said else sentence)
        self.obstacle: Obstacle = obstacle


DIALER = """
import ipaddress, os, socket, sys, threading

def say(line):
    give(" ".join(line.split()).encode("utf-8", "replace")[:400] + b"\\n")

def dial(host, port):
    try:
        rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return say("name %s" % error)
    problem = "name"
    for family, kind, protocol, _, place in rows:
        address = ipaddress.ip_address(place[0].partition("%")[0])
        address = getattr(address, "ipv4_mapped", None) or address
        if address.is_link_local:
            problem = "link-local"
            continue
        far = socket.socket(family, kind, protocol)
        try:
            far.connect(place)
        except OSError as error:
            problem = "refused %s" % (error.strerror or error)
            far.close()
            continue
        say("connected")
        return far
    say(problem)

if len(sys.argv) > 3:
    os.chdir(sys.argv[3])
    near = socket.socket(socket.AF_UNIX)
    near.connect(sys.argv[4])
    give, take = near.sendall, lambda: near.recv(65536)
else:
    def give(data):
        while data:
            data = data[os.write(1, data):]
    take = lambda: os.read(0, 65536)
far = dial(sys.argv[1], int(sys.argv[2]))

def forth():
    try:
        for data in iter(take, b""):
            far.sendall(data)
    except OSError:
        pass

if far is not None:
    threading.Thread(target=forth, daemon=True).start()
    try:
        for data in iter(lambda: far.recv(65536), b""):
            give(data)
    except OSError:
        pass
os._exit(0)
"""
"""For any Python from 3.6 on: `HOST PORT`, and where its other end is a Unix socket the folder and the name of that."""

IN_AN_IMAGE = r"""
read -r go
if command -v python3 >/dev/null 2>&1; then exec python3 -I -S -c "$3" "$1" "$2"; fi
if command -v bash >/dev/null 2>&1; then with=bash
elif command -v nc >/dev/null 2>&1; then with=nc
else echo program; exit; fi
case "$1" in
    *[!0-9.]*) case "$1" in
        *:*) found=$1;;
        *) command -v getent >/dev/null 2>&1 || { echo program; exit; }
           found=$(getent ahosts "$1" | while read -r address rest; do echo "$address"; done);;
    esac;;
    *) found=$1;;
esac
said=name
for address in $found; do
    case "$address" in
        169.254.*|[fF][eE][89aAbB]?:*|::[fF][fF][fF][fF]:169.254.*) said=link-local; continue;;
    esac
    said=refused
    if [ $with = bash ]; then
        bash -c '{ exec 3<>"/dev/tcp/$1/$2"; } 2>/dev/null || exit 9
            echo connected; exec 4<&0; cat <&4 >&3 & cat <&3; kill $! 2>/dev/null; exit 0' bash "$address" "$2" && exit
    elif nc -w 10 "$address" "$2" </dev/null >/dev/null 2>&1; then
        echo connected; exec nc "$address" "$2"
    fi
done
echo $said
"""
"""For `sh` in an image: `HOST PORT DIALER`. It waits for a line first: what an engine sends together with its answer is
lost on some clients."""


def plain_address(host: str) -> str:
    """An address in its one spelling (`2852039166` and `0xa9fea9fe` are 169.254.169.254); a name as it is."""
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return host


async def await_connection(connection: ServedConnection, host: str, port: int) -> ServedConnection:
    """The same connection, once the process has said that it leads to that place. Raises CannotDial."""
    reader, writer = connection
    try:
        line = await reader.readuntil(b"\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
        line = b"refused the process that was to connect has ended"
    said, _, more = line[:_LONGEST_LINE].decode("utf-8", "replace").strip().partition(" ")
    if said == "connected":
        return connection
    writer.transport.abort()
    obstacles: dict[str, Obstacle] = {"name": "name", "link-local": "link-local", "program": "program"}
    raise CannotDial(obstacles.get(said, "refused"), host, port, more)
