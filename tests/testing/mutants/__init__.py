"""One deliberately broken plug-in for each law: right in everything but what that law is about."""

from tests.testing.mutants import devices, evaluators, models, optimizers, readers, searches
from tests.testing.mutants.mutant import MUTANTS, Mutant

__all__ = ["MUTANTS", "Mutant", "devices", "evaluators", "models", "optimizers", "readers", "searches"]
