"""`regex`: a regular expression matches somewhere in what the agent said or left (AgenticAssure; spec.md 5.3)."""

from __future__ import annotations

import time
from typing import Annotated, Any, ClassVar

from pydantic import Field

from keystone_action.invariants.check import Check, CheckContext, Outcome, broken, failed, passed, skipped
from keystone_action.invariants.judged_material import BadSource, InputFrom, NothingToJudge, NoTrace, gather_material
from keystone_action.invariants.operators import PatternTimeout, search_pattern
from keystone_action.spec.models.fields import RegexPattern


class Regex(Check):
    """Passes when a regular expression matches somewhere in what the agent said or left.

    An input that is missing or was not kept whole, a file that is not UTF-8, anything above 64 MiB, and a pattern that
    hits its time limit fail. Of a workspace, binary files and what is in `.git`, `node_modules` and the like are left
    out.
    """

    type_name: ClassVar[str] = "regex"
    origin: ClassVar[str] = "AgenticAssure"
    default_timeout: ClassVar[float] = 10.0
    late_fails: ClassVar[bool] = True

    pattern: Annotated[str, Field(min_length=1), RegexPattern()]
    r"""The expression, by Python's rules. `^` and `$` mean the whole text unless it says `(?m)`, `.` stays within a
    line unless it says `(?s)`.

    Example: `'order \d+'`
    """
    input_from: InputFrom = "agent_output"
    """What is searched: `agent_output`, `conversation` (with what was said to the agent), `stdout`, `workspace`,
    `diff`, `trace`, `file:<path>` of the workspace, or `<service>.<field>` of a mock that records, such as
    `mail.last_request.body`.

    Example: `file:report.txt`
    """

    async def evaluate(self, context: CheckContext) -> Outcome:
        import anyio.to_thread

        return await anyio.to_thread.run_sync(self._evaluate, context, abandon_on_cancel=True)

    def _evaluate(self, context: CheckContext) -> Outcome:
        deadline = time.monotonic() + context.timeout
        try:
            material = gather_material(context.evidence, self.input_from)
            found = search_pattern(self.pattern, material.text, deadline=deadline)
        except (NothingToJudge, PatternTimeout) as problem:
            return failed(f"{problem}.")
        except NoTrace:
            return skipped("There is no trace of this agent.")
        except BadSource as problem:
            return broken(f"{problem}.")
        notes = "".join(f" ({note})" for note in material.notes)
        details: dict[str, Any] = {
            "pattern": self.pattern,
            "input_from": self.input_from,
            "notes": list(material.notes),
        }
        if found:
            return passed(f"{self.input_from} matches the pattern {self.pattern!r}.{notes}", **details)
        empty = ", which is empty," if not material.text else ""
        return failed(f"{self.input_from}{empty} does not match the pattern {self.pattern!r}.{notes}", **details)
