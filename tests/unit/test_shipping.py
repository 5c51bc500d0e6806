"""An estimator pickled by name or with the code of its modules."""

import importlib
import pickletools
import sys

import cloudpickle
import pytest

from group_models.adapters import spark_ship
from group_models.errors import PlatformError
from group_models.estimators.base import EstimatorSettings, Features, Shipped
from group_models.estimators.registry import make_family
from group_models.estimators.shipping import by_name, own_modules, with_code


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a folder on the path, of which all modules are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def written(folder, **modules):
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()


MEAN = "from sklearn.dummy import DummyRegressor\n\n\nclass Mean(DummyRegressor):\n    pass\n"


def test_a_dotted_path_travels_as_its_text_and_a_class_as_its_name(folder):
    written(folder, ship_mean=MEAN)
    assert by_name(EstimatorSettings(object="ship_mean:Mean")).load() == ("ship_mean:Mean", {})
    module = importlib.import_module("ship_mean")
    data = by_name(EstimatorSettings(object=module.Mean, params={"strategy": "median"})).data
    assert any(argument == "ship_mean" for _, argument, _ in pickletools.genops(data))


def test_with_its_code_a_class_loads_where_its_module_is_gone(folder):
    written(folder, ship_gone=MEAN)
    by_value = cloudpickle.list_registry_pickle_by_value()
    settings = EstimatorSettings(object="ship_gone:Mean", params={"strategy": "constant", "constant": 4.0})
    shipped, late = with_code(settings, ["ship_gone"])
    assert (shipped.label, shipped.modules, late) == ("ship_gone:Mean", ("ship_gone",), {})
    del sys.modules["ship_gone"]
    (folder / "ship_gone.py").unlink()
    family = make_family(EstimatorSettings(object=shipped, threads=1), Features(("x",), (), ("x",)))
    assert family.name == "ship_gone:Mean"
    assert family.params == {"strategy": "constant", "constant": 4.0}
    assert family.make(seed=1).constant == 4.0
    assert cloudpickle.list_registry_pickle_by_value() == by_value


IMPORTS = """
import json

def make():
    import ship_late
    import sqlite3

def nested():
    def inner():
        from ship_late import x
    return inner

def other():
    return json
"""


def test_late_imports_of_own_modules_are_found_in_what_travels_and_nowhere_else(folder):
    written(folder, ship_late="x = 1\n", ship_imports=IMPORTS)
    assert with_code(EstimatorSettings(object="ship_imports:make"), ["ship_imports"])[1] == {"ship_late": "make"}
    assert with_code(EstimatorSettings(object="ship_imports:nested"), ["ship_imports"])[1] == {"ship_late": "nested"}
    assert with_code(EstimatorSettings(object="ship_imports:other"), ["ship_imports"])[1] == {}


def test_an_import_of_a_function_with_many_names_is_no_relative_one(folder):
    many = "".join(f"    json.a{i}\n" for i in range(300))
    code = f"import json\ndef make():\n{many}    from ship_last import x\n"
    written(folder, ship_last="x = 1\n", ship_many=code)
    assert with_code(EstimatorSettings(object="ship_many:make"), ["ship_many"])[1] == {"ship_last": "make"}


def test_a_relative_import_is_one_of_the_package(folder):
    (folder / "ship_package").mkdir()
    (folder / "ship_package" / "__init__.py").touch()
    (folder / "ship_package" / "m.py").write_text("def make():\n    from . import other\n    return other\n")
    (folder / "ship_package" / "other.py").touch()
    settings = EstimatorSettings(object="ship_package.m:make")
    assert with_code(settings, ["ship_package"])[1] == {"ship_package": "make"}


def test_own_modules_are_those_of_files_that_are_not_installed(folder):
    written(folder, ship_own=MEAN)
    importlib.import_module("ship_own")
    names = own_modules(EstimatorSettings(object="sklearn.dummy:DummyRegressor"))
    assert {"ship_own", "sklearn"} <= set(names)
    assert not {"numpy", "json", "__main__", "group_models", "sys"} & set(names)


@pytest.fixture
def here(folder, monkeypatch):
    """Work in the folder, with this process for a worker."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(spark_ship, "ask_workers", lambda _, answer: [answer()])
    return folder


def test_a_module_that_a_worker_finds_in_its_working_folder_alone_travels_with_its_code(here, monkeypatch):
    written(here, ship_here=MEAN)
    importlib.import_module("ship_here")
    settings = EstimatorSettings(object="ship_here:Mean", params={"strategy": "median"}, threads=2)
    sent = spark_ship.ship(None, settings)
    assert sent.object.modules == ("ship_here",)
    assert (sent.label, sent.params, sent.threads) == ("ship_here:Mean", {}, 2)
    # Found from any folder it is a name, and so is one whose code cannot be sent.
    monkeypatch.setenv("PYTHONPATH", str(here))
    assert spark_ship.ship(None, settings) is settings


def test_a_module_whose_code_cannot_be_sent_goes_by_name_where_that_does(here):
    written(here, ship_locked=f"import threading\n{MEAN}    lock = threading.Lock()\n")
    importlib.import_module("ship_locked")
    settings = EstimatorSettings(object="ship_locked:Mean")
    assert spark_ship.ship(None, settings) is settings


def test_an_object_that_workers_can_load_only_as_what_it_is_goes_so(here, monkeypatch):
    written(here, ship_again="from sklearn.dummy import DummyRegressor as Mean\n")
    importlib.import_module("ship_again")
    answers = iter([[{"absent": ["ship_again"], "mistake": "no module"}], [{"absent": [], "mistake": None}]])
    monkeypatch.setattr(spark_ship, "ask_workers", lambda *_: next(answers))
    sent = spark_ship.ship(None, EstimatorSettings(object="ship_again:Mean"))
    assert isinstance(sent.object, Shipped)
    assert sent.object.modules == ()


@pytest.mark.parametrize(
    "settings", [EstimatorSettings("ridge"), EstimatorSettings(object="sklearn.dummy:DummyRegressor")]
)
def test_what_is_installed_goes_by_name(here, settings):
    assert spark_ship.ship(None, settings) is settings


def test_what_a_worker_cannot_load_though_it_finds_its_modules_is_refused(here, monkeypatch):
    written(here, ship_torn=MEAN)
    monkeypatch.setenv("PYTHONPATH", str(here))
    settings = EstimatorSettings(object="ship_torn:Absent")
    with pytest.raises(PlatformError, match=r"'ship_torn:Absent' cannot be loaded by the workers: .*install what is"):
        spark_ship.ship(None, settings)
