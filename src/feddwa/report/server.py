"""What `feddwa watch` serves: the pages of `feddwa report`, made anew where runs have gone on. It only reads."""

import asyncio
import re
import secrets
import threading
from collections.abc import AsyncIterator, Sequence
from html import escape
from pathlib import Path
from string import Template

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

from feddwa.errors import InputError
from feddwa.report.index import index
from feddwa.report.markup import template
from feddwa.report.page import document, page
from feddwa.results.methods import by_method, by_setting
from feddwa.results.record import read
from feddwa.results.runs import CONFIG, METRICS, RECORD, busy

EVERY = 1.0  # seconds between two looks at the runs
QUIET = 15.0  # seconds after which a connection without news is told that it stands
HEADERS = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff"}

State = tuple[tuple[str, int, int], ...]  # file -> its size and when it was changed


class Board:
    """The pages of all runs under some paths, cached until a run changes."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths, self._lock = paths, threading.Lock()
        self._state: State | None = None
        self._pages: dict[str, str] = {}

    def page(self, name: str) -> str | None:
        """The page of a setting ("": the first one); None if there is no such setting."""
        with self._lock:  # one at a time: whoever comes second finds it made
            state = self.state()
            if state != self._state:
                self._pages, self._state = self._made(), state
            return self._pages.get(name)

    def state(self) -> State:
        """What tells whether pages are still those of the runs."""
        found = []
        for path in map(Path, self._paths):
            for config in sorted(path.rglob(CONFIG)) if path.is_dir() else ():
                files = [file for name in (METRICS, RECORD) if (file := config.parent / name).exists()]
                found += [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
                if not (config.parent / RECORD).exists():
                    found.append((str(config), busy(config.parent), 0))
        return tuple(found)

    def _made(self) -> dict[str, str]:
        try:
            settings = {name: by_method(own) for name, own in by_setting(read(self._paths)).items()}
        except InputError as error:
            body = Template(template("waiting.html")).substitute(why=escape(str(error)))
            return {"": document("feddwa watch", body, {}, ("waiting",), live=True)}
        if len(settings) == 1:
            return {"": page(next(iter(settings.values())), live=True)}
        links = {name: re.sub("[^a-z0-9.]+", "-", name.lower()) for name in settings}
        pages = {links[name]: page(methods, live=True) for name, methods in settings.items()}
        return {**pages, "": index(settings, {name: f"{link}/" for name, link in links.items()}, live=True)}


def application(paths: Sequence[str], token: str) -> Starlette:
    """The server: pages and their events under /TOKEN/, for reading alone; everything else is refused."""
    board = Board(paths)

    def checked(request: Request) -> None:
        if not secrets.compare_digest(request.path_params["token"].encode(), token.encode()):
            raise HTTPException(403, "this address has another token than the one that feddwa watch has printed")

    async def shown(request: Request) -> Response:
        checked(request)
        text = await run_in_threadpool(board.page, request.path_params.get("setting", ""))
        if text is None:
            raise HTTPException(404)
        return HTMLResponse(text, headers=HEADERS)

    async def events(request: Request) -> Response:
        checked(request)
        return StreamingResponse(_changes(board), media_type="text/event-stream", headers=HEADERS)

    routes = [
        Route(f"/{{token}}{place}{name}", endpoint, methods=["GET"])
        for place in ("/", "/{setting}/")
        for name, endpoint in (("", shown), ("events", events))
    ]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"], www_redirect=False)
    return Starlette(routes=[*routes[1::2], *routes[::2]], middleware=[hosts])


def serving(paths: Sequence[str], token: str) -> uvicorn.Server:
    """What answers on a socket; it speaks HTTP alone."""
    app = application(paths, token)
    return uvicorn.Server(uvicorn.Config(app, ws="none", log_level="error", timeout_graceful_shutdown=1))


async def _changes(board: Board) -> AsyncIterator[str]:
    """Server-sent events: one whenever a run has gone on."""
    state, still = await run_in_threadpool(board.state), 0.0
    yield ": watching\n\n"
    while True:
        await asyncio.sleep(EVERY)
        now = await run_in_threadpool(board.state)
        still = 0.0 if now != state else still + EVERY
        if now != state:
            state = now
            yield "data: changed\n\n"
        elif still >= QUIET:
            still = 0.0
            yield ": nothing new\n\n"  # a connection that is gone is noticed
