"""Wrong versions of the fix, as data: what is broken, and which tests must go red for it.

`tests.mutants` runs them. Each is a mistake that somebody could make, or a fix that somebody could
propose instead, as exact replacements of text.
"""

from __future__ import annotations

from tests.mutations import admission, installing, patches, registry, source, stranded, verifying
from tests.mutations.mutant import Mutant as Mutant

MUTANTS: tuple[Mutant, ...] = (
    *registry.MUTANTS,
    *admission.MUTANTS,
    *installing.MUTANTS,
    *source.MUTANTS,
    *patches.MUTANTS,
    *verifying.MUTANTS,
    *stranded.MUTANTS,
)
