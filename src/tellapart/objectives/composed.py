"""A weighted sum of objectives."""

from __future__ import annotations

import math
from typing import Any

from pydantic import BaseModel, Field, ValidationError, field_validator
from torch import nn

from tellapart import registry
from tellapart.data.batches import Batch, BatchSource
from tellapart.errors import RecipeError, did_you_mean
from tellapart.objectives.base import Epoch, Needs, Objective, Processes, Progress, Roles, Start, Total
from tellapart.settings import Section, for_key


class ComposedSettings(Section):
    """Settings of `Composed`."""

    parts: dict[str, dict[str, Any]] = Field(
        {"likelihood": {}},
        min_length=1,
        validate_default=True,
        description="name of an objective -> its weight (default 1) and its settings",
    )

    @field_validator("parts")
    @classmethod
    def _known(cls, parts: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        resolved = {}
        for name, section in parts.items():
            try:
                part = registry.find("objective", name)
            except RecipeError as error:
                raise ValueError(str(error)) from None
            if part.trains != Composed.trains:
                raise ValueError(f"{name}: trains a {part.trains} and cannot be composed; use it alone")
            weight = section.get("weight", 1.0)
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
                raise ValueError(f"{name}.weight is not a number: {weight!r}")
            try:
                settings = part.Settings(**{key: value for key, value in section.items() if key != "weight"})
            except ValidationError as error:
                first = error.errors()[0]
                key = ".".join(str(place) for place in first["loc"])
                known = did_you_mean(key, part.Settings.model_fields) if first["type"] == "extra_forbidden" else ""
                raise ValueError(f"{name}.{key}: {first['msg']}{known}") from None
            resolved[name] = {"weight": float(weight), **settings.model_dump(mode="json")}
        return resolved

    def for_key(self) -> dict[str, Any]:
        parts = {
            name: {"weight": section["weight"], **for_key(_part(name, section)[1])}
            for name, section in self.parts.items()
        }
        return {**super().for_key(), "parts": parts}


class Composed(Objective):
    """A weighted sum of objectives for one captioner.

    ::

        L = Σ_i weight_i · L_i

    Use it to add likelihood to another loss. Each L_i is divided by its own count (tokens, pairs, …) over all
    processes. The parts share the target's forward pass (`pair_log_prob`). Totals are logged as `part/total`.

    Args:
        settings: see `ComposedSettings`.
        roles: the target, a captioner, and the frozen models that the parts need.

    Example:
        >>> chosen = ComposedSettings(parts={"likelihood": {}, "contrastive": {"weight": 0.5, "negatives": 3}})
        >>> Composed.needs(chosen)
        Needs(roles={'reference': 'captioner'}, negatives=3, image_negatives=0, captions=True)
    """

    name = "composed"
    Settings = ComposedSettings
    settings: ComposedSettings

    def __init__(self, settings: ComposedSettings, roles: Roles) -> None:
        super().__init__(settings, roles)
        parts = {}
        for name, section in settings.parts.items():
            part, part_settings = _part(name, section)
            own = {role: roles.frozen[role] for role in part.needs(part_settings).roles}
            parts[name] = part(part_settings, Roles(roles.target, **own))
            if set(parts[name].phases()) != {"train"}:
                raise RecipeError(f"objective.parts.{name}: has several phases and cannot be composed; use it alone")
        self.parts = nn.ModuleDict(parts)

    @classmethod
    def needs(cls, settings: BaseModel) -> Needs:
        assert isinstance(settings, ComposedSettings)
        needs = [part.needs(chosen) for part, chosen in (_part(*item) for item in settings.parts.items())]
        roles = {role: kind for need in needs for role, kind in need.roles.items()}
        return Needs(
            roles,
            max(need.negatives for need in needs),
            max(need.image_negatives for need in needs),
            captions=any(need.captions for need in needs),
        )

    def losses(self, phase: str = "train") -> dict[str, float]:
        return {
            f"{name}/{total}": self.settings.parts[name]["weight"] * weight
            for name, part in self._parts()
            for total, weight in part.losses().items()
        }

    def forward(self, batch: Batch, progress: Progress, phase: str = "train") -> dict[str, Total]:
        return {
            f"{name}/{total}": value for name, part in self._parts() for total, value in part(batch, progress).items()
        }

    def before_training(self, start: Start) -> None:
        for _, part in self._parts():
            part.before_training(start)

    def epoch_start(self, epoch: Epoch) -> None:
        for _, part in self._parts():
            part.epoch_start(epoch)

    def after_step(self) -> None:
        for _, part in self._parts():
            part.after_step()

    def join(self, processes: Processes) -> None:
        super().join(processes)
        for _, part in self._parts():
            part.join(processes)

    def prepare_for(self, batches: BatchSource) -> None:
        for _, part in self._parts():
            part.prepare_for(batches)

    def _parts(self) -> list[tuple[str, Objective]]:
        return [(name, part) for name, part in self.parts.items() if isinstance(part, Objective)]


def _part(name: str, section: dict[str, Any]) -> tuple[type[Objective], BaseModel]:
    part: type[Objective] = registry.find("objective", name)
    return part, part.Settings(**{key: value for key, value in section.items() if key != "weight"})
