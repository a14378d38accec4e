"""An agent for the demo: it runs the tests, repairs the line that is wrong, and runs them again."""

import pathlib
import subprocess
import sys

TESTS = [sys.executable, "-m", "unittest", "discover", "-s", "tests"]


def main():
    before = subprocess.run(TESTS, capture_output=True, text=True, check=False)
    print(f"tests before: exit {before.returncode}")
    source = pathlib.Path("pricing.py")
    source.write_text(source.read_text().replace("percent // 10\n", "percent // 100\n"))
    after = subprocess.run(TESTS, capture_output=True, text=True, check=False)
    print(f"tests after: exit {after.returncode}")
    with open("CHANGES.md", "a") as changes:
        changes.write("- A discount is a percentage again: 25 percent takes off a quarter.\n")
    sys.exit(after.returncode)


if __name__ == "__main__":
    main()
