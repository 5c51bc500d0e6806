"""Half widths beside the keys of a live set: own ones, those of the nearest parent that has some, or none."""

from __future__ import annotations

import numpy as np
import pandas as pd

from group_models.levels import Levels
from group_models.live.widths import levels_of, widths_of, with_widths

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
    from group_models.keys import texts_id

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


def test_the_levels_are_those_of_any_of_the_specs():
    assert levels_of(['{"intervals": [0.9]}', "{}", None, '{"intervals": [0.5, 0.9]}']) == (0.5, 0.9)
