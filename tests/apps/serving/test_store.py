"""What a store of a gallery must do, whatever keeps it; Gallery needs no more than these methods."""

import contextlib
import random

import numpy as np
import pytest

from plsc.apps.serving.gallery.store import Addition, Source, SqliteStore
from plsc.errors import UserError
from tests.apps.serving.fake_embedder import units

VECTORS = units(5)
SOURCE = Source("a.jpg", "00", {"blur": 0.5}, True)


def fill(store):
    store.add(
        [Addition("Ann", VECTORS[:2], [SOURCE, Source()]), Addition("Bob", VECTORS[2:3], measures=False)]
    )
    store.set_strangers(VECTORS[3:], np.array([7, 7]))
    store.set_facts({"network": "a", "threshold": None})


@pytest.fixture
def store(tmp_path):
    with contextlib.closing(SqliteStore.create(tmp_path / "g", fill)) as store, store.snapshot():
        yield store


@pytest.fixture
def written(tmp_path):
    """A store whose transactions end, and a way to write to it: a function in, its changes out."""
    store = SqliteStore.create(tmp_path / "g", fill)

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
    assert store.sources(ann.id) == [SOURCE, Source()] and store.sources(bob.id) == [Source()]
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
    assert store.facts() == '{"network": "a", "threshold": null}'


def test_changes_are_told(written):
    store, write = written
    with store.snapshot():
        ann, bob = store.people()
    assert write(lambda: store.add([Addition("Ann", units(1), meta=[1])])) == {ann.id}
    assert write(lambda: store.set_facts({"threshold": 0.5})) == set()
    assert write(lambda: store.remove([bob.id])) == {bob.id}
    (cy,) = write(lambda: store.add([Addition("Cy", units(1), collection="c")]))
    assert cy > bob.id
    with store.snapshot():
        assert [person.name for person in store.people()] == ["Ann", "Cy"]
        assert store.find("Ann").meta == [1] and len(store.embeddings([ann.id])[0]) == 3
        assert len(store.pictures()[0]) == 4 and store.facts() == '{"network": "a", "threshold": 0.5}'


def test_a_change_of_everything_is_told(written):
    store, write = written
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


def test_a_snapshot_is_one_state_whatever_others_write(written, tmp_path):
    store, _ = written
    other = SqliteStore(tmp_path / "g")
    with store.snapshot():
        before = store.revision()
        with other.transaction():
            other.add([Addition("Cy", units(1))])
        assert store.revision() == before and store.find("Cy") is None
    with store.snapshot():
        assert store.find("Cy") is not None
    other.close()


def test_a_backup_counts_on_otherwise(written, tmp_path):
    """The same number of changes, and yet another state."""
    store, _ = written
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
def test_erasing_leaves_nothing(written, tmp_path, seed):
    """Pages that were split or joined have copies in their free parts, which secure_delete alone leaves: with SQLite 3.40 and
    these draws 1, 2 and 7 names."""
    store, _ = written
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
