"""Scopes: what a caller may say together, and lists of keys from files and from Python."""

from __future__ import annotations

from typing import Any

import pytest

from group_models.errors import SpecError
from group_models.keys import key_id
from group_models.planning.scopes import Ask, Scope, list_of, read_keys

KINDS = {"carrier": "string", "stop": "integer"}
UA, NULL = ("UA", 3), (None, 4)
TEXTS = {key_id(UA): {"carrier": "UA", "stop": "3"}, key_id(NULL): {"carrier": None, "stop": "4"}}


def read(given: Any, known: Any = None) -> Any:
    return read_keys(given, KINDS, lambda: known or {})


@pytest.mark.parametrize(
    "content",
    [
        "carrier,stop\nUA,3\n,4\n",
        "stop,carrier\r\n3,UA\r\n4,\r\n",
        '\ufeffcarrier,stop\n"UA","3"\n,4',
        '{"carrier": "UA", "stop": 3}\n\n{"stop": "4", "carrier": null}\n',
        "carrier,stop\nUA,3\nUA,003\n,4\nUA,3\n",
    ],
    ids=["csv", "other order and line ends", "byte order mark and quotes", "json lines", "doubles"],
)
def test_a_file_of_keys_is_read_whatever_its_form(tmp_path, content):
    file = tmp_path / "keys"
    file.write_bytes(content.encode())
    assert read(file) == TEXTS
    assert read(str(file)) == TEXTS


def test_a_file_of_key_ids_names_keys_that_the_model_set_knows(tmp_path):
    file = tmp_path / "keys.txt"
    file.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    assert read(file, TEXTS) == TEXTS
    with pytest.raises(SpecError, match=rf"line 2: {key_id(NULL)}: no published run knows a key of this id"):
        read(file, {key_id(UA): TEXTS[key_id(UA)]})


def test_keys_in_python_are_mappings_tuples_texts_or_ids():
    given = [{"carrier": "UA", "stop": 3}, ("UA", 3), "carrier=UA,stop=3", '{"carrier": null, "stop": 4}']
    assert read(given) == TEXTS
    assert read([key_id(UA)], TEXTS) == {key_id(UA): TEXTS[key_id(UA)]}


def test_a_line_break_inside_of_a_text_is_part_of_it(tmp_path):
    (tmp_path / "a.csv").write_text('carrier,stop\n"U\nA",3\n', encoding="utf-8")
    (tmp_path / "a.json").write_text('{"carrier": "U\u2028A", "stop": 3}\n', encoding="utf-8")
    assert [key["carrier"] for key in read(tmp_path / "a.csv").values()] == ["U\nA"]
    assert [key["carrier"] for key in read(tmp_path / "a.json").values()] == ["U\u2028A"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("carrier,depot\nUA,3\n", "line 2: .*names carrier, depot; the key columns are carrier, stop"),
        ("carrier,stop\nUA,x\nAA,y\n", "(?s)2 mistakes.*line 2: .*'x'.*line 3: .*'y'"),
        ("carrier,stop\nUA\n", "line 2 has another number of fields than the header"),
        ("carrier,stop\nUA,3,4\n", "line 2 has another number of fields than the header"),
        ('{"carrier": "UA", "stop": 3}\nUA\n', "line 2 is no JSON object"),
        ('{"carrier": "UA", "stop": 3.5}\n', "line 1: .*3.5"),
        ("carrier,stop\n" + "UA,x\n" * 9, "and 4 more"),
        ("", "names no key"),
        ("carrier,stop\n", "names no key"),
    ],
)
def test_a_list_that_cannot_be_used_is_one_clear_error(tmp_path, content, said):
    file = tmp_path / "keys.csv"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SpecError, match=said) as error:
        read(file)
    assert str(file) in str(error.value)


def test_a_list_that_is_not_there_or_no_list_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"(?s)none\.csv.*cannot read the list of keys: No such file"):
        read(tmp_path / "none.csv")
    with pytest.raises(SpecError, match="key 1 is 7; give a mapping, a tuple of 2 values"):
        read([7])


def test_the_text_of_a_list_depends_on_its_keys_alone():
    scope, turned = Scope.of_keys(TEXTS), Scope.of_keys(dict(reversed(TEXTS.items())))
    assert scope.text == turned.text
    assert scope.text.startswith("keys: 2 (")
    assert Scope.of_keys({key_id(UA): TEXTS[key_id(UA)]}).text != scope.text
    assert (list_of(scope.text), list_of("carrier = 'UA'")) == ("keys", None)
    assert (Scope().text, Scope().describe()) == (None, "all keys")
    assert scope.holds([key_id(UA), "other"]) == [True, False]
    assert Scope().holds(["other"]) == [True]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (Ask(where="a", failed_only=True), "where and failed_only: each of them says which keys"),
        (Ask(keys=["a=1"], where="a"), "where and keys: each of them"),
        (Ask(where="a", resume="r1"), "resume: run r1 answers for the keys it was started for; leave out where"),
        (Ask(run_id="r2", resume="r1"), "run_id: resume names the run already"),
    ],
)
def test_what_makes_no_sense_together_is_refused_by_one_message(ask, said):
    with pytest.raises(SpecError, match=said):
        ask.check()


def test_one_scope_with_a_run_id_makes_sense():
    for ask in (Ask(), Ask(where="a", run_id="r1"), Ask(failed_only=True, run_id="r1"), Ask(resume="r1")):
        ask.check()
