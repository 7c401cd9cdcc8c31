"""What a store of a gallery must do, whatever keeps it; Gallery needs no more than these methods."""

import contextlib
import random
import sys
from pathlib import Path

import numpy as np
import pytest

from plsc.apps.serving.gallery.engine import create_store, open_store
from plsc.apps.serving.gallery.milvus import MilvusStore
from plsc.apps.serving.gallery.store import Addition, Source, SqliteStore
from plsc.errors import MissingFileError, UserError
from tests.apps.serving.fake_embedder import units
from tests.apps.serving.milvus import ENGINES, needs_milvus, place
from tests.helpers.launch import run_python

VECTORS = units(5)
SOURCE = Source("a.jpg", "00", {"blur": 0.5}, True)


def fill(store):
    store.add(
        [Addition("Ann", VECTORS[:2], [SOURCE, Source()]), Addition("Bob", VECTORS[2:3], measures=False)]
    )
    store.set_strangers(VECTORS[3:], np.array([7, 7]))
    store.set_facts({"network": "a", "threshold": None})


@pytest.fixture(params=ENGINES)
def path(tmp_path, request):
    return place(tmp_path, request.param)


@pytest.fixture
def store(path):
    with contextlib.closing(create_store(path, fill, 8)) as store, store.snapshot():
        yield store


@pytest.fixture
def written(path):
    """A store whose transactions end, and a way to write to it: a function in, its changes out; None:
    anything may be different."""
    yield from written_at(path)


@pytest.fixture
def sqlite(tmp_path):
    """The same in SQLite, which has transactions, and a file."""
    yield from written_at(tmp_path / "g")


def written_at(path):
    store = create_store(path, fill, 8)

    def write(change):
        with store.snapshot():
            before = store.revision()
        with store.transaction():
            change()
        with store.snapshot():
            assert store.revision() != before
            return store.changes(before)

    yield store, write
    store.close()


def test_what_was_written_is_read(store):
    ann, bob = store.people()
    assert (ann.name, bob.name, ann.collection, ann.meta) == ("Ann", "Bob", "", None)
    assert store.find("Bob") == bob and store.find("Cy") is None and [*store.people([bob.id])] == [bob]
    assert store.sources([ann.id]) == [SOURCE, Source()] and store.sources([bob.id]) == [Source()]
    vectors, owners = store.embeddings([ann.id, bob.id])
    assert np.array_equal(vectors, VECTORS[:3]) and owners.tolist() == [ann.id, ann.id, bob.id]
    vectors, owners = store.embeddings([bob.id])
    assert np.array_equal(vectors, VECTORS[2:3]) and owners.tolist() == [bob.id]
    pictures, owners = store.pictures()
    assert np.array_equal(store.vectors(pictures), VECTORS[:3]) and owners.tolist() == [
        ann.id,
        ann.id,
        bob.id,
    ]
    assert store.pictures(measuring=True)[1].tolist() == [ann.id, ann.id]
    vectors, people = store.strangers()
    assert np.array_equal(vectors, VECTORS[3:]) and people.tolist() == [7, 7]
    assert store.facts() == {"network": '"a"', "threshold": "null"}


def test_changes_are_told(written):
    store, write = written
    with store.snapshot():
        ann, bob = store.people()
    assert write(lambda: store.add([Addition("Ann", units(1), meta=[1])])) in ({ann.id}, None)
    assert write(lambda: store.set_facts({"threshold": 0.5})) in (set(), None)
    assert write(lambda: store.remove([bob.id])) in ({bob.id}, None)
    told = write(lambda: store.add([Addition("Cy", units(1), collection="c")]))
    with store.snapshot():
        cy = store.find("Cy").id
        assert cy > bob.id and told in ({cy}, None)
        assert [person.name for person in store.people()] == ["Ann", "Cy"]
        assert store.find("Ann").meta == [1] and len(store.embeddings([ann.id])[0]) == 3
        assert len(store.pictures()[0]) == 4 and store.facts() == {"network": '"a"', "threshold": "0.5"}


def test_pictures_are_removed_by_their_paths(written):
    store, write = written
    sources = [Source("b.jpg"), Source("a.jpg"), Source("b.jpg")]
    write(lambda: store.add([Addition("Cy", units(3, seed=1), sources)]))
    with store.snapshot():
        ann, cy = store.find("Ann").id, store.find("Cy").id
    gone = []
    write(lambda: gone.append(store.remove_paths(cy, ["b.jpg"])))
    with store.snapshot():
        assert np.array_equal(store.embeddings([cy])[0], units(3, seed=1)[:2]), "the newest goes first"
    write(lambda: gone.append(store.remove_paths(cy, ["b.jpg", "c.jpg"])))
    write(lambda: gone.append(store.remove_paths(ann, ["a.jpg"])))
    assert gone == [["b.jpg"], ["b.jpg"], ["a.jpg"]], "the path of each row"
    with store.snapshot():
        assert store.sources([ann, cy]) == [Source(), Source("a.jpg")]
        assert np.array_equal(store.embeddings([cy])[0], units(3, seed=1)[1:2])
    write(lambda: gone.append(store.remove_paths(cy, ["a.jpg"])))
    with store.snapshot():
        assert store.find("Cy") is None and not len(store.embeddings([cy])[0])


def test_strangers_are_replaced(written):
    store, write = written
    assert write(lambda: store.set_strangers(units(1), np.array([3]))) is None
    with store.snapshot():
        assert np.array_equal(store.strangers()[0], units(1)) and store.strangers()[1].tolist() == [3]
    write(lambda: store.set_strangers(np.empty((0, 8), np.float32), np.empty(0, np.int64)))
    with store.snapshot():
        assert len(store.strangers()[0]) == len(store.strangers()[1]) == 0


def test_what_is_opened_again_is_there(written, path):
    store, write = written
    write(
        lambda: store.add([Addition("Zoë ' \" {x} %", units(1), [Source("/\udcff'")], meta={"id": "日本"})])
    )
    store.close()
    with contextlib.closing(open_store(path)) as again, again.snapshot():
        person = again.find("Zoë ' \" {x} %")
        assert person.meta == {"id": "日本"} and again.sources([person.id]) == [Source("/\udcff'")]
        assert again.find("Zoë") is None and len([*again.people()]) == 3
        assert (
            again.sources_of(again.pictures()[0][1:3].tolist()) == [Source(), Source()]
            and again.revision() == again.revision()
        )


def test_a_gallery_that_is_there_is_not_made_again(written, path, tmp_path):
    with pytest.raises(UserError, match="exists already"):
        create_store(path, fill, 8)
    assert written[0].find("Ann") is not None
    with pytest.raises(
        MissingFileError, match="is no gallery, there is nothing; make one with plsc gallery build"
    ):
        open_store(place(tmp_path / "other", "milvus" if str(path).startswith("milvus") else "sqlite"))


def test_a_build_that_fails_leaves_nothing(path):
    def fails(store):
        fill(store)
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        create_store(path, fails, 8)
    create_store(path, fill, 8).close()


def test_a_change_of_everything_is_told(sqlite):
    store, write = sqlite
    pictures = np.arange(1, 4)
    assert write(lambda: store.set_vectors(pictures, units(3, size=6))) is None
    with store.snapshot():
        assert store.vectors(pictures).shape == (3, 6) and not len(store.pictures(measuring=True)[0])
    assert write(lambda: store.set_strangers(np.empty((0, 6), np.float32), np.empty(0, np.int64))) is None
    assert write(store.remove_pictures) is None
    with store.snapshot():
        assert len(store.strangers()[1]) == len(store.pictures()[0]) == 0 and len([*store.people()]) == 2


def test_a_transaction_that_fails_changes_nothing(written):
    store, _ = written
    with store.snapshot():
        before = store.revision()
    with pytest.raises(UserError, match="'Ann': is in the collection '', not 'c'"), store.transaction():
        store.add([Addition("Cy", units(1)), Addition("Ann", units(1), collection="c")])
    with store.snapshot():
        assert store.revision() == before and store.find("Cy") is None


def test_a_snapshot_is_one_state_whatever_others_write(sqlite, tmp_path):
    store, _ = sqlite
    other = SqliteStore(tmp_path / "g")
    with store.snapshot():
        before = store.revision()
        with other.transaction():
            other.add([Addition("Cy", units(1))])
        assert store.revision() == before and store.find("Cy") is None
    with store.snapshot():
        assert store.find("Cy") is not None
    other.close()


def test_a_backup_counts_on_otherwise(sqlite, tmp_path):
    """The same number of changes, and yet another state."""
    store, _ = sqlite
    store.backup(tmp_path / "copy")
    copy = SqliteStore(tmp_path / "copy")
    revisions = []
    for each in (store, copy):
        with each.transaction():
            each.add([Addition("Cy", units(1))])
        with each.snapshot():
            revisions.append(each.revision())
    assert revisions[0].number == revisions[1].number and revisions[0] != revisions[1]
    with copy.snapshot():
        assert copy.changes(revisions[0]) is None and copy.changes(revisions[1]) == set()
    copy.close()


@pytest.mark.parametrize("seed", [3, 5, 9])
def test_erasing_leaves_nothing(sqlite, tmp_path, seed):
    """Pages that were split or joined have copies in their free parts, which secure_delete alone leaves: with
    SQLite 3.40 and these draws 1, 2 and 7 names."""
    store, _ = sqlite
    draws, there, gone = random.Random(seed), [], []
    with store.transaction():
        for number in range(1500):
            if draws.random() < 0.6 or len(there) < 5:
                name = f"{draws.random()} of somebody with a long name {number}"
                count = draws.randint(1, 3)
                sources = [Source(f"/some/where/{name}/{picture}.jpg") for picture in range(count)]
                store.add([Addition(name, units(count, seed=number), sources)])
                there.append(name)
            else:
                gone.append(there.pop(draws.randrange(len(there))))
                store.remove([store.find(gone[-1]).id])
    store.erase()
    store.close()
    data = (tmp_path / "g").read_bytes()
    assert [name for name in gone if name.encode() in data] == [] and not (tmp_path / "g-wal").exists()
    assert all(name.encode() in data for name in there)


# -- Milvus alone
# -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def milvus(tmp_path):
    needs_milvus()
    yield from written_at(place(tmp_path, "milvus"))


def test_what_milvus_has_not_is_refused_in_a_line(milvus, tmp_path):
    store, _ = milvus
    for change, message in (
        (store.remove_pictures, "no transactions, so a gallery there is not upgraded in place; build one"),
        (lambda: store.set_vectors(np.arange(1), units(1)), "no transactions"),
        (lambda: store.backup(tmp_path / "copy"), "use Milvus' own tool, milvus-backup"),
        (lambda: store.add([Addition("\udcff", units(1))]), "Milvus keeps text only"),
        (lambda: store.add([Addition("x" * 70_000, units(1))]), "at most 65,535 bytes of a name"),
    ):
        with pytest.raises(UserError, match=message):
            change()


def test_what_a_killed_change_has_left_is_taken(milvus):
    """Pictures of somebody whose row was not written: nobody finds them, and `erase` takes them."""
    store, _ = milvus
    with store.transaction(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_write_people", lambda *_: None)
        store.add([Addition("Cy", units(2))])
    assert store.find("Cy") is None and len(store.pictures()[0]) == 5
    store.erase()
    assert len(store.pictures()[0]) == 3 and [person.name for person in store.people()] == ["Ann", "Bob"]


def test_what_milvus_refuses_is_a_line(milvus):
    store, _ = milvus
    store._client.drop_collection("gallery_strangers")
    with pytest.raises(UserError, match="g.db: Milvus refuses: .*gallery_strangers"), store.snapshot():
        store.strangers()
    store._client.drop_collection("gallery_facts")
    with pytest.raises(UserError, match="is no gallery of this plsc, or its build was not finished"):
        MilvusStore.open(store.path)


def test_a_file_is_of_one_process(milvus):
    store, _ = milvus
    code = f"from plsc.apps.serving.gallery.engine import open_store; open_store({store.path!r})"
    done = run_python("-c", code, cwd=Path(store.path.partition(":")[2]).parent, check=False)
    assert done.returncode and "is another process using it? A file is of one process" in done.stderr


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("milvus://host:19530", "must be milvus://host:port/name"),
        ("milvus://host/a b", "the name of letters, digits and _; got 'a b'"),
        ("milvus://user:secret@host/people", "is taken from PLSC_MILVUS_TOKEN"),
        ("milvus:people", "or milvus:FILE.db for Milvus Lite"),
        ("milvus://127.0.0.1:1/people", "Milvus refuses: Fail connecting"),
    ],
)
def test_a_url_that_cannot_be_is_refused(url, message):
    if "refuses" in message:
        needs_milvus()
    with pytest.raises(UserError, match=message):
        open_store(url)


def test_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with pytest.raises(UserError, match=r"pip install pymilvus milvus-lite \(the extra milvus\)"):
        open_store("milvus://host:19530/people")


def test_a_server_is_reached_by_the_same_calls(tmp_path):
    """Milvus Lite's own server, over gRPC, as a cluster is."""
    needs_milvus()
    from milvus_lite.adapter.grpc.server import start_server_in_thread

    server, database, port = start_server_in_thread(str(tmp_path / "data"), "127.0.0.1", 0)
    try:
        for store, write in written_at(f"milvus://127.0.0.1:{port}/people"):
            write(lambda: store.add([Addition("Cy", units(1))]))  # noqa: B023
            with contextlib.closing(open_store(store.path)) as again:
                assert [person.name for person in again.people()] == ["Ann", "Bob", "Cy"]
    finally:
        server.stop(grace=0)
        database.close()


def test_the_token_goes_to_the_server(monkeypatch):
    needs_milvus()
    import pymilvus

    asked = []

    def client(uri, token, dedicated):
        asked.append((uri, token))
        raise pymilvus.MilvusException(message="enough")

    monkeypatch.setattr(pymilvus, "MilvusClient", client)
    monkeypatch.setenv("PLSC_MILVUS_TOKEN", "user:secret")
    with pytest.raises(UserError, match="enough") as refused:
        open_store("milvus+tls://host:19530/people")
    assert asked == [("https://host:19530", "user:secret")] and "secret" not in str(refused.value)
