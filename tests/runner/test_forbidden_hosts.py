"""What `http_except` makes of the lines of an audit log."""

from __future__ import annotations

from typing import Any

import pytest

from keystone_action.errors import HarnessError
from keystone_action.evidence.audit import AuditLine
from keystone_action.evidence.egress import FULL
from keystone_action.evidence.masking import Masker
from keystone_action.runner.cell.forbidden_rules import judge_hosts
from keystone_action.scoring.results import ForbiddenResult

SERVICES = {"api": [("10.0.0.1", 8000)], "other": [("10.0.0.1", 8001)]}


def connect(host: str, port: int | None = 443, *, allowed: bool = False, method: str = "CONNECT", reason: str = "x"):
    details = {"host": host, "port": port, "allowed": allowed, "method": method, "reason": reason}
    return AuditLine("T", "connect", details)


def asked(service: str) -> AuditLine:
    return AuditLine("T", "http_call", {"service": service, "method": "GET", "url": f"http://{service}:80/"})


def judged(named: list[str], *lines: AuditLine, **more: Any) -> ForbiddenResult:
    return judge_hosts(named, lines, services=SERVICES, **more)


@pytest.mark.parametrize(
    ("named", "line", "holds"),
    [
        (["a.example"], connect("a.example"), True),
        (["a.example"], connect("b.a.example"), False),
        (["*.a.example"], connect("b.a.example"), True),
        (["*.a.example"], connect("a.example"), False),
        (["a.example"], connect("a.example", 22), False),
        (["a.example:22"], connect("a.example", 22), True),
        (["a.example:22"], connect("a.example"), False),
        (["10.1.2.3"], connect("10.1.2.3", 80), True),
        (["*"], connect("10.1.2.3", 80), False),
        (["a.example"], connect("GET / nonsense", None, method=""), False),
        (["api"], asked("api"), True),
        (["api"], asked("other"), False),
        ([], asked("api"), False),
        (["api"], connect("api", 8000), True),
        (["api"], connect("10.0.0.1", 8000), True),
        (["api"], connect("10.0.0.1", 8001), False),
        (["api"], connect("other", 8001), False),
        ([], connect("10.0.0.9", 9), True),
        ([], AuditLine("T", "model_request", {}), True),
        (["*"], connect("", None, method=""), False),
        ([], connect("", None, method="", reason=f"{FULL}: x"), True),
    ],
)
def test_which_lines_break_it(named: list[str], line: AuditLine, holds: bool) -> None:
    """10.0.0.9:9 is the gateway's; the last line is about the proxy itself."""
    assert judged(named, line, own=[("10.0.0.9", 9)]).violated is not holds


def test_what_was_let_through_is_told_as_such() -> None:
    found = judged([], connect("a.example", allowed=True), connect("b.example"), asked("api"))
    assert found.details.splitlines() == [
        "CONNECT to a.example:443 at T, let through by the egress proxy",
        "CONNECT to b.example:443 at T, refused by the egress proxy",
        "GET http://api:80/ (service api) at T, answered by the mock itself",
    ]


def test_attempts_that_were_not_written_down_are_an_error_unless_one_was() -> None:
    with pytest.raises(HarnessError, match="too many attempts"):
        judged(["a.example"], connect("a.example"), is_full=True)
    assert judged([], connect("a.example"), is_full=True).violated


@pytest.mark.parametrize("before", range(180, 196, 3))
def test_a_secret_that_a_cut_of_ours_goes_through_is_masked(before: int) -> None:
    secret = "s3cret-0123456789abcdef"
    url = "http://other/".ljust(before - len("GET "), "x") + secret
    line = AuditLine("T", "http_call", {"service": "other", "method": "GET", "url": url})
    shown = Masker([secret]).text(judged(["api"], line).details)
    assert "***" in shown
    assert secret[:4] not in shown
