"""The service: captions, telling apart and search over HTTP, and the page that uses them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

import tellapart
from tellapart.data.images import load_image
from tellapart.encoders.base import usable_cores
from tellapart.errors import DataError, StoreError
from tellapart.index.base import Vector
from tellapart.index.photos import open_index
from tellapart.serve import answers
from tellapart.serve.collection import Collection, Neighbour
from tellapart.serve.metrics import Metrics
from tellapart.serve.models import Captioned, Group, Member, Models, ToldUpload, WordRead, without_shared_marks
from tellapart.serve.pictures import Opened, PictureError, Pixels, open_upload, plain_name, thumbnail
from tellapart.serve.settings import ServeSettings
from tellapart.serve.uploads import PREFIX, Upload, Uploads
from tellapart.serve.web import Guard, Refusal, Status, log, new_app, read_files
from tellapart.serve.work import Kind, Room, Work
from tellapart.telling_apart.groups import group_alike
from tellapart.telling_apart.settings import TellApartSettings

STATIC = Path(__file__).parent / "static"
# Ranks are exact up to this one.
DEEPEST = 1000
# Most pictures to tell apart in a request, and at once; sentences at once; small jobs that may wait for a thread.
MOST_TOLD, TOLD_BATCH, TEXTS, SMALL_JOBS = 16, 4, 64, 128
# A thumbnail of the collection may be kept by the browser for so many seconds.
KEEP_THUMBNAIL = 3600

Answer = TypeVar("Answer")


class Service:
    """The models, the collection and what is held of uploads.

    Args:
        settings: what to serve.
    """

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        index = None
        if settings.collection is not None:
            index = open_index(settings.collection, settings.retriever, must_exist=True)
        self.models = Models(settings.models, settings.retriever, index)
        self.collection = None if index is None else Collection(index)
        self.uploads = Uploads(settings.hold, 60 * settings.forget_minutes)
        self.metrics = Metrics()
        self.status = Status()
        models = self.models
        self.work = Work(
            {
                "texts": Kind(models.read_texts, TEXTS),
                "vectors": Kind(models.read_uploads, settings.batch),
                "words": Kind(models.read_captions, settings.batch),
                "encode": Kind(models.encode, settings.batch),
                "captions": Kind(models.caption, settings.batch),
                "tell": Kind(models.tell, TOLD_BATCH),
            },
            self.metrics.on_batch,
        )
        rooms = {
            "captions": settings.queue,
            "tell_apart": 4 * MOST_TOLD,
            "searches": SMALL_JOBS,
            "thumbnails": SMALL_JOBS,
        }
        self.rooms = {name: Room(most) for name, most in rooms.items()}
        self.pixels = Pixels(settings.max_pixels)
        # Decoding releases Python's lock: these threads use the cores beside the thread of the models.
        self.pool = ThreadPoolExecutor(usable_cores() + 1, "small-jobs")
        self.metrics.watch("uploads_held", "uploads whose features are in memory", lambda: len(self.uploads))
        for name, room in self.rooms.items():
            self.metrics.watch(f"waiting_{name}", "accepted and not answered", lambda room=room: room.taken)  # type: ignore[misc]

    async def in_pool(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run a small job beside the models."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, call, *arguments)

    # --- captions -----------------------------------------------------------------------------------------------------

    async def caption(self, files: Sequence[tuple[str, bytes]], words: bool) -> answers.Captions:
        with self.rooms["captions"].take(len(files)):
            opened = await asyncio.gather(*(self.in_pool(self._open, name, content) for name, content in files))
            readable = [one for one in opened if isinstance(one, Opened)]
            captioned = iter(await self.work.do("captions", [(one, words) for one in readable]))
        pictures = []
        for (name, _), one in zip(files, opened, strict=True):
            if isinstance(one, Opened):
                pictures.append(self._captioned(one, next(captioned)))
            else:
                self.metrics.on_broken(one.code)
                pictures.append(_broken(name, one))
        return answers.Captions(pictures=pictures)

    def _open(self, name: str, content: bytes) -> Opened | PictureError:
        try:
            return open_upload(name, content, self.models.encoders, self.pixels)
        except PictureError as error:
            return error

    def _captioned(self, opened: Opened, captioned: Captioned) -> answers.CaptionedPicture:
        upload = captioned.upload
        self.uploads.keep(upload)
        return answers.CaptionedPicture(
            id=upload.id,
            name=opened.name,
            width=opened.width,
            height=opened.height,
            caption=upload.caption,
            log_probability=captioned.log_probability,
            words=_words(captioned.words),
            grid=self.models.grid,
            error=None,
        )

    # --- telling apart ------------------------------------------------------------------------------------------------

    async def tell_apart(self, asked: answers.TellApart) -> answers.Told:
        uploads = self.uploads.need(asked.ids)
        if len(uploads) > MOST_TOLD:
            raise Refusal(413, "too_many", f"choose at most {MOST_TOLD} pictures to tell apart")
        if asked.distractors and self.collection is None:
            raise Refusal(422, "no_collection", "there is no collection to take distractors from; give 0 distractors")
        with self.rooms["tell_apart"].take(len(uploads)):
            settings = TellApartSettings(one_group=asked.one_group)
            # The same picture twice cannot be told apart: the first stands for both.
            same: dict[bytes, list[Upload]] = {}
            for upload in uploads:
                same.setdefault(upload.seen, []).append(upload)
            whole = [first for first, *_ in same.values()]
            vectors = await self._vectors(whole)
            groups = await self.in_pool(self._groups, whole, settings)
            told = [
                await self._tell(
                    [whole[place] for place in group], [vectors[place] for place in group], asked, settings
                )
                for group in groups
            ]
        copies = {first.id: others for first, *others in same.values()}
        for group in told:
            group.pictures = [one for picture in group.pictures for one in _with_copies(picture, copies[picture.id])]
        return answers.Told(groups=told)

    def _groups(self, uploads: Sequence[Upload], settings: TellApartSettings) -> list[list[int]]:
        if settings.one_group:
            return [list(range(len(uploads)))]
        vectors = self.models.pooled([one.features for one in uploads])
        return sorted(group_alike(vectors, settings.threshold, settings.group_size), key=lambda one: one[0])

    async def _tell(
        self, uploads: list[Upload], vectors: list[Vector], asked: answers.TellApart, settings: TellApartSettings
    ) -> answers.ToldGroup:
        others: list[Neighbour] = []
        features = []
        if asked.distractors and self.collection is not None:
            near = await self.in_pool(self.collection.others, vectors, asked.distractors)
            opened = await asyncio.gather(*(self.in_pool(self._open_photo, one.path) for one in near))
            others = [one for one, pictures in zip(near, opened, strict=True) if pictures is not None]
            features = await self.work.do("encode", [pictures for pictures in opened if pictures is not None])
        group = Group(self.models, uploads, features, settings)
        told = await self.work.do("tell", [Member(group, place) for place in range(len(uploads))])
        if not others:  # the captions of distractors are not known
            told = without_shared_marks(told)
        return answers.ToldGroup(
            pictures=[_told(upload, one) for upload, one in zip(uploads, told, strict=True)],
            distractors=[
                answers.Distractor(id=one.id, name=one.name, thumbnail=_thumbnail(one.id), score=one.score)
                for one in others
            ],
            ranked_by="retriever",
        )

    def _open_photo(self, path: Path) -> tuple[Any, ...] | None:
        """A photograph of the collection for the encoders; `None` if its file is gone or broken."""
        try:
            picture = load_image(path, at_least=max(encoder.size for encoder in self.models.encoders))
        except DataError:
            return None
        return tuple(encoder.squeeze(picture) for encoder in self.models.encoders)

    # --- search -------------------------------------------------------------------------------------------------------

    async def search(self, asked: answers.Search) -> answers.Results:
        began = time.perf_counter()
        uploads, gone = self.uploads.find(asked.ids)
        with self.rooms["searches"].take():
            (vector,) = await self.work.do("texts", [asked.query])
            found = await self._find(vector, asked.query, asked.limit, asked.among, uploads)
        return answers.Results(
            results=found, took_ms=_since(began), unknown_words=self._unknown(asked.query), forgotten=gone
        )

    async def search_picture(self, asked: answers.SearchPicture) -> answers.Results:
        began = time.perf_counter()
        uploads, gone = self.uploads.find(asked.ids)
        with self.rooms["searches"].take():
            if asked.id.startswith(PREFIX):
                (vector,) = await self._vectors(self.uploads.need([asked.id]))
            elif self.collection is None:
                raise _no_collection()
            else:
                vector = (await self.in_pool(self.collection.photo, asked.id)).vector
            # The picture itself is not a result.
            found = await self._find(vector, None, asked.limit + 1, asked.among, uploads)
        rest = [one for one in found if one.id != asked.id][: asked.limit]
        return answers.Results(results=rest, took_ms=_since(began), unknown_words=[], forgotten=gone)

    async def fetch(self, asked: answers.Fetches) -> answers.Fetched:
        began = time.perf_counter()
        (upload,) = self.uploads.need([asked.id])
        uploads, gone = self.uploads.find([*asked.ids, asked.id])
        with self.rooms["searches"].take():
            (vector,) = await self.work.do("texts", [asked.caption])
            (read,) = await self.work.do("words", [(upload.features, asked.caption)])
            own = await self._scores(vector, uploads)
            near: list[Neighbour] = []
            pictures = 0
            if self.collection is not None:
                (of_upload,) = await self._vectors([upload])
                near, pictures = await self.in_pool(self.collection.ranked, vector, DEEPEST, of_upload)
        mine = own[upload.id]
        # Ties count against the picture.
        least = mine - 1e-6 * abs(mine)
        better = sum(one.score >= least for one in near)
        rank = 1 + better + sum(score >= least for id, score in own.items() if id != upload.id)
        results = _merge([_result_of(one, own[one.id]) for one in uploads], near, asked.limit)
        return answers.Fetched(
            rank=rank,
            rank_is_exact=better < len(near) or len(near) >= pictures,
            of=len(uploads) + pictures,
            log_probability=read.log_probability,
            words=_words(read.words),
            results=results,
            took_ms=_since(began),
            unknown_words=self._unknown(asked.caption),
            forgotten=gone,
        )

    async def _find(
        self, vector: Vector, text: str | None, limit: int, among: answers.Among, uploads: list[Upload]
    ) -> list[answers.Result]:
        found: list[Neighbour] = []
        if among != "uploads":
            if self.collection is None:
                if among == "collection":
                    raise _no_collection()
            else:
                # Beside uploads, photographs are ordered by similarity: uploads have no captions in the index.
                own = text if among == "collection" else None
                found = await self.in_pool(self.collection.find, vector, own, limit)
        if among == "collection":
            return [_result(one) for one in found]
        scores = await self._scores(vector, uploads)
        return _merge([_result_of(one, scores[one.id]) for one in uploads], found, limit)

    async def _vectors(self, uploads: Sequence[Upload]) -> list[Vector]:
        """Vectors of uploads; those that a request has needed before wait for no batch."""
        await self.work.do("vectors", [one for one in uploads if one.vector is None])
        return [one.vector for one in uploads if one.vector is not None]

    async def _scores(self, vector: Vector, uploads: list[Upload]) -> dict[str, float]:
        vectors = await self._vectors(uploads)
        return {one.id: float(own @ vector) for one, own in zip(uploads, vectors, strict=True)}

    def _unknown(self, text: str) -> list[str]:
        return list(dict.fromkeys(self.models.reader.unknown_words(text)))

    async def thumbnail(self, id: str) -> bytes:
        if self.collection is None:
            raise _no_collection()
        with self.rooms["thumbnails"].take():
            photo = await self.in_pool(self.collection.photo, id)
            try:
                return await self.in_pool(thumbnail, Path(photo.file.path))
            except DataError:
                raise Refusal(404, "not_found", "the file of this photograph is gone or broken; index again") from None


def _since(began: float) -> float:
    return round(1000 * (time.perf_counter() - began), 1)


def _no_collection() -> Refusal:
    return Refusal(404, "no_collection", "this server has no collection; start it with an index: tellapart serve INDEX")


def _words(words: Sequence[WordRead]) -> list[answers.Word]:
    return [answers.Word.model_validate(word) for word in words]


def _broken(name: str, error: PictureError) -> answers.CaptionedPicture:
    return answers.CaptionedPicture(
        id=None,
        name=plain_name(name),
        width=None,
        height=None,
        caption=None,
        log_probability=None,
        words=[],
        grid=None,
        error=answers.Problem(code=error.code, message=str(error)),
    )


def _told(upload: Upload, one: ToldUpload) -> answers.ToldPicture:
    told = one.told
    return answers.ToldPicture(
        id=upload.id,
        name=upload.name,
        plain=answers.RankedCaption(
            caption=told.plain.text, rank=told.plain_rank, of=one.of, words=_words(one.plain_words)
        ),
        distinctive=answers.RankedCaption(caption=told.best.text, rank=told.rank, of=one.of, words=_words(one.words)),
        source=told.best.source,
        same_as=None,
    )


def _with_copies(picture: answers.ToldPicture, copies: Sequence[Upload]) -> list[answers.ToldPicture]:
    """A picture, and the uploads that are the same."""
    new = [{"id": one.id, "name": one.name, "same_as": picture.id} for one in copies]
    return [picture, *(picture.model_copy(update=update) for update in new)]


def _thumbnail(id: str) -> str:
    return f"/api/collection/{id}/thumbnail"


def _result(one: Neighbour) -> answers.Result:
    return answers.Result(
        where="collection",
        id=one.id,
        name=one.name,
        score=one.score,
        caption=one.caption or None,
        thumbnail=_thumbnail(one.id),
    )


def _result_of(upload: Upload, score: float) -> answers.Result:
    return answers.Result(
        where="upload", id=upload.id, name=upload.name, score=score, caption=upload.caption, thumbnail=None
    )


def _merge(uploads: list[answers.Result], near: list[Neighbour], limit: int) -> list[answers.Result]:
    return sorted([*uploads, *map(_result, near)], key=lambda one: -one.score)[:limit]


# --- addresses --------------------------------------------------------------------------------------------------------

_SENT = (400, 408, 413, 422, 503)


def _files(most: int) -> dict[str, Any]:
    """The form of an upload, for OpenAPI."""
    files = {"type": "array", "minItems": 1, "maxItems": most, "items": {"type": "string", "format": "binary"}}
    form = {"type": "object", "required": ["files"], "properties": {"files": files}, "additionalProperties": False}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}}


def create_app(settings: ServeSettings) -> FastAPI:
    """The application, with its models loaded; `app.state.service` is its `Service`."""
    service = Service(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.work.start()
        forget = asyncio.create_task(_forget(service.uploads))
        yield
        forget.cancel()
        service.work.close()
        service.pool.shutdown()

    app = new_app(
        "tellapart",
        tellapart.__version__,
        "Captions that tell pictures apart. Pictures are held in memory for a while; nothing is stored.",
        STATIC if (STATIC / "index.html").exists() else None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.add_exception_handler(StoreError, _on_store_error)
    _add_captions(app, service)
    _add_searches(app, service)
    _add_operations(app, service)
    app.add_middleware(Guard, settings.token, settings.limits, service.metrics.on_answer)
    return app


async def _on_store_error(request: Request, error: Exception) -> Response:
    """The index is damaged, or its server does not answer; the message may have paths and is for the log."""
    log.error("%s", error)
    said = "the collection cannot be searched now; try again later, the server's log says more"
    return Refusal(503, "collection", said, retry_after=10).answer()


async def _forget(uploads: Uploads) -> None:
    while True:
        await asyncio.sleep(60)
        uploads.forget()


def _add_captions(app: FastAPI, service: Service) -> None:
    most = service.settings.max_pictures

    @app.post("/api/captions", openapi_extra=_files(most), responses=answers.failures(415, *_SENT), tags=["pictures"])
    async def captions(request: Request, words: answers.WithWords = True) -> answers.Captions:
        """Caption pictures. One that cannot be read has an `error`; the others go on."""
        return await service.caption(await read_files(request, "files", most), words)

    @app.post("/api/tell-apart", responses=answers.failures(404, *_SENT), tags=["pictures"])
    async def tell_apart(asked: answers.TellApart) -> answers.Told:
        """Caption uploads so that each can be told from similar ones, and from photographs of the collection."""
        return await service.tell_apart(asked)


def _add_searches(app: FastAPI, service: Service) -> None:
    @app.post("/api/search", responses=answers.failures(404, *_SENT), tags=["search"])
    async def search(asked: answers.Search) -> answers.Results:
        """Find pictures by a sentence."""
        return await service.search(asked)

    @app.post("/api/search/picture", responses=answers.failures(404, *_SENT), tags=["search"])
    async def search_picture(asked: answers.SearchPicture) -> answers.Results:
        """Find pictures like another one."""
        return await service.search_picture(asked)

    @app.post("/api/fetches", responses=answers.failures(404, *_SENT), tags=["search"])
    async def fetches(asked: answers.Fetches) -> answers.Fetched:
        """Which pictures does a caption fetch, and at which rank is its own?"""
        return await service.fetch(asked)

    @app.get(
        "/api/collection/{id}/thumbnail",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}}, **answers.failures(404, 422, 503)},
        tags=["search"],
    )
    async def collection_thumbnail(id: str) -> Response:
        """A small JPEG of a photograph of the collection, upright and without metadata."""
        headers = {"cache-control": f"private, max-age={KEEP_THUMBNAIL}"}
        return Response(await service.thumbnail(id), media_type="image/jpeg", headers=headers)


def _add_operations(app: FastAPI, service: Service) -> None:
    settings = service.settings

    @app.get("/api/about", responses=answers.failures(), tags=["operation"])
    async def about() -> answers.About:
        """What the service is made of and what it allows."""
        collection = None
        if service.collection is not None:
            pictures = await service.in_pool(len, service.collection)
            collection = answers.CollectionAbout(name=service.collection.name, pictures=pictures)
        return answers.About(
            version=tellapart.__version__,
            collection=collection,
            limits=answers.LimitsAbout(
                max_upload_bytes=settings.max_upload,
                max_pixels=settings.max_pixels,
                max_pictures=settings.max_pictures,
                max_told=MOST_TOLD,
            ),
            **service.models.about(),
        )

    @app.get("/health", responses=answers.failures(503), tags=["operation"])
    async def health() -> answers.Health:
        """Whether the service answers requests; needs no token."""
        if not service.work.alive:
            raise Refusal(503, "broken", "the thread of the models ended; restart the server")
        return answers.Health(status="stopping" if service.status.stopping else "ok")

    @app.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}, **answers.failures()},
        tags=["operation"],
    )
    async def metrics() -> Response:
        """Counts and times for Prometheus."""
        return Response(service.metrics.text(), media_type=CONTENT_TYPE_LATEST)
