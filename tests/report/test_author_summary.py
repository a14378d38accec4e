"""Summaries by templates of others: what they may use, and that nothing gets around the escaping."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2 import BytecodeCache, Environment
from jinja2.bccache import Bucket
from markdown import LINKED_BY_THE_FORGE, tokens
from samples import SAMPLES, hostile, passing
from support.sample_parts import run

from keystone_action.report import author_summary
from keystone_action.report.addresses import check_page
from keystone_action.report.author_summary import VARIABLES, TemplateProblem, check_template, render_author_summary
from keystone_action.report.summary import render_summary, summary_variables
from keystone_action.report.templating import author_markdown_environment
from keystone_action.scoring.differences import SpecChange, SpecChanges

DOCS = Path(__file__).parent.parent.parent / "docs" / "templates.md"
EXTENDS = '{% extends "summary.md.j2" %}\n'
ENDLESS = "{% for _ in range(9999) %}{% for _ in range(9999) %}" + "spam" * 999 + "{% endfor %}{% endfor %}"
NAME = "ci/summary.md.j2"


@pytest.fixture(scope="module", autouse=True)
def compiled_once() -> Iterator[None]:
    """Our own templates, which each of these summaries extends, are compiled once for all tests of this file: it takes
    longer than all else that is tried here."""
    compiled = CompiledTemplates()

    def environment(text: str, name: str) -> Environment:
        made = author_markdown_environment(text, name)
        made.bytecode_cache = compiled
        return made

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(author_summary, "author_markdown_environment", environment)
        yield


class CompiledTemplates(BytecodeCache):
    """In memory, by their names and texts."""

    def __init__(self) -> None:
        self._code: dict[str, Any] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get(f"{bucket.key} {bucket.checksum}")

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[f"{bucket.key} {bucket.checksum}"] = bucket.code


def head(expression: str) -> str:
    return f"{EXTENDS}{{% block head %}}{expression}{{% endblock %}}"


def problem(text: str) -> str:
    with pytest.raises(TemplateProblem) as caught:
        render_author_summary(text, NAME, passing())
    return str(caught.value)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_template_that_changes_nothing_is_ours(name: str) -> None:
    result = SAMPLES[name]()
    ours = render_summary(result)
    if name == "hostile":  # undecodable characters are gone once results are a document
        ours = re.sub(r"⟨U\+D800⟩", "", ours)
        assert len(render_author_summary(EXTENDS, NAME, result)) > 0.9 * len(ours)
    else:
        assert render_author_summary(EXTENDS, NAME, result) == ours


def test_the_example_of_the_page_renders() -> None:
    (example,) = re.findall(r"```jinja\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    text = render_author_summary(example, NAME, passing())
    assert text.lstrip().startswith("## ✅ Keystone: reconcile-customers passed: 3 of 3 checks")
    assert "[what to do when this fails](https://wiki.example.com/agents)" in text
    assert "| ✅ | `email_quality` Professional and accurate; next steps could be clearer. | 0.82 |" in text
    assert "<sub>1 graded in 4.6 s · spent 0.04 USD</sub>" in text


def test_the_page_names_every_block_there_is() -> None:
    ours = (Path(render_summary.__code__.co_filename).parent / "templates" / "summary.md.j2").read_text("utf-8")
    blocks = re.findall(r"\{% block (\w+)", ours)
    named = re.findall(r"^\| `(\w+)` \|", DOCS.read_text("utf-8"), re.MULTILINE)
    assert sorted([*named, "verdict"]) == sorted(blocks)


def test_every_variable_is_known() -> None:
    assert summary_variables(passing(), "everything").keys() | {"run"} == VARIABLES


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello", ':1: a summary template extends ours: begin with {% extends "summary.md.j2" %}'),
        ('{% extends "report.html.j2" %}', ":1: a summary template extends ours"),
        (f"{{% if run %}}{EXTENDS}{{% endif %}}", ":1: a summary template extends ours"),
        ("## ✅ Passed\n\n<!-- " + EXTENDS, ':1: nothing is printed before {% extends "summary.md.j2" %}'),
        ("{# ours #}\n{% if 1 %}<details>{% endif %}" + EXTENDS, ":2: nothing is printed before"),
        ("{% block head %}<!--{% endblock %}" + EXTENDS, ":1: nothing is printed before"),
        (EXTENDS + "{% block hed %}{% endblock %}", ":2: there is no block hed; did you mean head?"),
        (EXTENDS + "\n{% block head %}{{ run. }}{% endblock %}", ":3: expected name or number"),
        (EXTENDS + "{% block head %}", ":2: Unexpected end of template"),
        (head("\n{{ verdikt }}"), ":3: there is no name verdikt; there are"),
        (head("{{ result | safe }}"), ":2: No filter named 'safe'"),
        (head("{{ result | tojson }}"), ":2: No filter named 'tojson'"),
        (head("<!-- keystone-action comment: 0 -->"), ":2: `<!-- keystone-action …` is how Keystone marks"),
        (head("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}"), ": it is nested too deeply"),
    ],
)
def test_what_does_not_compile_is_a_sentence(text: str, says: str) -> None:
    with pytest.raises(TemplateProblem) as caught:
        check_template(text, NAME)
    assert str(caught.value).startswith(NAME + says)


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("\n{{ run.verdikt }}", ":3: 'dict object' has no attribute 'verdikt'"),
        ("{{ result.__class__ }}", ":2: access to attribute '__class__' of 'RunResult' object is unsafe"),
        ("{{ run.specs.append(1) }}", ":2: "),
        ("{{ 1 / 0 }}", ":2: ZeroDivisionError: division by zero"),
        ("{{ 9 ** 9 ** 9 }}", ":2: TypeError: the operator ** is not there"),
        ("{{ self.head() }}", ":2: RecursionError"),
        ('{% include "/etc/passwd" %}', ":2: /etc/passwd"),
        ('{% include "report.html.j2" %}', ":2: report.html.j2"),
        ("<!-- keystone-{{ '' }}action comment: 0 -->", ": what it printed holds `<!-- keystone-action …`"),
        (
            ENDLESS,
            ": it prints more than 64",
        ),
    ],
)
def test_what_fails_while_rendering_is_a_sentence(expression: str, says: str) -> None:
    assert problem(head(expression)).startswith(NAME + says)


WEAKENED = SpecChanges("a" * 40, "main", "head", (SpecChange("evals/x.yaml", "changed", ("threshold 0.85 → 0.1",)),))


def test_what_a_change_does_to_its_gate_and_the_verdict_cannot_be_hidden() -> None:
    names = ("head", "reasons", "baseline", "notes", "spec", "footer")
    empty = "".join(f"{{% block {name} %}}{{% endblock %}}" for name in names)
    weakened = replace(SAMPLES["gate_failure"](), spec_changes=WEAKENED)
    shown = render_author_summary(EXTENDS + empty, NAME, weakened)
    assert "threshold 0.85 → 0.1" in shown
    assert "## ❌ Keystone: " in shown


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{% block verdict %}## ✅ pass{% endblock %}", ":2: the block verdict stays Keystone's own"),
        ("{% set gate = none %}", ": gate is a name of Keystone's own"),
        ("{% set headline = 'Passed' %}", ": headline is a name of Keystone's own"),
        ("{% macro icon() %}✅{% endmacro %}", ": icon is a name of Keystone's own"),
        ("{% macro gate_block(gate) %}{% endmacro %}", ": gate is a name of Keystone's own"),
        ("{% set gate_block = cycler %}", ": gate_block is a name of Keystone's own"),
    ],
)
def test_nothing_stands_in_for_the_verdict(text: str, says: str) -> None:
    assert problem(f"{EXTENDS}{text}").startswith(NAME + says)


@pytest.mark.parametrize(
    "text",
    [
        f"## ✅ Passed\n\n<!-- {EXTENDS}",
        f"{EXTENDS}{{% block verdict %}}{{% endblock %}}",
        f"{EXTENDS}{{% set icon = '✅' %}}",
    ],
)
def test_a_summary_without_our_verdict_first_is_a_problem_however_it_came_about(
    monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(author_summary, "_check_names", lambda *_: None)
    lost = "what it printed does not begin with the verdict, which stays Keystone's own"
    with pytest.raises(TemplateProblem, match=lost):
        render_author_summary(text, NAME, SAMPLES["gate_failure"]())
    assert render_author_summary(f"{{# ours #}}\n\n  {EXTENDS}", NAME, passing()) == render_summary(passing())


def test_specs_can_be_gone_over_more_than_once() -> None:
    shown = render_author_summary(head("{% for item in specs %}{{ item.spec.id | code }}{% endfor %}"), NAME, passing())
    assert shown.count("`reconcile-customers`") == 1
    assert f"| ✅ `email_quality` · [llm_as_judge]({check_page('llm_as_judge')}) · Email is well-written" in shown


def test_macros_and_names_of_a_template_are_known_to_it() -> None:
    text = (
        '{% extends "summary.md.j2" %}{% macro told(what) %}<{{ what }}>{% endmacro %}{% set much = 3 %}'
        "{% block head %}{{ told(much) }}{% for one in facts %}{{ loop.index }}{% endfor %}{% endblock %}"
    )
    assert render_author_summary(text, NAME, passing()).partition("\n\n")[2].startswith("<3>12345")


def assert_harmless(text: str) -> None:
    found = list(tokens(text))
    assert not {token.type for token in found} & {"link_open", "image", "html_inline", "html_block"}
    assert sum(token.type == "heading_open" for token in found) == 1
    assert not any(LINKED_BY_THE_FORGE.search(token.content) for token in found if token.type == "text")


HARMFUL = "</details> @octocat #1 [x](https://evil.example) <img src=https://evil.example/p>"


@pytest.mark.parametrize(
    "expression",
    [
        "{{ run.error }}",
        "{{ 'x' | code ~ run.error }}",
        "{{ run.error ~ 'x' | code }}",
        "{{ ('x' | code) + run.error }}",
        "{{ run.error + ('x' | code) }}",
        "{{ ['x' | code, run.error] | join(run.error) }}",
        "{{ ('%s' | code) % run.error }}",
        "{{ ('{}' | code).format(run.error) }}",
        "{{ ('x' | code).replace('x', run.error) }}",
        "{{ 'x' | code | replace('x', run.error) }}",
        "{{ ('x' | code).join([run.error, run.error]) }}",
        "{{ (run.error | code)[1:-1] }}",
        "{{ run.error | code | truncate(40) }}",
        "{{ run.error | code | upper }}",
        "{{ run.error | code | list | sum(start='') if false else run.error | code | string }}",
        "{{ (run.error | fence).strip('`') }}",
        "{% autoescape false %}{{ run.error }}{% endautoescape %}",
        "{% filter trim %}{{ run.error }}{% endfilter %}",
        "{% set kept %}{{ run.error }}{% endset %}{{ kept }}{{ kept[2:] }}",
        "{% autoescape false %}{% set kept %}{{ run.error }}{% endset %}{{ kept }}{% endautoescape %}",
        "{% macro told() %}{{ caller() }}{% endmacro %}{% call told() %}{{ run.error }}{% endcall %}",
        "{% for c in run.error | code %}{{ c }} {% endfor %}",
        "{{ run.error | code }}{{ run.error }}{{ '`' | code }}{{ run.error | code }}",
        "{{ namespace(a=run.error).a }}{{ joiner(run.error)() }}{{ cycler(run.error).next() }}",
        "{{ {run.error: 1} }}{{ [run.error] }}",
    ],
)
def test_nothing_gets_around_the_escaping(expression: str) -> None:
    names = ("reasons", "footer", "notes")
    text = head(expression) + "".join(f"{{% block {name} %}}{{% endblock %}}" for name in names)
    shown = render_author_summary(text, NAME, run(verdict="error", composite=None, error=HARMFUL))
    assert_harmless(shown)


@settings(max_examples=3 * settings().max_examples // 10)
@given(st.text(alphabet="`~<>[]()!@#|\\*_ \nax1:.-", max_size=40))
def test_text_of_others_stays_text(text: str) -> None:
    shown = head("{{ run.error }} {{ run.error | code ~ run.error }} {{ (run.error | code) + 'x' }}")
    shown += "{% block reasons %}{% endblock %}{% block footer %}{% endblock %}"
    rendered = render_author_summary(shown, NAME, run(verdict="error", composite=None, error=f"a{text}"))
    kinds = {token.type for token in tokens(rendered)}
    assert not kinds & {"link_open", "image", "html_inline", "html_block", "fence", "em_open", "strong_open"}


def test_a_hostile_run_is_as_harmless_as_in_our_own() -> None:
    names = ("reasons", "specs", "baseline", "notes", "spec", "footer")
    text = head("{{ run.specs[0].id }}{{ run.specs[0].cells[0].invariants[0].message | code }}")
    text += "".join(f"{{% block {name} %}}{{% endblock %}}" for name in names)
    assert_harmless(render_author_summary(text, NAME, hostile()))
