"""Answer over HTTP, `plsc serve -c output/config.yaml --gallery people.gallery`, with a page for people at
http://127.0.0.1:8000/.

What may be asked stands in docs/serving.md. The network runs behind ONNX Runtime or Paddle Inference: the
run's export is taken if it is of the checkpoint, else the checkpoint is exported first, and kept for the next
start.
"""

from __future__ import annotations

import argparse
import importlib.util
import ipaddress
import logging
import math
import os
import resource
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from plsc import config
from plsc.apps.serving.embedder import Embedder, NetworkFacts, find_run, from_export, from_origin
from plsc.apps.serving.gallery import Gallery
from plsc.apps.serving.gallery.quality import REVIEWS
from plsc.apps.serving.service.options import DEFAULTS, Options
from plsc.checkpoint import store
from plsc.data.image_size import MOST_PIXELS
from plsc.data.preprocessing import Preprocessing
from plsc.errors import MissingFileError, UserError, reading, shown
from plsc.training.start import open_checkpoint
from plsc.training.thresholds import threshold_of
from plsc.utils.atomic_write import atomic_write, remove
from plsc.utils.logging import get_logger
from plsc.utils.text import counted

TOKEN = "PLSC_SERVE_TOKEN"  # noqa: S105 (the name of a variable)
KEPT = "serve"  # in the run's folder: an export that the service made for itself
_PACKAGES = ("fastapi", "uvicorn", "python-multipart", "prometheus-client")
_SHORTEST_TOKEN = 16
_LIMITS = (
    ("batch", int, "pictures that the network embeds at once"),
    ("queue", int, "requests with pictures in progress at once; more are answered 503"),
    ("deadline", float, "seconds for reading a request, and for each wait"),
    ("max_bytes", int, "of a request"),
    ("max_pixels", int, "of a picture"),
    ("max_pictures", int, "of a request"),
)
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


Export = Callable[[config.Config, Path], object]
"""Exports the checkpoint that a config names to a folder."""


def main(argv: Sequence[str] | None, export: Export) -> int:
    """Run `plsc serve`; `export` is called where the run has no export of the checkpoint."""
    args = _parser().parse_args(argv)
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name.replace("-", "_")) is None]
    if missing:
        raise UserError(
            f"plsc serve: {', '.join(missing)} not found: pip install {' '.join(_PACKAGES)} (the extra serve)"
        )
    options = _options(args)
    gallery = Gallery.open(args.gallery) if args.gallery else None
    _serve(_embedder(args, gallery, export), gallery, args, options)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "plsc serve",
        description="Compare and look up pictures over HTTP, with a page for people.",
        epilog="example: plsc serve --gallery people.gallery --port 8000",
    )
    config.add_arguments(parser, device=False)  # it computes on the CPU
    parser.add_argument(
        "--export", metavar="FOLDER", help="an export to serve in place of a run's checkpoint"
    )
    parser.add_argument(
        "--gallery", metavar="FILE", help="made by plsc gallery; without it pictures are compared only"
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: all of this machine's"
    )
    parser.add_argument("--port", type=int, default=8000, help="0: any free one (default: %(default)s)")
    parser.add_argument(
        "--writable", action="store_true", help=f"let who brings the token ({TOKEN}) change the gallery"
    )
    parser.add_argument(
        "--review",
        choices=REVIEWS,
        default=DEFAULTS.review,
        help="of pictures that are added, as plsc gallery add has it (default: %(default)s)",
    )
    parser.add_argument("--token-file", metavar="FILE", help=f"read the token there, not from {TOKEN}")
    limits = parser.add_argument_group("limits")
    for name, unit, what in _LIMITS:
        flag = f"--{name.replace('_', '-')}"
        limits.add_argument(
            flag, type=unit, default=getattr(DEFAULTS, name), help=f"{what} (default: %(default)s)"
        )
    parser.add_argument("--debug", action="store_true", help="show the traceback of a user's mistake too")
    return parser


def _options(args: argparse.Namespace) -> Options:
    """Check the arguments, and return the settings of the service."""
    limits = {name: getattr(args, name) for name, _, _ in _LIMITS}
    for name, value in limits.items():
        if not 0 < value < math.inf:
            raise UserError(f"--{name.replace('_', '-')}: must be more than 0 and finite, got {value:g}")
    if args.max_pixels > MOST_PIXELS:
        raise UserError(f"--max-pixels: must be at most {MOST_PIXELS:,}, got {args.max_pixels:,}")
    if not 0 <= args.port <= 65535:
        raise UserError(f"--port: must be 0 to 65535, got {args.port}")
    if args.export and (args.config or args.override):
        raise UserError("--export: names a network, and so do -c and -o; give one of them")
    token = _token(args.token_file)
    if args.writable and token is None:
        raise UserError(
            f"--writable: needs a token in {TOKEN} or --token-file, so that not everybody changes the gallery; "
            "make one: python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    if args.writable and not args.gallery:
        raise UserError("--writable: there is nothing to change without --gallery")
    loopback = _is_loopback(args.host)
    return Options(
        **limits,
        token=token,
        writable=args.writable,
        review=args.review,
        private=token is not None and not loopback,
        hosts=_LOOPBACK | {args.host} if loopback else None,
    )


def _token(file: str | None) -> str | None:
    """Read the token; None if there is none. It is never on the command line, which every user of the machine
    can see."""
    if file is None:
        where, token = TOKEN, os.environ.get(TOKEN)
    else:
        where = shown(file)
        with reading(f"--token-file: {file}"):
            token = Path(file).read_text("utf-8")
    if token is None:
        return None
    token = token.strip()
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UserError(
            f"{where}: a token has {_SHORTEST_TOKEN} or more letters, digits and signs of ASCII, without spaces"
        )
    return token


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _embedder(args: argparse.Namespace, gallery: Gallery | None, export: Export) -> Embedder:
    """Make the embedder of --export, of the run that -c names, or else of the gallery's network."""
    if args.export:
        return from_export(args.export)
    if gallery is None or args.config is not None:
        return _of_run(args.config, args.override, gallery, export)
    origin, network = gallery.origin, gallery.facts.network
    try:
        if "config" not in origin:
            if args.override:
                raise UserError(
                    f"-o: the network of {shown(gallery.path)} is no run's, so there is no config to change"
                )
            return from_origin(origin, network)
        path, overrides = find_run(origin, network)
        return _of_run(path, [*overrides, *args.override], gallery, export)
    except MissingFileError as error:
        raise UserError(
            f"{error}; it is the network of {shown(gallery.path)}: name where it is now with -c, or --export"
        ) from None


def _of_run(path: str | None, overrides: Sequence[str], gallery: Gallery | None, export: Export) -> Embedder:
    """Return the embedder of an export of the run's checkpoint: the run's own, one that an earlier start has
    kept, else a new one.

    Raises UserError, before anything is exported, where the gallery is of another network.
    """
    given = config.load(path, overrides)
    root = Path(given.Global.output_dir)
    found = store.find(root / "checkpoints", given.Global.checkpoint or "newest")
    # Of a checkpoint that is not there, open_checkpoint says what is missing.
    saved = store.Checkpoint.open(found, verify=False) if found else open_checkpoint(given)
    known = threshold_of(saved)
    ours = NetworkFacts(
        saved.network,
        f"{shown(root)}, step {saved.step}",
        Preprocessing.from_json(saved.preprocessing),
        saved.embedding_size,
        known.flip,
        known.cosine,
        None,
    )
    if gallery is not None:
        gallery.check(ours)
    wanted = ours.network, ours.flip, ours.threshold, ours.calibration
    for folder in (root / "export", root / KEPT):
        embedder = _of_export(folder, ours.described)
        if embedder and (embedder.network, embedder.flip, embedder.threshold, embedder.calibration) == wanted:
            return embedder
    get_logger().info(f"no export of {shown(found)} as it is now: exporting it to {shown(root / KEPT)}")
    return _of_new_export(given, root, ours.described, export)


def _of_export(folder: Path, described: str) -> Embedder | None:
    """Return the embedder of an export, None where there is none; what is wrong with it is logged."""
    try:
        return from_export(folder, described)
    except MissingFileError:
        return None
    except UserError as error:
        get_logger().info(str(error))
        return None


def _of_new_export(given: config.Config, root: Path, described: str, export: Export) -> Embedder:
    """Export the checkpoint, and keep that in the run's folder for the next start, unless nothing can be
    written there."""
    with tempfile.TemporaryDirectory(prefix="plsc-serve-") as folder:
        new = Path(folder) / "export"
        export(given, new)
        try:
            with atomic_write(root / KEPT) as beside:
                shutil.copytree(new, beside)
                remove(root / KEPT)
        except OSError as error:
            get_logger().info(
                f"{shown(root / KEPT)}: {shown(error.strerror or error)}; the next start exports again"
            )
        return from_export(new, described)


def _serve(embedder: Embedder, gallery: Gallery | None, args: argparse.Namespace, options: Options) -> None:
    """Answer requests until SIGTERM or SIGINT; what is in the queue then is answered still."""
    import uvicorn

    from plsc.apps.serving.service.app import create_app
    from plsc.apps.serving.service.connections import protocol

    for name in ("uvicorn.error", "python_multipart"):
        logging.getLogger(name).setLevel(logging.ERROR)
    app = create_app(embedder, gallery, options)
    listener = _listen(args.host, args.port)
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=protocol(options.deadline, _most_connections(options.queue)),
            access_log=False,  # it would have the names of people
            log_config=None,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=int(4 * options.deadline),
        )
    )
    port = listener.getsockname()[1]
    host = f"[{args.host}]" if ":" in args.host else args.host
    people = "no gallery" if gallery is None else counted(len(gallery), "person", "people")
    get_logger().info(f"serving {embedder.described}, {people}, on http://{host}:{port}/ (Ctrl-C ends it)")
    if not _is_loopback(args.host):
        get_logger().warning(_exposed(host, port, options))
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn ends by them, and raises them again then: to end when asked is no failure of a service.
        signal.signal(number, lambda *_: None)
    server.run(sockets=[listener])
    if gallery is not None:
        gallery.close()
    get_logger().info("stopped; every request that had come was answered")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        # With the protocol named, asyncio switches Nagle's algorithm off, which would hold answers back for
        # 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(256)
    except (OSError, UnicodeError) as error:  # a name of the network may not have every letter, or length
        why = getattr(error, "strerror", None) or error
        raise UserError(f"--host {shown(host)} --port {port}: {why}; name another") from error
    return listener


def _most_connections(queue: int) -> int:
    """Return how many connections are open at once: many more than are answered, to whom 503 is said. Each is
    a file."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(64 + 16 * queue, files // 2)


def _exposed(host: str, port: int, options: Options) -> str:
    if options.private:
        return f"{host}:{port} has no TLS: who listens on the network sees pictures and token; put a proxy with TLS before it"
    return (
        f"whoever reaches {host}:{port} can read the names and compare pictures: there is no TLS, and without a token ({TOKEN}) "
        "nobody is asked for one"
    )
