"""A step of a workflow that runs as a container, for as long as it runs: the client that the runner started, and the
ways in which it ends early."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping

from support.fake_runner import StepResult

PATIENCE = 150
"""Seconds for what has to end by one signal. The runner has 7.5 for SIGINT, after which it sends SIGTERM: whether that
is enough is measured (benchmarks/cancelling.py), since here a busy engine would decide."""


class ContainerStep:
    """A `docker run` in the foreground. name: the container's. result: makes the step's result of exit code and log."""

    def __init__(
        self, command: list[str], environ: Mapping[str, str], name: str, result: Callable[[int, str], StepResult]
    ) -> None:
        self.name = name
        self._result = result
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - it is open for as long as this is
        # A session of its own: a signal for the tests (Ctrl-C) is none for the step.
        self._client = subprocess.Popen(
            command,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def raw_log(self) -> str:
        """What it has printed so far."""
        descriptor = self._log.fileno()
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0).decode("utf-8", "replace")

    @property
    def running(self) -> bool:
        return self._client.poll() is None

    def until(self, happened: Callable[[], bool], what: str, *, patience: float = 120) -> None:
        """Waits until it happened while the step runs."""
        deadline = time.monotonic() + patience
        while not happened():
            assert self.running, f"the step ended before {what}:\n{self.raw_log}"
            assert time.monotonic() < deadline, f"{what} did not happen:\n{self.raw_log}"
            time.sleep(0.2)  # what is asked may be a look at every process

    def wait(self, timeout: float = 300) -> StepResult:
        """Its result, once it has ended."""
        try:
            code = self._client.wait(timeout)
        except subprocess.TimeoutExpired:
            self.abandon()
            raise AssertionError(f"the step did not end within {timeout} s:\n{self.raw_log}") from None
        return self._result(code, self.raw_log)

    def cancel(self) -> StepResult:
        """Ends it by SIGINT alone, the first thing that the runner sends when a job is cancelled."""
        self._client.send_signal(signal.SIGINT)
        return self.wait(PATIENCE)

    def terminate(self) -> StepResult:
        """Ends it by SIGTERM alone, as `docker stop` does."""
        self._client.send_signal(signal.SIGTERM)
        return self.wait(PATIENCE)

    def kill(self) -> StepResult:
        """Ends the container without a word: a machine's memory was short, or somebody ran `docker kill`."""
        subprocess.run(["docker", "kill", self.name], check=True, capture_output=True, timeout=60)
        return self.wait(60)

    def abandon(self) -> None:
        """Whatever is left of it, gone; twice does no harm."""
        subprocess.run(["docker", "rm", "--force", "--volumes", self.name], check=False, capture_output=True)
        if self.running:
            self._client.kill()
            self._client.wait(30)
