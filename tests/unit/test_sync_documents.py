"""YAML as it is read: what Kubernetes means by it, where everything stands, and nothing that harms the hub."""

import pytest

from cloud.sources.manifests.documents import DocumentError, read_yaml, write_yaml

_MANY = 1_000_000


def values(text: str) -> list[object]:
    return [document.value for document in read_yaml(text)]


def test_a_file_has_many_documents_and_empty_ones_are_none() -> None:
    assert values("a: 1\n---\n---\n# nothing\n---\nb: 2\n...\n") == [{"a": 1}, {"b": 2}]
    assert values("") == []


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", True),
        ("off", False),
        ("0644", 420),
        ("-0o17", -15),
        ("0x1F", 31),
        ("1.5", 1.5),
        ("1e3", 1000.0),
        ("~", None),
        ("", None),
        ("12:30", "12:30"),
        ("2030-01-31T12:00:00Z", "2030-01-31T12:00:00Z"),
        ("1_000", "1_000"),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("1Gi", "1Gi"),
    ],
)
def test_plain_texts_mean_what_they_mean_to_kubectl(text: str, value: object) -> None:
    assert values(f"a: {text}") == [{"a": value}]


def test_every_field_knows_its_line_and_a_missing_one_that_of_its_parent() -> None:
    (document,) = read_yaml("kind: Pod\nspec:\n  volumes:\n  - name: a\n  - name: b\n    csi:\n      driver: d\n")
    line = document.place.find
    assert line(("spec", "volumes", 1, "csi", "driver")).line == 7
    assert line(("spec", "volumes", 1, "name")).line == 5
    assert line(("spec", "nodeName")).line == 2
    assert line(("metadata", "name")).line == 1


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("a: 1\nb:\n\t- c\n", 3, "tab"),
        ("a:\n  b: [1\n", 3, "not valid YAML"),
        ("a: 1\nb: {a: !!python/object:os.system x}", 2, "tag"),
        ("a: !own {b: 1}", 1, "tag"),
        ("1: b", 1, "a key must be a text"),
        ("? [a]\n: b", 1, "a key must be a text"),
        ("a: 1\nb: 2\na: 3", 3, "'a' stands there twice"),
        ("a: {}\n<<: {b: 1}", 2, "merge"),
        ("a: .nan", 1, "number"),
        (f"a: {'9' * 5000}", 1, "number"),
        (f"a: 0x{'f' * 5000}", 1, "number"),
        ("a: b\nc: \x00", 2, "control character"),
        ("a: 1\nb: *nothing", 2, "an anchor or an alias"),
        ("a: &x [*x]", 1, "an anchor or an alias"),
        ("a: " + "[" * 5_000_000, 1, "nested"),
        ("- " * 5_000_000, 1, "nested"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(text: str, line: int, why: str) -> None:
    with pytest.raises(DocumentError, match=why) as failure:
        read_yaml(text)
    assert failure.value.line == line


def test_no_error_shows_a_value() -> None:
    for text in ("password: 'hunter2", "password: !x hunter2", "password: [hunter2", "hunter2: {a: 1"):
        with pytest.raises(DocumentError) as failure:
            read_yaml(text)
        assert "hunter2" not in str(failure.value)


def test_what_is_written_is_read_back_as_it_was() -> None:
    odd = [
        "yes",
        "~",
        "089",
        "1e3",
        "0o7",
        "12:30",
        "<<",
        "",
        " x",
        "a\nb\n",
        "a: b",
        "\x00\x1b",
        "größe",
        "- x",
        "Off",
    ]
    value = {"texts": odd, "numbers": [0, -1, 1.5], "others": [None, True, {}, []], **dict.fromkeys(odd[:2], 1)}
    (document,) = read_yaml(write_yaml(value).decode())
    assert document.value == value


@pytest.mark.parametrize("text", ["1" * _MANY + "x", "-" + "0" * _MANY + ".x", "7" * _MANY + "e"], ids="xfe")
def test_a_text_of_many_digits_costs_no_more_than_its_length(text: str) -> None:
    """A node may choose one, and all threads of the hub stand still during a match.

    A pattern of quadratic time takes an hour for so many digits: the test's time limit ends it.
    """
    (document,) = read_yaml(write_yaml({"text": text}).decode())
    assert document.value == {"text": text}
    assert read_yaml(f"text: {text}")[0].value == {"text": text}
