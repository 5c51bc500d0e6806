"""Gates: what a new model or a run must show before it serves; each only where the spec names it."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from group_models.spec_fields import Fields

Tolerance: TypeAlias = Annotated[float, Field(ge=0)]


class FleetGate(Fields):
    """A run reaches champion only if its error on the same rows is at most so much (a share of it) over champion's."""

    tolerance: Tolerance = 0.0


class ChampionGate(Fields):
    """A key's new model serves only if its error is at most so much over that of the model that serves now.

    Both are measured on the held out rows that the latter has not seen; fewer than `min_rows` are no verdict.
    """

    tolerance: Tolerance = 0.0
    min_rows: int = Field(default=30, ge=1)


class ParentGate(Fields):
    """A key is served by its parent where its own model is worse by more than so many standard errors."""

    standard_errors: float = Field(default=2.0, ge=0)


class Gates(Fields):
    """What a new model or a run must show before it serves.

    Attributes
    ----------
    max_metric
        Most of the metric that a key's model may have on its holdout.
    """

    fleet: FleetGate | None = None
    champion: ChampionGate | None = None
    parent: ParentGate | None = None
    max_metric: float | None = Field(default=None, gt=0)

    @property
    def asks_champion(self) -> bool:
        """Whether new models are compared with those that serve now."""
        return self.fleet is not None or self.champion is not None
