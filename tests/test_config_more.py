"""DataLoader.Eval.more: sections under titles that the user chooses."""

import pytest

from plsc.config import ConfigError, load, rows_told

MORE = """
DataLoader:
  Eval:
    more:
      clean: {name: GlyphPairs, augment: 0.0}
      four faces: {faces: 4}
"""


def test_further_sets_have_titles_and_the_keys_of_a_set(write):
    path = write(MORE)
    config = load(path, ["DataLoader.Eval.more.clean.num_pairs=50", "DataLoader.Eval.more.tiny.num_pairs=2"])
    more = config.DataLoader.Eval.more
    assert list(more) == ["clean", "four faces", "tiny"] and more["four faces"].name == "GlyphPairs"
    assert more["clean"].keywords == {"augment": 0.0, "num_pairs": 50}
    assert config.source("DataLoader.Eval.more.clean.augment") == f"{path}:5"
    assert config.source("DataLoader.Eval.more.tiny.num_pairs") == "-o"
    assert load(write(config.to_yaml())) == config
    assert load().DataLoader.Eval.more == {} and load(write(load().to_yaml())) == load()


@pytest.mark.parametrize(
    "override, line",
    [
        ("more=5", "more: must be a mapping of keys (got 5)"),
        ("more.x=null", "more.x: must be a mapping of keys (got null)"),
        ("more.x.num_pairs=a", "more.x.num_pairs: must be an integer (got 'a')"),
        ("more.x.nume=Glyphs", "more.x.nume: unknown key, did you mean 'name'?"),
        ("more.x.name=Glyp", "more.x.name: unknown dataset 'Glyp', did you mean 'Glyphs'? (one of "),
    ],
)
def test_wrong_further_sets_are_named_by_their_full_key(override, line):
    with pytest.raises(ConfigError) as raised:
        load(None, [f"DataLoader.Eval.{override}"])
    assert str(raised.value).startswith(f"-o DataLoader.Eval.{override}: DataLoader.Eval.{line}")


def test_further_sets_need_a_main_one(write):
    with pytest.raises(ConfigError) as raised:
        load(write(MORE), ["DataLoader.Eval.dataset=null"])
    assert "DataLoader.Eval: more needs a main set in dataset, which is null; name one there, or set " in str(
        raised.value
    )


def test_the_data_of_further_sets_is_checked(write):
    with pytest.raises(ConfigError) as raised:
        load(write(MORE), ["DataLoader.Eval.more.clean.num_pairs=0"]).check_data()
    assert str(raised.value) == (
        "-o DataLoader.Eval.more.clean.num_pairs=0: DataLoader.Eval.more.clean.num_pairs: must be at least 1, got 0"
    )


def test_the_head_tells_what_its_rows_take_and_where():
    million = 2**20
    assert rows_told(load(None, []).Head, million, 128) == "1536.0 MB for centres, momentum and gradient"
    head = load(None, ["Head={bank: disk, sub_centres: 3}"]).Head
    assert rows_told(head, million, 128) == "3072.0 MB on the disk for centres and momentum"
    head = load(None, ["Head={name: softmax, bank: host, bank_dtype: bfloat16, bias: true}"]).Head
    assert rows_told(head, million, 128) == "516.0 MB in host memory for centres and momentum"
