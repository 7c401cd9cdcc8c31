import pytest

from plsc.utils.yaml_lines import dump_lines, parse

INDENTED = (
    "a key is indented differently from the keys around it, is below a line without a colon, or is text "
    "with ': ' that needs quotes"
)


def problems(text):
    return [(line, message) for _, line, message in parse(text).problems]


@pytest.mark.parametrize(
    "text, value",
    [
        ("5e-4", 5e-4),
        ("1e5", 1e5),
        (".5", 0.5),
        (".inf", ".inf"),
        ("0", 0),
        ("0000045", "0000045"),
        ("{0045: 00.5}", {"0045": "00.5"}),
        ("1_000_000", 1000000),
        ("-3", -3),
        ("true", True),
        ("yes", "yes"),
        ("0x1f", "0x1f"),
        ("12:30:45", "12:30:45"),
        ("2024-02-30", "2024-02-30"),
        ("'5e-4'", "5e-4"),
        ("null", None),
        ("", None),
        ("# nothing", None),
        ("!!str 5", "5"),
        ("[1e-3, a]", [1e-3, "a"]),
        ("a: &x {b: 1}\nc: *x", {"a": {"b": 1}, "c": {"b": 1}}),
    ],
)
def test_scalars_follow_yaml_1_2(text, value):
    document = parse(text)
    assert document.problems == []
    assert document.value == value and type(document.value) is type(value)


def test_lines_of_keys_and_items():
    assert parse("a:\n  b: 1\n  c:\n    - x\n    - y\n").lines == {
        ("a",): 1,
        ("a", "b"): 2,
        ("a", "c"): 3,
        ("a", "c", 0): 4,
        ("a", "c", 1): 5,
    }


def test_equal_keys_keep_the_first_and_name_both_lines():
    document = parse("a:\n  b: 1\n  c: 2\n  b: 3\nd: 4\na: 5")
    assert document.value == {"a": {"b": 1, "c": 2}, "d": 4}
    assert document.problems == [
        (("a", "b"), 4, "given twice (first on line 2)"),
        (("a",), 6, "given twice (first on line 1)"),
    ]


DEEP = "nested too deeply, or an alias (*) is within its own anchor (&)"


@pytest.mark.parametrize(
    "text, line, message",
    [
        ("a:\n\tb: 1", 2, "a tab; YAML is indented with spaces"),
        ("a:\n  b: 1\n    c: 2", 3, INDENTED),
        ("  a: 1\nb: 2", 2, INDENTED),
        ("a\n  b: 1", 2, INDENTED),
        ("a: [1,\nb: 2", 2, "a [ or { that is not closed, or a comma that is missing in it"),
        ("a: {b: 1 c: 2}", 1, "a [ or { that is not closed, or a comma that is missing in it"),
        ("a: 'b\nc: 2", 2, "a quote that is not closed"),
        ("a: @b", 1, "a text that begins with a sign needs quotes"),
        ("a: *.jpg", 1, "a text that begins with a sign needs quotes"),
        ("a: *x", 1, "not valid YAML: found undefined alias 'x'"),
        ("a: 1\n\x00", 2, "the character '\\x00' is not YAML"),
        ("? [a]\n: 1", 1, "a key must be text (got a list or mapping); write a number in quotes"),
        ("1: a", 1, "a key must be text (got 1); write a number in quotes"),
        (
            "a: !!python/object:os.system x",
            1,
            "'x' is not of the type that its tag !!python/object:os.system states",
        ),
        (
            "a: 1\nb: !!python/object:os.system {}",
            2,
            "the tag !!python/object:os.system is not supported; remove it",
        ),
        ("a: !mine [1]", 1, "the tag !mine is not supported; remove it"),
        ("a: &x {b: 1}\nc: {<<: *x}", 2, "merging mappings is not supported; write their keys here"),
        ("a: &x {b: *x}", 1, DEEP),
        ("[" * 3000, 1, DEEP),
        ("a: !!int ten", 1, "'ten' is not of the type that its tag !!int states"),
    ],
)
def test_what_is_refused(text, line, message):
    assert problems(text) == [(line, message)]


@pytest.mark.parametrize(
    "value",
    [
        "5e-4",
        "null",
        "",
        "a: b",
        "#x",
        "1_000",
        "😀",
        "a\nb",
        "\x7f\t",
        "'\"",
        " a ",
    ]
    + ["*a", "<<", "...", "---", "C:\\x", "\u2028", "0777", "x" * 300]
    + [1, -0.5, 1e-5, 1e22, 10**30, True, None, [], {}, [1, [2.0, "a, b\n"]], {"a b": ["x: y", None]}],
)
def test_dump_and_parse_are_inverse(value):
    document = parse(dump_lines({"key": value, "next": [value]}))
    assert document.problems == [] and document.value == {"key": value, "next": [value]}


def test_a_key_has_a_line_and_a_list_of_values_too():
    size = [6, 4]
    assert dump_lines({"a": size, "b": size}) == "a: [6, 4]\nb: [6, 4]\n"
    text = dump_lines({"a": {"b": [1, None], "c": "on"}, "d": [{"e": 0.5}]})
    assert text == "a:\n  b: [1, null]\n  c: on\nd:\n- e: 0.5\n"
