"""Scorers and their registry. Importing this registers the built-in ones."""

from __future__ import annotations

from .base import Scorer, get_scorer, list_scorers, register_scorer
from .exact import ExactMatchScorer
from .passfail import PassFailScorer
from .regex import RegexScorer
from .similarity import SimilarityScorer

__all__ = [
    "ExactMatchScorer",
    "PassFailScorer",
    "RegexScorer",
    "Scorer",
    "SimilarityScorer",
    "get_scorer",
    "list_scorers",
    "register_scorer",
]
