"""What requests and answers look like; the OpenAPI description is made from it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from tellapart.serve.settings import LONGEST_TEXT, MOST_IDS

Id = Annotated[str, StringConstraints(min_length=1, max_length=64)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=LONGEST_TEXT, pattern=r"\S")]
UploadIds = Annotated[list[Id], Field(max_length=MOST_IDS, description="ids of the uploads to look at")]
WithWords = Annotated[bool, Query(description="false: without words and attention, which is faster")]
Among = Literal["collection", "uploads", "both"]


class Asked(BaseModel):
    """A request; unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    code: str = Field(description="one word for programs")
    message: str = Field(description="what is wrong and what to do")


class Error(Problem):
    ids: list[str] | None = Field(None, description="of `forgotten`: these uploads")


class Failed(BaseModel):
    """The answer to a request that was refused."""

    error: Error


class Health(BaseModel):
    status: Literal["ok", "stopping"]


class ModelAbout(BaseModel):
    name: str
    encoder: str
    models: int = Field(description="number of models of an ensemble")
    shipped: bool = Field(description="true: the model that comes with tellapart")


class CollectionAbout(BaseModel):
    name: str
    pictures: int


class LimitsAbout(BaseModel):
    max_upload_bytes: int
    max_pixels: int
    max_pictures: int = Field(description="of a request for captions")
    max_told: int = Field(description="of a request to tell apart")


class About(BaseModel):
    version: str
    captioner: ModelAbout
    retriever: ModelAbout
    collection: CollectionAbout | None
    limits: LimitsAbout


class Word(BaseModel):
    model_config = ConfigDict(from_attributes=True)

    word: str
    log_probability: float = Field(description="ln p(word | words before, picture)")
    attention: list[float] | None = Field(description="weights over the grid, row by row; null: the model has none")
    known: bool = Field(description="false: the captioner does not know this word")
    distinguishing: bool = Field(description="true: the word tells this picture from the others; by tell-apart only")


class CaptionedPicture(BaseModel):
    """A picture with its caption, or the reason why it has none."""

    id: str | None = Field(description="names the picture in later requests; keep it private")
    name: str
    width: int | None
    height: int | None
    caption: str | None
    log_probability: float | None
    words: list[Word]
    grid: tuple[int, int] | None = Field(description="rows and columns of the attention")
    error: Problem | None


class Captions(BaseModel):
    pictures: list[CaptionedPicture]


class TellApart(Asked):
    ids: Annotated[list[Id], Field(min_length=1, max_length=MOST_IDS, description="uploads")]
    distractors: int = Field(0, ge=0, le=20, description="photographs of the collection to tell them from too")
    one_group: bool = Field(False, description="all are one group; else groups of similar pictures")


class RankedCaption(BaseModel):
    caption: str
    rank: int = Field(description="of the picture, when the retriever ranks its group for this caption; 1 is best")
    of: int
    words: list[Word]


class ToldPicture(BaseModel):
    id: str
    name: str
    plain: RankedCaption
    distinctive: RankedCaption
    source: str = Field(description="where the caption comes from: plain, beam, sample, contrast, …")
    same_as: str | None = Field(description="id of an upload before it with the same pixels, whose captions these are")


class Distractor(BaseModel):
    id: str
    name: str
    thumbnail: str
    score: float


class ToldGroup(BaseModel):
    pictures: list[ToldPicture]
    distractors: list[Distractor]
    ranked_by: Literal["retriever"]


class Told(BaseModel):
    groups: list[ToldGroup]


class Search(Asked):
    query: Text
    limit: int = Field(24, ge=1, le=200)
    among: Among = "collection"
    ids: UploadIds = []


class SearchPicture(Asked):
    id: Id = Field(description="of an upload, or of a photograph of the collection")
    limit: int = Field(24, ge=1, le=200)
    among: Among = "collection"
    ids: UploadIds = []


class Result(BaseModel):
    where: Literal["collection", "upload"]
    id: str
    name: str
    score: float = Field(description="similarity by the retriever")
    caption: str | None
    thumbnail: str | None = Field(description="address of a small picture; null for uploads")


class Results(BaseModel):
    results: list[Result]
    took_ms: float
    unknown_words: list[str] = Field(description="words of the query that the retriever does not know")
    forgotten: list[str] = Field(description="uploads that the server no longer holds")


class Fetches(Asked):
    caption: Text
    id: Id = Field(description="the upload that the caption is of")
    limit: int = Field(12, ge=1, le=200)
    ids: UploadIds = []


class Fetched(BaseModel):
    rank: int = Field(description="of the picture, when all are ranked for the caption; 1 is best")
    rank_is_exact: bool = Field(description="false: the rank is this or more")
    of: int
    log_probability: float
    words: list[Word]
    results: list[Result]
    took_ms: float
    unknown_words: list[str]
    forgotten: list[str]


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of an address, for OpenAPI."""
    said = {
        400: "the form or the JSON cannot be read",
        401: "a token is needed",
        403: "from another site, or under a foreign host name",
        404: "not there, or no longer held",
        408: "the request took too long to arrive",
        413: "too large, or too many files",
        415: "not multipart/form-data",
        422: "a value is missing or wrong",
        503: "busy or about to stop; Retry-After says when to try again",
    }
    return {status: {"model": Failed, "description": said[status]} for status in (401, 403, *statuses)}
