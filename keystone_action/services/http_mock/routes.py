"""The routes of a mock: which one answers a request, and with which of its responses."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import UsageError
from keystone_action.services.http_mock.request import MockRequest
from keystone_action.services.http_mock.responses import MockReply, ResponsePlan, json_reply
from keystone_action.spec.path_patterns import compile_path

if TYPE_CHECKING:
    from keystone_action.spec.models.services import HttpMockService
    from keystone_action.spec.models.services import Route as RouteModel


class CompiledRoute:
    """One route of a spec. A HEAD request is answered by a route for GET, too."""

    def __init__(self, model: RouteModel, directory: Path, where: str) -> None:
        """directory: the spec's. where: for messages. Raises UsageError."""
        try:
            self._pattern = compile_path(model.path)
        except ValueError as error:
            raise UsageError(f"{where}: {error}") from error
        method = (model.method or "any").upper()
        self._methods = None if method in ("ANY", "*") else {method, "HEAD"} if method == "GET" else {method}
        self._headers = {name.lower(): value for name, value in model.match.headers.items()}
        self._query = dict(model.match.query)
        self._body = model.match.body
        self.times = model.times
        answers = model.sequence or [model]
        self.plans = [
            ResponsePlan(answer, directory, f"{where}, response {number}" if model.sequence else where)
            for number, answer in enumerate(answers, 1)
        ]

    def match(self, request: MockRequest) -> dict[str, str] | None:
        """The parameters of its path, or None when it is not for this request."""
        if self._methods is not None and request.method not in self._methods:
            return None
        parameters = self._pattern.match(request.path)
        if parameters is None or not self._matches_content(request):
            return None
        return parameters

    def _matches_content(self, request: MockRequest) -> bool:
        if any(request.query.get(name) != value for name, value in self._query.items()):
            return False
        if self._headers:
            sent = {name.lower(): value for name, value in request.headers.items()}
            for name, wanted in self._headers.items():
                found = sent.get(name)
                if wanted not in (found if isinstance(found, list) else [found]):
                    return False
        return self._body is None or self._body in request.body


class RouteTable:
    """All routes of a mock, compiled once; what one cell has used of them is in its `RouteState`."""

    def __init__(self, model: HttpMockService, directory: Path) -> None:
        """Raises UsageError that names the route."""
        self.routes = [
            CompiledRoute(route, directory, f"service {model.name}, route {number} ({route.path})")
            for number, route in enumerate(model.routes, 1)
        ]
        self.default = json_reply(model.default_status, {})


class RouteState:
    """The routes of a mock as one cell has used them: nothing of it is shared with another cell."""

    def __init__(self, table: RouteTable) -> None:
        self._table = table
        self._uses = [0] * len(table.routes)

    def answer(self, request: MockRequest) -> MockReply:
        """The first route in declared order that matches and is not used up; else the default response."""
        for index, route in enumerate(self._table.routes):
            used = self._uses[index]
            if route.times is not None and used >= route.times:
                continue
            parameters = route.match(request)
            if parameters is None:
                continue
            self._uses[index] = used + 1
            plan = route.plans[min(used, len(route.plans) - 1)]
            if not plan.is_template:
                return plan.render(None)
            request.params = parameters
            return plan.render(request.for_template())
        return self._table.default
