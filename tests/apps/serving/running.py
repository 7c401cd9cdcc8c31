"""A service in this process: an embedder without Paddle, a server in a thread, and a client."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cv2
import numpy as np

from plsc.apps.serving.embedder import Embedder
from plsc.data.preprocessing import Preprocessing
from tests.helpers.bounds import perturbed

# Seconds that a service gives a request where a test is not of its deadline: a machine may be busy.
PATIENT = 60.0


class Pixels(Embedder):
    """Takes the pixels less their mean for the embedding, and keeps the sizes of its batches."""

    def __init__(self, size: int = 8, channels: str = "grey", aligned: bool | None = None, **fields: Any):
        shape = (1 if channels == "grey" else 3, size, size)
        preprocessing = Preprocessing.of_images(shape, channels=channels, aligned=aligned)
        fields = {"network": "a" * 64, "described": "pixels", "threshold": 0.5, **fields}
        super().__init__(preprocessing=preprocessing, embedding_size=int(np.prod(shape)), **fields)
        self.batches: list[int] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def _embed(self, samples: np.ndarray) -> np.ndarray:
        self.batches.append(len(samples))
        assert self.may_go_on.wait(60)
        flat = samples.reshape(len(samples), -1).astype(np.float32)
        return flat - flat.mean(1, keepdims=True)


def expected(samples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The embeddings by `Pixels` in float64, and how far its own may lie from them."""

    def compute(flat: np.ndarray) -> np.ndarray:
        centred = flat - flat.mean(1, keepdims=True)
        return centred / np.linalg.norm(centred, axis=1, keepdims=True)

    return perturbed(compute, samples.reshape(len(samples), -1).astype(np.float32))


class Client:
    """Asks a service on this machine."""

    def __init__(self, port: int):
        self.port = port

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any]:
        """The status, and the answer: of JSON its value, else the text. `_` in names of headers stands for
        `-`."""
        status, answer, _ = self.ask_all(method, path, body, **headers)
        return status, answer

    def ask_all(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, Any, dict[str, str]]:
        """The same, and the headers of the answer in lower case."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): v for name, v in headers.items()})
            answer = connection.getresponse()
            text = answer.read().decode()
            got = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, json.loads(text) if "json" in got["content-type"] else text, got
        finally:
            connection.close()

    def send(
        self, path: str, *pictures: bytes, name: str | bytes | None = None, **headers: str
    ) -> tuple[int, Any]:
        """POST pictures as a form, with a field `name`."""
        body, kind = form(*pictures)
        if name is not None:
            field, _ = form(name.encode() if isinstance(name, str) else name, name="name", file=None)
            body = field.removesuffix(b"--limit--\r\n") + body
        return self.ask("POST", path, body, Content_Type=kind, **headers)


def form(*pictures: bytes, name: str = "picture", file: str | None = "a.png") -> tuple[bytes, str]:
    """The body of a form with a file for each picture, and its content type; file=None: fields that are no
    files."""
    named = "" if file is None else f'; filename="{file}"'
    head = f'--limit\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'.encode()
    return b"".join(
        head + picture + b"\r\n" for picture in pictures
    ) + b"--limit--\r\n", "multipart/form-data; boundary=limit"


def picture(seed: int = 0, size: tuple[int, ...] = (8, 8), kind: str = ".png", noise: float = 0) -> bytes:
    """An encoded picture of random pixels; with the same seed another noise makes a similar one."""
    pixels = np.random.default_rng(seed).integers(40, 216, size)
    pixels = pixels + noise * np.random.default_rng(seed + 1).integers(-40, 40, size)
    return cv2.imencode(kind, pixels.astype(np.uint8))[1].tobytes()


def samples(data: bytes) -> np.ndarray:
    """What a network of grey pictures sees of an encoded one of its size: uint8 [1, H, W]."""
    return cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_GRAYSCALE)[None]


@contextmanager
def running(app: Any, **settings: Any) -> Iterator[Client]:
    """Serve `app` on a free port while the block runs. settings: uvicorn's."""
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, **settings))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        end = time.monotonic() + 60
        while not server.started:
            assert thread.is_alive() and time.monotonic() < end, "the server has not started"
            time.sleep(0.01)
        yield Client(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(60)
    assert not thread.is_alive(), "the server has not ended"
