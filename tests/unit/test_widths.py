"""Half widths beside the keys of a live set: own ones, those of the nearest parent that has some, or none."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from group_models.fakes import MemoryTables
from group_models.keys import key_id, texts_id
from group_models.levels import Levels
from group_models.live import publishing
from group_models.live.sets import read_live
from group_models.live.widths import levels_of, widths_of, with_widths
from group_models.spec import Limits
from tests import fitted

KEYS = pd.DataFrame(
    {
        "key": [{"c": "UA", "s": "1"}, {"c": "UA", "s": "2"}, {"c": "AA", "s": "1"}, {"c": "UA"}, {}],
        "level": ["c,s", "c,s", "c,s", "c", "global"],
        "model_run_id": ["r1", "r1", None, "r1", "r1"],
    },
    index=["k1", "k2", "k3", "", ""],
)
KINDS = {"c": "string", "s": "string"}


def keys() -> pd.DataFrame:
    return KEYS.set_axis([texts_id(key, KINDS) for key in KEYS["key"]])


def test_a_key_with_a_model_and_no_half_width_has_that_of_its_nearest_parent():
    stored = [[("0.5", 1.0), ("0.9", 2.0)], [("0.5", 3.0)], None, [("0.5", 4.0)], [("0.5", 5.0), ("0.9", 6.0)]]
    found = with_widths(keys(), stored, [0.5, 0.9], Levels(KINDS, (("c",), ())))
    np.testing.assert_array_equal(found["half_width_50"], [1.0, 3.0, np.nan, 4.0, 5.0])
    np.testing.assert_array_equal(found["half_width_90"], [2.0, 6.0, np.nan, 6.0, 6.0])
    assert widths_of(found, found.index[1], [0.5, 0.9]) == {"0.5": 3.0, "0.9": 6.0}
    assert widths_of(found, found.index[2], [0.5]) == {"0.5": None}


def test_without_parents_there_is_none_and_without_levels_no_column():
    found = with_widths(keys(), [None] * 5, [0.9], Levels(KINDS, ()))
    assert found["half_width_90"].isna().all()
    assert list(with_widths(keys(), [None] * 5, (), Levels(KINDS, ()))) == list(KEYS)


def test_a_key_has_the_half_width_of_the_run_that_trained_the_model_that_serves_it():
    tables = MemoryTables()
    said = json.dumps({"estimator": {"name": "linear"}, "intervals": [0.9]})
    fitted.add_run(tables, "r1", 0, {"a": 1.0, "b": 2.0}, spec=said, columns={"interval": {"0.9": 2.0}})
    publishing.publish(tables, fitted.SET, "r1", limits=Limits())
    fitted.add_run(tables, "r2", 1, {"b": 2.0}, failed=["a"], spec=said, columns={"interval": {"0.9": 3.0}})
    publishing.publish(tables, fitted.SET, "r2", limits=Limits(), force=True)
    live = read_live(tables, fitted.SET)
    assert live.intervals == (0.9,)
    assert live.keys["half_width_90"].to_dict() == {key_id(("a",)): 2.0, key_id(("b",)): 3.0}


def test_the_levels_are_those_of_any_of_the_specs():
    assert levels_of(['{"intervals": [0.9]}', "{}", None, '{"intervals": [0.5, 0.9]}']) == (0.5, 0.9)
