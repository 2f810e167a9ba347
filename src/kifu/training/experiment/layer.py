"""What every table of an experiment file has in common."""

from pydantic import BaseModel, ConfigDict


class Layer(BaseModel):
    """Base of every table: frozen, no unknown fields, no coercion of text to numbers, only finite ones."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True, allow_inf_nan=False)
