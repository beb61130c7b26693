"""The recipe's section `training`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tellapart.settings import ADDED, Section


class TrainingSettings(Section):
    """Settings of the training loop. Give `epochs` or `steps`."""

    epochs: int | None = Field(None, ge=1)
    steps: int | None = Field(None, ge=0, description="0: measure the initial model without training")
    images_per_batch: int = Field(16, ge=1, le=1_000_000)
    captions_per_image: int | None = Field(None, ge=1, description="captions drawn for an image each time; null: all")
    accumulate: int = Field(1, ge=1, le=10_000, description="parts of a batch, one after another, to save memory")
    bucket_batches: int = Field(1, ge=1, description="batches sorted by caption length together; 1: no sorting")
    precision: Literal["full", "bf16", "fp16"] = Field("full", description="bf16 and fp16: mixed precision")
    optimiser: Literal["adam", "adamw"] = "adamw"
    learning_rate: float = Field(1e-3, gt=0)
    phase_learning_rates: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="phase -> learning rate, for objectives with several phases"
    )
    schedule: Literal["constant", "step", "cosine", "plateau"] = "cosine"
    decay_epochs: int = Field(1, ge=1, description="step schedule: epochs between two cuts of the rate")
    decay_factor: float = Field(0.8, gt=0, le=1, description="step and plateau schedules: factor of each cut")
    plateau_patience: int = Field(
        3,
        ge=1,
        description="plateau schedule: validations without a better figure before a cut of the rate",
        json_schema_extra=ADDED,
    )
    warmup_steps: int = Field(0, ge=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float | None = Field(5.0, gt=0, description="largest gradient norm; null: no clipping")
    ema: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="decay of an exponential moving average of the weights, which is the result; null: none",
        json_schema_extra=ADDED,
    )
    keep: Literal["best", "last"] = Field("last", description="which checkpoint is the result")
    keep_last: int = Field(1, ge=1, description="number of recent checkpoints to keep")
    validate_every: int | None = Field(None, ge=1, description="steps between validations; null: one epoch")
    validate_images: int | None = Field(
        None, ge=1, description="images that validation losses are measured on; null: all", json_schema_extra=ADDED
    )
    validate_captions: int = Field(0, ge=0, description="validation images to caption and score; 0: none")
    validate_retrieval: bool = Field(False, description="measure R@k and R@sum of a retriever in each validation")
    validate_specificity: int = Field(
        0,
        ge=0,
        description="validation images to caption, each ranked by the role 'retriever' (and 'listener'); 0: none",
        json_schema_extra=ADDED,
    )
    monitor: str = Field("loss", description="validation figure that decides which checkpoint is best, e.g. CIDEr")
    monitor_best: Literal["lowest", "highest"] | None = Field(
        None, description="whether low or high is best; null: low"
    )
    patience: int | None = Field(None, ge=1, description="stop after this many validations without a better figure")
    log_every: int = Field(20, ge=1, description="steps between rows of metrics.jsonl")

    @model_validator(mode="after")
    def _length(self) -> TrainingSettings:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps, and set the other to null")
        return self

    @model_validator(mode="after")
    def _direction(self) -> TrainingSettings:
        if self.monitor != "loss" and self.monitor_best is None:
            raise ValueError(f"set monitor_best to lowest or highest, for the monitored {self.monitor}")
        return self
