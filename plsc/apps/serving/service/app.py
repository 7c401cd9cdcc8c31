"""Make the service's ASGI application: its paths, and the way of a picture from the request to the answer.

decode      in a few threads: bytes -> sample uint8 [C, H, W]
embed       in one thread, what is waiting in batches: samples -> embeddings float32 [B, D]
search      in one thread, in batches too: embeddings -> matches

uvicorn.run(create_app(from_export("output/export"), Gallery.open("people.gallery")))
"""

import asyncio
import contextlib
import os
import time
import unicodedata
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from plsc.apps.curate import detector
from plsc.apps.serving.embedder import Embedder
from plsc.apps.serving.gallery.names import name_of
from plsc.apps.serving.gallery.quality import (
    Finding,
    is_refused,
    judge_addition,
    judge_pixels,
    limits_of,
    limits_of_gallery,
)
from plsc.apps.serving.gallery.store import Source
from plsc.apps.serving.service import answers
from plsc.apps.serving.service.batcher import Batcher
from plsc.apps.serving.service.guard import Guard, check_token
from plsc.apps.serving.service.metrics import Metrics
from plsc.apps.serving.service.options import DEFAULTS, Options
from plsc.apps.serving.service.parameters import (
    STRICT,
    TOKEN,
    Align,
    Cosine,
    Far,
    Find,
    Limit,
    Name,
    Start,
    Top,
    body,
)
from plsc.apps.serving.service.pictures import Prepared, prepare, read_body
from plsc.apps.serving.service.refusal import PictureRefusal, Refusal, refused
from plsc.data.images import CHANNELS
from plsc.errors import UserError
from plsc.utils.logging import get_logger
from plsc.utils.version import __version__

if TYPE_CHECKING:
    from plsc.apps.serving.gallery import Gallery

_PAGE = Path(__file__).parent / "page"
_FILES = {  # path: file, type
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/texts.js": ("texts.js", "text/javascript; charset=utf-8"),
}
_OPEN = frozenset({*_FILES, "/health", "/openapi.json"})  # show nothing of the gallery
_PROBLEMS = {
    "4XX": {"model": answers.Problem, "description": "What is wrong with the request"},
    503: {"model": answers.Problem, "description": "Too much to do; try again after Retry-After seconds"},
}


def create_app(
    embedder: Embedder, gallery: Optional["Gallery"] = None, options: Options = DEFAULTS
) -> FastAPI:
    """Make the application.

    UserError: the network takes no pictures, or the gallery's embeddings are another network's.
    """
    if embedder.preprocessing.channels not in CHANNELS:
        raise UserError(
            f"{embedder.described}: takes samples {embedder.preprocessing.samples}; the service is for networks of pictures"
        )
    if gallery is not None:
        gallery.check(embedder)
        if line := gallery.describe_other(embedder):
            get_logger().info(line)
    service = _Service(embedder, gallery, options)
    app = FastAPI(
        title="plsc",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would lead to whatever the Host header says
        responses=_PROBLEMS,
        lifespan=service.lifespan,
    )
    for kind in (Refusal, HTTPException, RequestValidationError, UserError, ClientDisconnect, Exception):
        app.add_exception_handler(kind, _answer_error)
    service.add_paths(app)
    app.add_middleware(Guard, options=options, metrics=service.metrics, open_paths=_OPEN)
    return app


def _answer_error(_: Request, error: Exception) -> Response:
    if isinstance(error, Refusal):
        return refused(error.status, error, error.pictures)
    if isinstance(error, HTTPException):  # no such path, or method; a form that is none
        return refused(error.status_code, error.detail)
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        return refused(422, f"{first['loc'][-1]}: {first['msg']}")
    if isinstance(error, UserError):
        # Of the gallery's files: no fault of the client, who need not know the paths.
        get_logger().error(str(error))
        return refused(503, "the gallery cannot be used now; the service's log says why")
    if isinstance(error, ClientDisconnect):  # nobody reads it
        return refused(400, "the connection was closed")
    return refused(500, "a defect of the service; its log has the traceback")


class _Service:
    """The parts of one service, and a method for each path."""

    def __init__(self, embedder: Embedder, gallery: Optional["Gallery"], options: Options):
        self._embedder = embedder
        self._gallery = gallery
        self._options = options
        self._embedding = Batcher(self._embed_batch, options.batch, options.deadline)
        self._searching = Batcher(self._search_batch, options.batch, options.deadline)
        self._threads = ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="plsc-work")
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="plsc-write")
        # Of pictures that are there already, no faces are looked for.
        self._limits = (
            limits_of([], embedder.preprocessing) if gallery is None else limits_of_gallery(gallery, None)
        )
        self._listed: tuple[Any, list[str]] = (None, [])  # a revision of the gallery, and its names
        self._of_aligned = gallery is not None and _is_aligned(gallery)
        self._detector = detector.Detector() if detector.installed() else None
        self.metrics = Metrics(
            lambda: self._embedding.waiting, lambda: 0 if gallery is None else len(gallery)
        )

    @contextlib.asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Wait for the threads when the service ends; the requests have been answered by then."""
        yield
        self._embedding.close()
        self._searching.close()
        self._threads.shutdown()
        self._writer.shutdown()

    def add_paths(self, app: FastAPI) -> None:
        """Add the paths to the application."""
        for path, (name, kind) in _FILES.items():
            app.add_api_route(path, _file(_PAGE / name, kind), include_in_schema=False)
        for path, answer, described in (
            ("/embed", self.embed, body()),
            ("/verify", self.verify, body(["name"], needed=False)),
            ("/search", self.search, body()),
        ):
            app.add_api_route(path, answer, methods=["POST"], openapi_extra=described, dependencies=STRICT)
        app.add_api_route("/people", self.people, methods=["GET"], dependencies=STRICT)
        app.add_api_route(
            "/people",
            self.add,
            methods=["POST"],
            status_code=201,
            openapi_extra=body(["name"]),
            dependencies=TOKEN + STRICT,
        )
        app.add_api_route("/people", self.remove, methods=["DELETE"], dependencies=TOKEN + STRICT)
        app.add_api_route("/about", self.about, methods=["GET"])
        app.add_api_route("/health", self.health, methods=["GET"])
        app.add_api_route("/metrics", self.show_metrics, methods=["GET"], response_class=Response)

    # -- the paths; their docstrings are what /openapi.json says
    # -----------------------------------------------------------------

    async def embed(self, request: Request, align: Align = None) -> answers.Embeddings:
        """Compute the embeddings of pictures."""
        align = self._check_align(align)
        pictures, _ = await read_body(request, self._options.max_pictures)
        embeddings, prepared = await self._embed(pictures, align)
        return answers.Embeddings(
            embeddings=embeddings.tolist(), network=self._embedder.network, **self._remarks(prepared)
        )

    async def verify(
        self,
        request: Request,
        align: Align = None,
        threshold: Cosine = None,
        far: Far = None,
    ) -> answers.Comparison:
        """Compare two pictures, or one with the person of the gallery whom the form's field name says."""
        align = self._check_align(align)
        pictures, name = await read_body(request, 2, named=True)
        if name is not None:
            self._need_gallery()
        if len(pictures) != (2 if name is None else 1):
            raise Refusal(422, "needs two pictures, or one and a name")
        embeddings, prepared = await self._embed(pictures, align)
        if name is None:
            similarity = float(np.clip(embeddings[0] @ embeddings[1], -1, 1))
            stored, calibration = self._embedder.threshold, self._embedder.calibration
        else:
            similarity, stored, calibration = await self._in_thread(self._verify_name, name, embeddings)
        limit = _pair_threshold(stored, calibration, threshold, far)
        return answers.Comparison(
            similarity=similarity,
            probability=None if calibration is None else float(calibration.probability(similarity)),
            threshold=limit,
            same=None if limit is None else similarity > limit,
            **self._remarks(prepared),
        )

    async def search(
        self,
        request: Request,
        top: Top = 5,
        align: Align = None,
        threshold: Cosine = None,
    ) -> answers.Search:
        """Say who it is, or nobody: find the names of the gallery that are most like a picture."""
        self._need_gallery()
        align = self._check_align(align)
        pictures, _ = await read_body(request, 1)
        embeddings, prepared = await self._embed(pictures, align)
        ((matches, stored),) = await self._searching.submit([(embeddings[0], top)])
        limit = stored if threshold is None else threshold
        candidates = [
            answers.Candidate(
                name=_as_text(match.name),
                similarity=match.similarity,
                meta=match.meta,
                accepted=None if limit is None else place == 0 and match.similarity > limit,
            )
            for place, match in enumerate(matches)
        ]
        known = candidates[0].name if candidates and candidates[0].accepted else None
        verdict = "undecided" if limit is None else "nobody" if known is None else "known"
        return answers.Search(
            verdict=verdict,
            name=known,
            threshold=limit,
            matches=candidates,
            **self._remarks(prepared),
        )

    async def people(
        self,
        find: Find = "",
        start: Start = 0,
        limit: Limit = 1000,
    ) -> answers.People:
        """List the names of the gallery, sorted."""
        names = await self._in_thread(self._names, find)
        return answers.People(count=len(names), names=names[start : start + limit])

    async def add(self, request: Request, align: Align = None) -> answers.Changed:
        """Add pictures of a person, whom the form's field name says, to the gallery: all of them or none."""
        self._need_writable(request)
        align = self._check_align(align)
        pictures, name = await read_body(request, self._options.max_pictures, named=True)
        if name is None:
            raise Refusal(422, "name: is missing; send it as a field of the form, beside the pictures")
        name = _name_of(name)
        embeddings, prepared = await self._embed(pictures, align)
        count, warnings = await self._write(self._add, name, embeddings, prepared)
        return answers.Changed(name=name, pictures=len(embeddings), count=count, warnings=warnings)

    async def remove(self, request: Request, name: Name) -> answers.Changed:
        """Remove a name from the gallery."""
        self._need_writable(request)
        return answers.Changed(name=name, count=await self._write(self._remove, name))

    async def about(self) -> answers.About:
        """Describe the network, the gallery and the limits."""
        options, preprocessing = self._options, self._embedder.preprocessing
        return answers.About(
            network=self._embedder.network,
            described=self._embedder.described,
            size=list(preprocessing.size),
            channels=preprocessing.channels,
            people=None if self._gallery is None else await self._in_thread(len, self._gallery),
            threshold=self._embedder.threshold,
            calibrated=self._embedder.calibration is not None,
            align=self._detector is not None,
            aligned=preprocessing.aligned,
            writable=options.writable,
            max_bytes=options.max_bytes,
            max_pixels=options.max_pixels,
            max_pictures=options.max_pictures,
        )

    async def health(self) -> answers.Health:
        """Say that the service answers."""
        return answers.Health(status="ok")

    async def show_metrics(self) -> Response:
        """Return counts and times for Prometheus, as text."""
        text = await self._in_thread(self.metrics.text)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    # -- from a request to embeddings
    # ------------------------------------------------------------------------------------------

    async def _embed(self, pictures: list[bytes], align: bool) -> tuple[np.ndarray, list[Prepared]]:
        """Return the embeddings float32 [n, D] of pictures, and these prepared. Refusal names all that cannot
        be used."""
        jobs = [self._in_thread(self._prepare, data, align) for data in pictures]
        prepared = await asyncio.gather(*jobs, return_exceptions=True)
        _refuse(prepared)
        embeddings = np.stack(await self._embedding.submit([picture.sample for picture in prepared]))
        nothing = PictureRefusal(
            422,
            "shows nothing",
            "shows nothing: its embedding is zero, as of a black picture, or not finite",
        )
        _refuse([None if np.isfinite(row).all() and row.any() else nothing for row in embeddings])
        return embeddings, prepared

    def _check_align(self, align: bool | None) -> bool:
        """Say whether faces are aligned first: as asked, else as the network's pictures were. Refusal where
        they cannot be, or must not."""
        aligned = self._embedder.preprocessing.aligned
        if align and aligned is False:
            raise Refusal(
                422, "align: the network was trained on pictures that are not aligned; leave it out"
            )
        if align is None and aligned and self._detector is None:
            raise Refusal(
                422,
                "align: the network was trained on aligned faces, and this service finds none: install the extra align, or send aligned "
                "pictures with align=false",
            )
        if align and self._detector is None:
            raise Refusal(422, "align: this service finds no faces; install the extra align")
        return bool(aligned) if align is None else align

    def _remarks(self, prepared: list[Prepared]) -> dict[str, Any]:
        """Return what an answer says of the pictures beside what was asked: the numbers of faces, and what is
        doubtful."""
        looks = [picture.look for picture in prepared]
        findings = judge_pixels(looks, self._limits, self._embedder.preprocessing)
        faces = [picture.faces for picture in prepared if picture.faces is not None]
        return {"faces": faces or None, "warnings": self._warnings(findings, prepared)}

    def _warnings(self, findings: Sequence[Finding], prepared: list[Prepared]) -> list[answers.Remark]:
        """Return the findings, and of pictures without one those that were aligned otherwise than what they
        are compared with."""
        aligned = self._embedder.preprocessing.aligned
        if aligned and self._detector is None:
            why = "the network was trained on aligned faces, and this service does not see whether the picture is one; install the extra align"
        elif aligned is None and self._of_aligned:
            why = "the gallery's pictures are of faces that were found and aligned, this one was taken as it is; send align=true"
        else:
            return [*map(_remark, findings)]
        found = {finding.picture for finding in findings}
        others = [
            answers.Remark(picture=number + 1, rule="another alignment", text=why)
            for number, picture in enumerate(prepared)
            if number not in found and picture.faces is None
        ]
        return sorted([*map(_remark, findings), *others], key=lambda remark: remark.picture)

    def _prepare(self, data: bytes, align: bool) -> Prepared:
        preprocessing = self._embedder.preprocessing
        # An aligned picture is looked at, too, where the network's are: a client may be wrong about it.
        detector = self._detector if align or preprocessing.aligned else None
        return prepare(data, preprocessing, self._options.max_pixels, align, detector)

    def _embed_batch(self, samples: list[np.ndarray]) -> np.ndarray:
        began = time.perf_counter()
        embeddings = self._embedder.embed(np.stack(samples))
        self.metrics.count_batch(len(samples), time.perf_counter() - began)
        return embeddings

    async def _in_thread(self, function: Callable, *args: Any) -> Any:
        work = asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
        try:
            return await asyncio.wait_for(work, self._options.deadline)
        except asyncio.TimeoutError:
            raise Refusal(503, f"no answer within {self._options.deadline:g} s; try again later") from None

    # -- the gallery, and what a cosine means
    # ----------------------------------------------------------------------------------

    def _need_gallery(self) -> "Gallery":
        if self._gallery is None:
            raise Refusal(404, "this service has no gallery; start it with --gallery")
        return self._gallery

    def _need_writable(self, request: Request) -> None:
        self._need_gallery()
        if not self._options.writable:
            raise Refusal(403, "this service changes nothing; start it with --writable")
        check_token(request.headers, self._options.token)

    def _names(self, find: str) -> list[str]:
        gallery = self._need_gallery()
        revision = gallery.revision
        listed, names = self._listed
        if listed != revision:  # of a million people it takes seconds
            names = sorted(map(_as_text, gallery.names()))
            self._listed = revision, names
        folded = _folded(find)
        return [name for name in names if folded in _folded(name)] if find else names

    def _search_batch(self, queries: list[tuple[np.ndarray, int]]) -> list:
        embeddings, tops = zip(*queries)
        gallery = self._need_gallery()
        matches = gallery.search(np.stack(embeddings), max(tops), threshold=0.0)  # requests have their own
        threshold = gallery.threshold
        return [(nearest[:top], threshold) for nearest, top in zip(matches, tops)]

    def _verify_name(self, name: str, embeddings: np.ndarray) -> tuple:
        gallery = self._need_gallery()
        _need_name(gallery, name)
        similarity = gallery.verify(name, embeddings, threshold=0.0).similarity
        return similarity, gallery.pair_threshold, gallery.calibration

    def _add(
        self, name: str, embeddings: np.ndarray, prepared: list[Prepared]
    ) -> tuple[int, list[answers.Remark]]:
        gallery, review = self._need_gallery(), self._options.review
        looks = [picture.look for picture in prepared]
        findings = [] if review == "off" else judge_addition(gallery, name, embeddings, looks, self._limits)
        if wrong := [_remark(finding) for finding in findings if is_refused(finding, review)]:
            first = wrong[0]
            raise Refusal(422, f"picture {first.picture}: {first.rule}: {first.text}", wrong)
        sources = [
            Source(quality=picture.look._asdict(), aligned=None if picture.faces is None else True)
            for picture in prepared
        ]
        gallery.add(name, embeddings, sources, self._embedder)
        return len(gallery), self._warnings(findings, prepared)

    def _remove(self, name: str) -> int:
        gallery = self._need_gallery()
        _need_name(gallery, name)
        gallery.remove(name)
        return len(gallery)

    async def _write(self, change: Callable, *args: Any) -> int:
        """Change the gallery in a thread of its own. However long it waits for other writers: its end must be
        known."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, change, *args)


def _pair_threshold(
    stored: float | None, calibration: Any, given: float | None, far: float | None
) -> float | None:
    """Return the threshold of pairs that a request asks for, else the stored one."""
    if far is None:
        return stored if given is None else given
    if given is not None:
        raise Refusal(422, "threshold and far exclude each other; leave one of them out")
    if calibration is None:
        raise Refusal(422, "far: the network is not calibrated; run plsc eval --calibrate")
    try:
        return calibration.threshold(far)
    except UserError as error:
        raise Refusal(422, str(error)) from None


def _name_of(person: str) -> str:
    try:
        return name_of(person)
    except UserError as error:
        raise Refusal(422, f"name: {error}") from None


def _remark(finding: Finding) -> answers.Remark:
    text = _as_text(f"{finding.value}; {finding.remedy}")
    return answers.Remark(picture=finding.picture + 1, rule=finding.rule, text=text)


def _refuse(pictures: Sequence[Any]) -> None:
    """Raise what is no PictureRefusal, else a Refusal of all pictures that are one, with the first one's
    text."""
    for picture in pictures:
        if isinstance(picture, BaseException) and not isinstance(picture, PictureRefusal):
            raise picture
    numbered = enumerate(pictures, 1)
    wrong = {number: picture for number, picture in numbered if isinstance(picture, PictureRefusal)}
    if wrong:
        number, first = next(iter(wrong.items()))
        remarks = [answers.Remark(picture=n, rule=one.rule, text=str(one)) for n, one in wrong.items()]
        raise Refusal(first.status, f"picture {number} {first}", remarks)


def _is_aligned(gallery: "Gallery") -> bool:
    """Say whether most of some pictures of the gallery are of faces that were found and aligned."""
    sources = gallery.some_sources(200)
    return 2 * sum(bool(source.aligned) for source in sources) > len(sources)


def _need_name(gallery: "Gallery", name: str) -> None:
    if name not in gallery:
        raise Refusal(404, f"'{name}': no such name in the gallery")


def _folded(text: str) -> str:
    """Return a text without its case, accents as parts of their letters."""
    return unicodedata.normalize("NFC", text.casefold())


def _as_text(name: str) -> str:
    """Return a name that JSON in UTF-8 can hold: the names of folders may have bytes that are no text."""
    return name.encode("utf-8", "backslashreplace").decode()


def _file(path: Path, kind: str) -> Callable:
    content = path.read_bytes()

    async def answer() -> Response:
        return Response(content, media_type=kind)

    return answer
