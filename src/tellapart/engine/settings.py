"""The recipe's section `training`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tellapart.settings import Section


class TrainingSettings(Section):
    """The loop's settings. Give `epochs` or `steps`."""

    epochs: int | None = Field(None, ge=1)
    steps: int | None = Field(None, ge=0, description="0: nothing is trained, the model is measured as it comes")
    images_per_batch: int = Field(16, ge=1)
    captions_per_image: int | None = Field(None, ge=1, description="drawn anew each time; null takes all")
    accumulate: int = Field(1, ge=1, description="a batch goes through the model in so many parts, to save memory")
    bucket_batches: int = Field(1, ge=1, description="so many batches are sorted by caption length together; 1: none")
    precision: Literal["full", "bf16", "fp16"] = Field("full", description="bf16 and fp16: mixed, where the device can")
    optimiser: Literal["adam", "adamw"] = "adamw"
    learning_rate: float = Field(1e-3, gt=0)
    phase_learning_rates: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {}, description="for objectives of several phases: a phase's own rate"
    )
    schedule: Literal["constant", "step", "cosine"] = "cosine"
    decay_epochs: int = Field(1, ge=1, description="the step schedule cuts the rate every so many epochs")
    decay_factor: float = Field(0.8, gt=0, le=1, description="by this factor")
    warmup_steps: int = Field(0, ge=0)
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (0.9, 0.999)
    epsilon: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip_norm: float | None = Field(5.0, gt=0)
    keep: Literal["best", "last"] = Field("last", description="which checkpoint to use")
    keep_last: int = Field(1, ge=1, description="so many of the newest checkpoints stay on the disk")
    validate_every: int | None = Field(None, ge=1, description="steps; null: every epoch")
    validate_captions: int = Field(0, ge=0, description="so many validation images are captioned and scored each time")
    validate_retrieval: bool = Field(False, description="a retriever ranks the validation split each time: R@k, R@sum")
    monitor: str = Field("loss", description="the validation figure that says which checkpoint is best, e.g. CIDEr")
    monitor_best: Literal["lowest", "highest"] | None = Field(None, description="which is best; null: the lowest loss")
    patience: int | None = Field(None, ge=1, description="stop after so many validations without a better figure")
    log_every: int = Field(20, ge=1, description="steps")

    @model_validator(mode="after")
    def _length(self) -> TrainingSettings:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps, and set the other to null")
        return self

    @model_validator(mode="after")
    def _direction(self) -> TrainingSettings:
        if self.monitor != "loss" and self.monitor_best is None:
            raise ValueError(f"say with monitor_best whether the lowest or the highest {self.monitor} is best")
        return self
