"""A gallery in Milvus gives the answers of one in SQLite, and all of plsc gallery takes its URL."""

import contextlib
import json
import threading

import numpy as np
import pytest

from plsc import Gallery
from plsc.apps.serving.gallery import milvus
from plsc.apps.serving.gallery.command import main
from plsc.apps.serving.gallery.evaluate import evaluate
from plsc.apps.serving.gallery.store import SqliteStore
from plsc.errors import UserError
from tests.apps.serving.fake_embedder import FakeEmbedder, pictures, units
from tests.apps.serving.milvus import needs_milvus, place

pytestmark = pytest.mark.usefixtures("milvus_is_there")
PEOPLE = 2000
SIZE = 32


@pytest.fixture(scope="module")
def milvus_is_there():
    """And when all tests are done, none of its servers is at work in this process."""
    needs_milvus()
    before = {*threading.enumerate()}
    yield
    assert_ended({*threading.enumerate()} - before)


def assert_ended(threads):
    for thread in threads:
        if thread.name == "tqdm_monitor":  # progress bars share one, to the end of the process
            continue
        thread.join(60)
        assert not thread.is_alive(), f"{thread.name} is at work after the last close"


@pytest.fixture(scope="module", params=["mean", "images"])
def both(tmp_path_factory, request):
    """2,000 people, some of several pictures, some of them copies of another's, in both engines."""
    folder = tmp_path_factory.mktemp("both")
    draws = np.random.default_rng(0)
    owners = np.repeat(np.arange(PEOPLE), draws.integers(1, 4, PEOPLE))
    rows = units(len(owners), SIZE, seed=1)
    rows[draws.integers(0, len(rows), 100)] = rows[7]  # so many equal ones that their order counts
    names = [f"p{number} 'é\"" for number in range(PEOPLE)]
    made = []
    for engine in ("sqlite", "milvus"):
        embedder = FakeEmbedder(size=SIZE)
        made.append(
            Gallery.from_embeddings(place(folder, engine), embedder, names, rows, owners, request.param)
        )
    yield made, rows
    for gallery in made:
        gallery.close()


def assert_equal_answers(made, queries):
    ours, theirs = made
    assert theirs.search(queries, top=5, threshold=0.5) == ours.search(queries, top=5, threshold=0.5)
    assert theirs.search(queries[:5], top=40, threshold=0.5) == ours.search(
        queries[:5], top=40, threshold=0.5
    )
    assert [*theirs] == [*ours] and len(theirs) == len(ours) and theirs.rows == ours.rows


def test_2000_people_get_the_same_answers(both):
    """To the last bit, copies among the rows included; thresholds too, and who is nobody."""
    made, rows = both
    ours, theirs = made
    near = rows[::40] + 0.3 * units(len(rows[::40]), SIZE, seed=3)
    queries = np.concatenate(
        [units(40, SIZE, seed=2), near / np.linalg.norm(near, axis=1, keepdims=True), rows[7:8]]
    )
    assert_equal_answers(made, queries)
    assert (
        theirs.facts == ours.facts
        and theirs.threshold == ours.threshold
        and theirs.facts.measured.people == 1000
    )
    assert [match[0].accepted for match in theirs.search(queries, 1)] == [
        match[0].accepted for match in ours.search(queries, 1)
    ]
    assert theirs.verify("p9 'é\"", queries[9]) == ours.verify("p9 'é\"", queries[9])
    assert (
        evaluate(theirs, queries, ["p7 'é\""] * len(queries)).numbers()
        == evaluate(ours, queries, ["p7 'é\""] * len(queries)).numbers()
    )


def test_changes_give_the_same_answers(both):
    made, rows = both
    for gallery in made:
        gallery.add("Ann", units(2, SIZE, seed=5), collection="guests", meta={"id": 7})
        gallery.add("p3 'é\"", units(1, SIZE, seed=6))
        gallery.remove("p4 'é\"", "p5 'é\"")
        gallery.add("Bob", units(1, SIZE, seed=7), collection="guests")
        gallery.set_threshold(0.5)
    queries = np.concatenate([units(3, SIZE, seed=5), units(3, SIZE, seed=6), rows[:30]])
    assert_equal_answers(made, queries)
    ours, theirs = (gallery.search(queries, 5, collection="guests") for gallery in made)
    assert theirs == ours and theirs[0][0].name == "Ann" and theirs[0][0].meta == {"id": 7}
    with pytest.raises(UserError, match="has no collection 'nobody'"):
        made[1].search(queries, collection="nobody")


def test_rows_that_milvus_cannot_order_are_found_all_the_same(both, monkeypatch):
    """More rows are asked for until float32 cannot have hidden one; of too many that are equal it is said."""
    made, rows = both
    asked = []
    search = milvus.MilvusStore.search
    monkeypatch.setattr(
        milvus.MilvusStore,
        "search",
        lambda self, part, queries, limit, which: (
            asked.append(limit) or search(self, part, queries, limit, which)
        ),
    )
    assert made[1].search(rows[7:8], 5, 0.5) == made[0].search(rows[7:8], 5, 0.5)
    if made[1].facts.template == "images":
        assert asked == [21, 168]
        monkeypatch.setattr(milvus, "_MOST", 50)
        with pytest.raises(UserError, match="50 rows are as near as those that are wanted"):
            made[1].search(rows[7:8], 5, 0.5)


@pytest.fixture
def people(tmp_path):
    """Vectors of other programs, for the commands."""
    np.save(tmp_path / "x.npy", np.concatenate([units(12), units(12, seed=1)]))
    (tmp_path / "names.txt").write_text("\n".join(f"p{number % 12}" for number in range(24)))
    np.save(tmp_path / "q.npy", units(12)[3])
    return tmp_path


def run(capsys, *args):
    code = main([*map(str, args), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_every_command_takes_the_url(people, capsys):
    url = f"milvus:{people / 'people.db'}"
    given = ("--vectors", people / "x.npy", "--labels", people / "names.txt")
    code, built = run(capsys, "build", url, *given)
    assert code == 0 and built["people"] == built["rows"] == 12
    with pytest.raises(UserError, match="the collection gallery exists already; name another gallery"):
        main(["build", url, *map(str, given)])
    assert run(capsys, "search", url, people / "q.npy", "--threshold", "0.5")[1][0]["name"] == "p3"
    assert run(capsys, "verify", url, "p3", people / "q.npy", "--threshold", "0.5")[0] == 0
    assert run(capsys, "add", url, "Zoë", people / "q.npy", "--review", "off")[1]["people"] == 13
    assert run(capsys, "list", url)[1]["people"][-1]["pictures"] == [str(people / "q.npy")]
    with pytest.raises(UserError, match="use Milvus' own tool, milvus-backup"):
        main(["backup", url, str(people / "copy")])
    code, receipt = run(capsys, "remove", url, "Zoë", "--receipt", people / "receipt.json")
    assert receipt == json.loads((people / "receipt.json").read_text())
    assert (
        receipt["gallery"] == url
        and receipt["erased"] == milvus.ERASURE
        and receipt["after"]
        == {
            "people": 12,
            "rows": 12,
            "sha256": {},
        }
    )


def test_the_service_takes_the_url(tmp_path):
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    from plsc.apps.serving.service.app import create_app
    from plsc.apps.serving.service.options import Options
    from tests.apps.serving.running import PATIENT, Pixels, picture, running, samples

    token = "a-token-of-the-tests"
    people = {name: [samples(picture(seed))] for name, seed in {"Ann": 1, "Bob": 2, "Zoë": 3}.items()}
    gallery = Gallery.build(place(tmp_path, "milvus"), Pixels(), people)
    gallery.set_threshold(0.5)
    options = Options(deadline=PATIENT, token=token, writable=True)
    with contextlib.closing(gallery), running(create_app(Pixels(), gallery, options)) as client:
        assert client.send("/search", picture(3))[1]["name"] == "Zoë"
        assert client.send("/search", picture(99))[1]["verdict"] == "nobody"
        status, _ = client.send("/people", picture(7), name="Eve", Authorization=f"Bearer {token}")
        assert status in (200, 201) and client.send("/search", picture(7))[1]["name"] == "Eve"
        assert client.ask("GET", "/people")[1]["count"] == 4


def test_an_upgrade_is_refused_before_anything_is_embedded(tmp_path, monkeypatch):
    gallery = Gallery.from_embeddings(
        place(tmp_path, "milvus"), FakeEmbedder(), ["Ann", "Bob"], units(2), np.arange(2)
    )
    other = FakeEmbedder(seed=1)
    monkeypatch.setattr(other, "_embed", lambda samples: pytest.fail("embeds"))
    with contextlib.closing(gallery):
        with pytest.raises(UserError, match="is not upgraded in place; build one"):
            gallery.upgrade(other, {name: pictures(1) for name in gallery})
        assert gallery.search(units(1), threshold=0.5)[0][0].name == "Ann"


def test_nothing_runs_when_all_are_closed(tmp_path, monkeypatch):
    """Of two galleries in a file the second goes on when the first is closed; neither asks the server whether
    it is alive."""
    import grpc

    pauses = []
    make = grpc.insecure_channel

    def channel(target, options):
        pauses.append(dict(options)["grpc.keepalive_time_ms"])
        return make(target, options)

    monkeypatch.setattr(grpc, "insecure_channel", channel)
    before = {*threading.enumerate()}
    path = place(tmp_path, "milvus")
    first = Gallery.from_embeddings(path, FakeEmbedder(), ["Ann", "Bob"], units(2), np.arange(2))
    with contextlib.closing(Gallery.open(path)) as second:
        first.close()
        assert second.search(units(1), threshold=0.5)[0][0].name == "Ann"
        with pytest.raises(UserError, match="exists already"):
            Gallery.from_embeddings(path, FakeEmbedder(), ["Ann"], units(1), np.arange(1))
        assert second.names() == ["Ann", "Bob"]
    assert_ended({*threading.enumerate()} - before)
    assert pauses and min(pauses) > 1000 * 60 * 60 * 24
    assert first.names() == ["Ann", "Bob"], "a closed gallery is opened again when it is used"
    first.close()


def test_a_store_has_the_methods_of_the_other():
    def methods(kind):
        return {name for name in dir(kind) if not name.startswith("_")}

    assert methods(SqliteStore) - methods(milvus.MilvusStore) == set()
