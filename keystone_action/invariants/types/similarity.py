"""`similarity`: the agent's output means about the same as what was expected (AgenticAssure; spec.md 5.3).

Needs the package sentence-transformers, which comes with the extra `similarity`: it brings a machine-learning
framework along.
"""

from __future__ import annotations

import functools
import importlib
import math
import operator
import threading
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from keystone_action.invariants.check import Check, CheckContext, Outcome, broken, failed, passed, skipped
from keystone_action.spec.models.fields import PlainText, text_like

EXTRA = "keystone-action[similarity]"
_TOLERANCE = 1e-9
_loading = threading.Lock()


class Similarity(Check):
    """Passes when the agent's output means about the same as an expected text, by the cosine of their embeddings.

    The score is the cosine, 0 where it is negative. It needs the extra `similarity`, which brings a machine-learning
    framework along: `pip install 'keystone-action[similarity]'`. Without it the check is skipped. A missing or blank
    output fails.
    """

    type_name: ClassVar[str] = "similarity"
    origin: ClassVar[str] = "AgenticAssure"
    default_timeout: ClassVar[float] = 300.0

    expected: Annotated[str, text_like(r"\S", "a text that is not blank")]
    """A text that means what the output should.

    Example: `The order was refunded.`
    """
    threshold: float = Field(default=0.7, ge=0, le=1, allow_inf_nan=False)
    """The lowest similarity (cosine) that passes the check, from 0 to 1.

    Example: `0.8`
    """
    model: Annotated[str, Field(min_length=1), PlainText()] = "all-MiniLM-L6-v2"
    """A model of sentence-transformers, by its name or its directory. The package gets it from its hub when it isn't
    there yet, and looks at the first few hundred words of a text only.

    Example: `all-mpnet-base-v2`
    """

    async def evaluate(self, context: CheckContext) -> Outcome:
        import anyio.to_thread

        agent = context.evidence.agent
        output = await anyio.to_thread.run_sync(agent.whole_output)
        return await anyio.to_thread.run_sync(self._evaluate, output, agent.problem, abandon_on_cancel=True)

    def _evaluate(self, output: str, problem: str) -> Outcome:
        try:
            # By its name: it is nowhere that types are checked.
            package = importlib.import_module("sentence_transformers")
        except ImportError as missing:
            return skipped(f"It needs the package sentence-transformers: pip install '{EXTRA}' ({missing}).")
        if problem or not output.strip():
            return failed(f"There is no output: {problem or 'it is blank'}.")
        try:
            with _loading:  # cells come at once, and a model is large
                model = _load(package.SentenceTransformer, self.model)
            first, second = model.encode([self.expected, output], show_progress_bar=False)
            similarity = cosine([float(one) for one in first], [float(one) for one in second])
        except Exception as error:  # noqa: BLE001 - a model's hub, files or framework may raise anything
            return broken(f"The model {self.model} gave no embeddings: {type(error).__name__}: {error}")
        holds = similarity >= self.threshold - _TOLERANCE
        return (passed if holds else failed)(
            f"Cosine similarity {similarity:.3f}; {self.threshold:.3f} or more passes.",
            score=min(max(similarity, 0.0), 1.0),
            cosine_similarity=similarity,
            threshold=self.threshold,
            model=self.model,
        )


@functools.lru_cache(maxsize=2)
def _load(kind: Any, name: str) -> Any:
    return kind(name)


def cosine(first: Sequence[float], second: Sequence[float]) -> float:
    """The cosine of the angle between two vectors of one length, in [-1, 1]; 0 where one of them is zero.

    Raises ValueError for vectors of different lengths or with a component that is not a finite number.
    """
    if len(first) != len(second) or not all(map(math.isfinite, (*first, *second))):
        raise ValueError("expected two vectors of finite numbers and of one length")
    if not any(first) or not any(second):
        return 0.0
    # Scaled first, so that no square overflows or vanishes.
    one, other = _scale(first), _scale(second)
    value = math.fsum(map(operator.mul, one, other)) / (math.hypot(*one) * math.hypot(*other))
    return min(max(value, -1.0), 1.0)


def _scale(vector: Sequence[float]) -> list[float]:
    largest = max(abs(component) for component in vector)
    return [component / largest for component in vector]
