"""`http_mock_assertions`: what is refused, and what is ours to answer for."""

import pytest
from pydantic import ValidationError
from support.context import make_check
from support.mock_records import Log, grade

from keystone_action.errors import OutputError
from keystone_action.invariants.types.http_mock_assertions import HttpMockAssertions
from keystone_action.spec.models.fields import ServiceName

SUMMARY_SENT_ONCE = {
    "type": "http_mock_assertions",
    "service": "smtp",
    "assertions": [{"field": "request_count", "filters": {"to": "finance@co"}, "equals": 1}],
}


@pytest.mark.parametrize(
    ("assertion", "sentence"),
    [
        ({"field": "request_count"}, "at least one of equals"),
        ({"field": "request_count", "gt": None}, "at least one of equals"),
        ({"field": "request_cont", "equals": 1}, "expected request_count, last_request"),
        ({"field": "last_request.bodi", "contains": "x"}, "expected one of .method, .path"),
        ({"field": "requests[x].body", "contains": "x"}, "requests[N]"),
        ({"field": "requests", "exists": True}, "requests[N]"),
        ({"field": "last_request.body.a", "exists": True}, "nothing after .body"),
        ({"field": "request_count", "contains": "1"}, "request_count is a number"),
        ({"field": "request_count", "equals": 1, "filters": {"path": "api"}}, "starts with /"),
        ({"field": "request_count", "equals": 1, "filters": {"method": ["POST"]}}, "a text for the filter method"),
        ({"field": "request_count", "equals": 1, "filters": {"query": "a=b"}}, "a mapping of names"),
        ({"field": "request_count", "equals": 1, "filters": {"headers": "X-Key"}}, "a mapping of names"),
        ({"field": "request_count", "equals": 1, "filters": {"json": ["to"]}}, "a mapping of paths"),
        ({"field": "request_count", "equals": 1, "filters": {"json": {"a[": 1}}}, "expected .name, [0]"),
        ({"field": "request_count", "equal": 1}, "Extra inputs"),
        ({"field": "last_request.body", "count": -1}, "greater than or equal to 0"),
        ({"field": "last_request", "exists": "no"}, "valid boolean"),
    ],
)
def test_assertions_that_make_no_sense_are_refused(assertion, sentence):
    with pytest.raises(ValidationError) as caught:
        make_check({"type": "http_mock_assertions", "service": "smtp", "assertions": [assertion]})
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("field", "suggestion"),
    [
        ("request_cont", "request_count"),
        ("last_requst.body", "last_request.body"),
        ("requests.body", "requests[0].body"),
    ],
)
def test_the_field_that_was_meant_is_suggested(field, suggestion):
    with pytest.raises(ValidationError) as caught:
        make_check({"type": "http_mock_assertions", "service": "s", "assertions": [{"field": field, "exists": True}]})
    assert caught.value.errors()[0]["ctx"]["suggestion"] == suggestion


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("mehtod", "method"),
        ("methd", "method"),
        ("methodd", "method"),
        ("metxod", "method"),
        ("METHOD", "method"),
        ("paht", "path"),
        ("header", "headers"),
        ("jsno", "json"),
        ("qeury", "query"),
        ("bdoy", "body"),
    ],
)
def test_a_misspelt_filter_is_refused_with_the_one_that_was_meant(key, meant):
    asked = {"field": "request_count", "filters": {key: "DELETE"}, "equals": 0}
    with pytest.raises(ValidationError) as caught:
        make_check({"type": "http_mock_assertions", "service": "s", "assertions": [asked]})
    context = caught.value.errors()[0]["ctx"]
    assert context["suggestion"] == meant
    assert f"headers: {{{key}: …}} or json: {{{key}: …}}" in context["help"]


@pytest.mark.parametrize("key", ["to", "subject", "X-Method", "payload", "host", "methods_", "order", "mtehdo"])
def test_a_key_that_is_not_like_a_filter_is_a_name(key):
    asked = {"field": "request_count", "filters": {key: "x"}, "equals": 0}
    assert make_check({"type": "http_mock_assertions", "service": "s", "assertions": [asked]}).assertions


def test_no_assertion_is_refused():
    with pytest.raises(ValidationError, match="at least 1 item"):
        make_check({"type": "http_mock_assertions", "service": "smtp", "assertions": []})


def test_expressions_are_read_when_they_have_their_value():
    text = {"field": "requests[{{ params.n }}].body", "equals": "x", "filters": {"path": "{{ params.path }}"}}
    assert make_check({"type": "http_mock_assertions", "service": "s", "assertions": [text]}).assertions


def test_the_service_must_record():
    (marker,) = HttpMockAssertions.model_fields["service"].metadata
    assert marker == ServiceName(kinds="recording")


def test_a_service_without_a_record_is_an_error_of_the_check(tmp_path):
    check = make_check(SUMMARY_SENT_ONCE)
    found = grade(tmp_path, check)
    assert (found.status, found.score) == ("error", None)
    assert "record: true" in found.message


def test_an_incomplete_record_is_never_graded(tmp_path):
    class Broken:
        def requests(self):
            raise OutputError("the record of smtp is incomplete")

    with pytest.raises(OutputError, match="incomplete"):
        grade(tmp_path, make_check(SUMMARY_SENT_ONCE), smtp=Broken())


@pytest.mark.parametrize(
    "assertion",
    [
        {"field": "{{ params.field }}", "equals": 1},
        {"field": "request_count", "filters": {"path": "{{ params.path }}"}, "equals": 1},
    ],
)
def test_an_expression_that_gave_no_field_or_path_is_an_error_of_the_check(tmp_path, assertion):
    check = make_check({"type": "http_mock_assertions", "service": "smtp", "assertions": [assertion]})
    filled = check.model_copy(
        update={"assertions": [check.assertions[0].model_copy(update={"field": "nonsense"})]}
        if "{{" in assertion["field"]
        else {"assertions": [check.assertions[0].model_copy(update={"filters": {"path": "nonsense"}})]}
    )
    assert grade(tmp_path, filled, smtp=Log()).status == "error"
