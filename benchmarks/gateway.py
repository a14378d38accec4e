"""The model gateway beside LiteLLM's proxy: what a request costs, what it adds before the first byte, and memory.

Provider, gateway, proxy and clients are processes of their own. Both pass on the same streams of OpenAI's Chat API: 20
events, one every 50 ms.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path

from benchmarks.installed import python_program
from benchmarks.measure import Row

LITELLM = "litellm[proxy]==1.106.2"
CELLS = 8
"""Ports of the gateway, so that 200 streams are not held back by the limit of one cell."""
LATENCY_BUDGET = 0.003
"""Seconds before the first byte, with 50 streams at once."""
KEY = "sk-bench-0123456789"
EVENTS, PAUSE = 20, 0.05
_READY_SECONDS = 120.0
_BODY = json.dumps(
    {"model": "gpt-5", "stream": True, "messages": [{"role": "user", "content": "word " * 2_000}]}
).encode()
_CONFIG = """\
model_list:
  - model_name: gpt-5
    litellm_params: {{model: openai/gpt-5, api_base: "{base}/v1", api_key: {key}}}
general_settings: {{master_key: {key}}}
litellm_settings: {{telemetry: false}}
"""


@dataclass
class Peer:
    """Something that answers requests. urls: taken in turn. process: whose time and memory count; None = nobody's."""

    urls: list[str]
    process: subprocess.Popen[bytes] | None = None
    first_bytes: list[float] = field(default_factory=list)
    seconds_a_request: list[float] = field(default_factory=list)

    def cpu(self) -> float:
        """Seconds of processor time, children included."""
        return sum(_cpu(one) for one in _family(self.process.pid)) if self.process is not None else 0.0

    def resident(self) -> float:
        """Megabytes."""
        assert self.process is not None
        kib = 0
        for pid in _family(self.process.pid):
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            kib += sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
        return kib / 1024


def gateway(rounds: int) -> Iterator[Row | str]:
    """All of it."""
    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name, ExitStack() as stack:
        behind = stack.enter_context(_started("provider"))
        peers = {"direct": Peer(behind.urls), "ours": stack.enter_context(_started("gateway", behind.urls[0]))}
        try:
            peers["litellm"] = stack.enter_context(_litellm(Path(name), behind.urls[0]))
        except (OSError, subprocess.SubprocessError, TimeoutError) as error:
            yield f"gateway: LiteLLM's proxy does not start here: {error}"
        idle = {who: peer.resident() for who, peer in peers.items() if peer.process is not None}
        for streams, requests in ((1, 5), (50, 2)):
            _measure(peers, streams, requests, rounds)
            yield from _rows(peers, streams)
        for who, peer in peers.items():
            if peer.process is not None:
                held = asyncio.run(_held(peer, 200))
                yield f"{f'gateway: 200 streams, {who}':<38} {held:9.1f} MB resident ({idle[who]:.1f} MB before all)"


def _rows(peers: dict[str, Peer], streams: int) -> Iterator[Row]:
    direct = statistics.median(peers["direct"].first_bytes)
    other = peers.get("litellm", peers["direct"])
    name = "litellm" if "litellm" in peers else "direct"
    added, theirs = (statistics.median(one.first_bytes) - direct for one in (peers["ours"], other))
    cpu, their_cpu = (statistics.median(one.seconds_a_request) for one in (peers["ours"], other))
    label = f"{streams} stream{'s' if streams > 1 else ''}"
    yield Row(f"gateway: first byte later, {label}", added, name, theirs, LATENCY_BUDGET)
    yield Row(f"gateway: processor, a request, {label}", cpu, name, their_cpu, None)


def _measure(peers: dict[str, Peer], streams: int, requests: int, rounds: int) -> None:
    """Each in turn, after one round for warming up."""
    for number in range(rounds + 1):
        for peer in peers.values():
            if number < 2:
                peer.first_bytes.clear()
                peer.seconds_a_request.clear()
            before = peer.cpu()
            peer.first_bytes += asyncio.run(_crowd(peer, streams, requests))
            peer.seconds_a_request.append((peer.cpu() - before) / (streams * requests))


async def _crowd(peer: Peer, streams: int, requests: int) -> list[float]:
    """So many clients, begun one after the other within the length of a stream; the seconds to each first byte."""
    urls = cycle(peer.urls)

    async def client(number: int, url: str) -> list[float]:
        await asyncio.sleep(EVENTS * PAUSE * number / streams)
        return [await _ask(url) for _ in range(requests)]

    found = await asyncio.gather(*(client(number, next(urls)) for number in range(streams)))
    return [seconds for one in found for seconds in one]


async def _held(peer: Peer, streams: int) -> float:
    """Megabytes in the middle of so many streams."""
    asking = asyncio.create_task(_crowd(peer, streams, 2))
    await asyncio.sleep(EVENTS * PAUSE)
    most = 0.0
    while not asking.done():
        most = max(most, await asyncio.to_thread(peer.resident))
        await asyncio.sleep(0.1)
    await asking
    return most


async def _ask(url: str) -> float:
    host, _, path = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    reader, writer = await asyncio.open_connection(name, int(port))
    head = f"POST /{path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {KEY}\r\nconnection: close\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(_BODY)}\r\n\r\n"
    started = time.perf_counter()
    writer.write(head.encode() + _BODY)
    status = await reader.readline()
    if b" 200 " not in status:
        raise OSError(f"{url} answered {status!r}: {(await reader.read(2_000))!r}")
    await reader.readuntil(b"data: ")
    found = time.perf_counter() - started
    rest = await reader.read()
    while piece := await reader.read(65536):
        rest += piece
    if rest.count(b'"delta"') < EVENTS - 2:
        raise OSError(f"{url} did not pass all events on")
    writer.close()
    return found


# The processes. Each prints its addresses when it listens.


@contextmanager
def _started(*words: str) -> Iterator[Peer]:
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.gateway", *words], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield Peer(json.loads(process.stdout.readline()), process)
    finally:
        process.kill()
        process.wait()


@contextmanager
def _litellm(directory: Path, base: str) -> Iterator[Peer]:
    """Its proxy, in an environment of its own that later runs find again."""
    program = python_program(LITELLM, "litellm")
    (directory / "litellm.yaml").write_text(_CONFIG.format(base=base, key=KEY))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = [str(program), "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(port)]
    env = {**os.environ, "HOME": str(directory), "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR"}
    with (directory / "litellm.log").open("wb") as log:
        process = subprocess.Popen(words, env=env, cwd=directory, stdout=log, stderr=log)
    try:
        _await_ready(f"http://127.0.0.1:{port}/health/liveliness", process, directory / "litellm.log")
        yield Peer([f"http://127.0.0.1:{port}/v1/chat/completions"], process)
    finally:
        process.kill()
        process.wait()


def _await_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(log.read_text(errors="replace")[-500:].strip() or "it is not ready in time")


async def _serve_provider() -> None:
    piece = {"object": "chat.completion.chunk", "id": "c", "created": 1, "model": "gpt-5"}
    events = [{**piece, "choices": [{"index": 0, "delta": {"content": "word "}}]}] * (EVENTS - 2)
    events += [{**piece, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}]
    usage = {"prompt_tokens": 2_000, "completion_tokens": 20, "total_tokens": 2_020}
    events += [{**piece, "choices": [], "usage": usage}]
    chunks = [f"data: {json.dumps(event)}\n\n".encode() for event in events] + [b"data: [DONE]\n\n"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.lower().split(b"\r\n")
                length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
                await reader.readexactly(length)
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                )
                for chunk in chunks:
                    writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
                    await asyncio.sleep(PAUSE)
                writer.write(b"0\r\n\r\n")
                if b"connection: close" in lines:
                    break
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=512)
    print(json.dumps([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/chat/completions"]), flush=True)
    await asyncio.Event().wait()


async def _serve_gateway(behind: str) -> None:
    from keystone_action.gateway.application import GatewaySettings
    from keystone_action.gateway.ledger import BudgetLimits, Ledger
    from keystone_action.gateway.server import Gateways
    from keystone_action.gateway.upstreams import Upstream

    gateways, base = Gateways(), behind.removesuffix("/chat/completions")
    gateways.start()
    opened = []
    for _ in range(CELLS):
        upstream = Upstream("openai", "openai", base, "sk-real-bench-key")
        settings = GatewaySettings(KEY, {"openai": upstream}, Ledger(BudgetLimits(max_cost_usd=1_000)))
        opened.append(await gateways.open(settings))
    print(json.dumps([f"http://127.0.0.1:{one.port}/openai/v1/chat/completions" for one in opened]), flush=True)
    await asyncio.Event().wait()


def _family(pid: int) -> list[int]:
    children = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        children += [int(one) for one in (thread / "children").read_text().split()]
    return [pid, *(one for child in children for one in _family(child))]


def _cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    asyncio.run(_serve_provider() if sys.argv[1] == "provider" else _serve_gateway(sys.argv[2]))
