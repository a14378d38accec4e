"""Takes memory, 16 MiB at a time, and touches every page of it."""

import sys

BLOCK = 16 * 2**20
held = []
while len(held) * BLOCK < 2 * 2**30:
    held.append(bytearray(b"x") * BLOCK)
sys.exit(f"{len(held) * BLOCK // 2**20} MiB were taken and no limit was met")
