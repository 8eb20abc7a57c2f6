"""What every section of a run file has in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Base of all sections: frozen, strict about names, documented per field."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, validate_default=True
    )


class FiniteSection(Section):
    """A section whose numbers go into losses and updates: none may be infinite or NaN.

    Waits and capacities, as in other sections, may be infinite.
    """

    model_config = ConfigDict(allow_inf_nan=False)
