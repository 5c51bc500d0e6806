"""The `MLmodel` text of a stored model, and the environment files that MLflow puts beside it.

MLflow's own writers cost 15 ms to 7 s per model (MLflow 3.17). Nearly all of the text is the same for every
key of a run, so it is made once and completed per key in microseconds. MLflow itself is not imported.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import importlib.metadata
import json
import platform
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

import yaml

from group_models.conformal import bounds_of
from group_models.estimators.base import Features, Flavor
from group_models.labels import PROBABILITIES, LabelKind, Labels

LOADER_MODULE = "group_models.artifacts"
"""The module whose `_load_pyfunc` reads models of the flavor `group_models`."""

_DISTRIBUTIONS = {
    "sklearn": ("scikit-learn", "scipy", "numpy", "pandas", "cloudpickle"),
    "xgboost": ("xgboost", "scipy", "numpy", "pandas"),
    "group_models": ("group-models", "xgboost", "scipy", "numpy", "pandas"),
    "ensemble": ("group-models", "scipy", "numpy", "pandas"),
    "pooled": ("group-models", "scipy", "numpy", "pandas"),
    "bounded": ("group-models", "scipy", "numpy", "pandas"),
    "classes": ("group-models", "xgboost", "scikit-learn", "scipy", "numpy", "pandas", "cloudpickle"),
    "transformed": ("group-models", "xgboost", "scikit-learn", "scipy", "numpy", "pandas", "cloudpickle"),
}
_OWN_DATA: dict[Flavor, str] = {
    "group_models": "model.ubj",
    "ensemble": "ensemble.zip",
    "pooled": "pooled.zip",
    "bounded": "bounded.bin",
    "classes": "classes.bin",
    "transformed": "transformed.bin",
}
"""Data files of the flavors that our loader reads."""

# The same module under another distribution's name: `import mlflow`, `import xgboost`.
_ALTERNATIVES = {"mlflow": "mlflow-skinny", "xgboost": "xgboost-cpu"}


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution or of its alternative; None where there is neither."""
    for name in (distribution, _ALTERNATIVES.get(distribution)):
        try:
            if name is not None:
                return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def requirements(flavor: Flavor, extra: Sequence[str] = ()) -> tuple[str, ...]:
    """Return what a stored model needs, as pip requirements pinned to what is installed here.

    MLflow would find them by starting a process per model; here they are the same for all models of a run.
    """
    mlflow = installed_version("mlflow")
    pinned = [f"mlflow=={mlflow}" if mlflow else "mlflow>=3.0"]
    for name in _DISTRIBUTIONS[flavor]:
        version = installed_version(name)
        pinned.append(f"{name}=={version}" if version else name)
    return tuple(dict.fromkeys([*pinned, *extra]))


@dataclasses.dataclass(frozen=True)
class MlmodelTemplate:
    """The `MLmodel` text of a run, without what differs from key to key. Picklable."""

    model_set: str
    run_id: str
    head: str

    @classmethod
    def build(  # noqa: PLR0913 - all that a model's text tells
        cls,
        *,
        model_set: str,
        run_id: str,
        estimator: str,
        flavor: Flavor,
        features: Features,
        output: str = "prediction",
        extra_requirements: Sequence[str] = (),
        labels: Labels | None = None,
        intervals: Sequence[float] = (),
    ) -> Self:
        """Return the template of a run; on the driver, once.

        Parameters
        ----------
        model_set, run_id
            The model set and the run.
        estimator
            Family or dotted path, as in the store.
        flavor
            `Family.flavor`.
        features
            Inputs of the signature: numbers as double, text as string, none required (null is a value).
        output
            Name of the one output, a double but for classes.
        extra_requirements
            Requirements of the user's own code, for `requirements.txt`.
        labels
            Of models of classes: the output is a label, and beside it the probabilities by label.
        intervals
            Levels of which the model tells bounds beside its prediction; only our loader reads such a model.
        """
        if intervals:
            flavor, extra_requirements = "bounded", requirements(flavor, extra_requirements)
        outputs = [output, *bounds_of(intervals)]
        needs = list(requirements(flavor, extra_requirements))
        document: dict[str, Any] = {"flavors": _flavors(flavor), "signature": _signature(features, outputs, labels)}
        if (version := installed_version("mlflow")) is not None:
            document["mlflow_version"] = version
        metadata = {"model_set": model_set, "run_id": run_id, "estimator": estimator, "requirements": needs}
        # Metadata come last: `render` goes on with lines of theirs.
        return cls(model_set, run_id, yaml.safe_dump(document) + yaml.safe_dump({"metadata": metadata}))

    def render(self, key_id: str, key_json: str, created_at: dt.datetime) -> str:
        """Return the `MLmodel` text of one key; `key_json` as `keys.key_json` writes it, the time in UTC."""
        return (
            f"{self.head}"
            f"  key_id: {quoted(key_id)}\n"
            f"  key: {quoted(key_json)}\n"
            f"model_uuid: {self.model_uuid(key_id)}\n"
            f"utc_time_created: '{created_at:%Y-%m-%d %H:%M:%S.%f}'\n"
        )

    def model_uuid(self, key_id: str) -> str:
        """Return the model's id: the same for the same model set, run and key."""
        identity = f"{self.model_set}/{self.run_id}/{key_id}"
        # Quoted where YAML would read a number: `12e34` and `0123` are legal hex digits.
        return quoted(hashlib.sha256(identity.encode()).hexdigest()[:32])


def _flavors(flavor: Flavor) -> dict[str, Any]:
    function: dict[str, Any] = {
        "env": {"conda": "conda.yaml", "virtualenv": "python_env.yaml"},
        "python_version": platform.python_version(),
    }
    if flavor == "sklearn":
        loader = {"loader_module": "mlflow.sklearn", "model_path": "model.pkl", "predict_fn": "predict"}
        native = {
            "code": None,
            "pickled_model": "model.pkl",
            "serialization_format": "cloudpickle",
            "sklearn_version": installed_version("scikit-learn"),
        }
        return {"python_function": function | loader, "sklearn": native}
    if flavor in _OWN_DATA:
        return {"python_function": function | {"loader_module": LOADER_MODULE, "data": _OWN_DATA[flavor]}}
    native = {
        "code": None,
        "data": "model.ubj",
        "model_class": "xgboost.core.Booster",
        "model_format": "ubj",
        "xgb_version": installed_version("xgboost"),
    }
    return {
        "python_function": function | {"loader_module": "mlflow.xgboost", "data": "model.ubj"},
        "xgboost": native,
    }


LABEL_TYPES: Mapping[LabelKind, str] = {"text": "string", "integer": "long", "boolean": "boolean"}
"""What MLflow calls the type of a label."""


def _signature(features: Features, names: Sequence[str], labels: Labels | None) -> dict[str, Any]:
    """Return inputs and outputs; Unity Catalog refuses a model without either."""
    types = dict.fromkeys(features.numeric, "double") | dict.fromkeys(features.text, "string")
    inputs = [{"type": types[name], "name": name, "required": False} for name in features.names]
    # A bound is null where a key has too few rows.
    outputs: list[dict[str, Any]] = [
        {"type": "double", "name": name, "required": place == 0} for place, name in enumerate(names)
    ]
    if labels is not None:
        by_label = {"type": "map", "values": {"type": "double"}, "name": PROBABILITIES, "required": True}
        outputs = [{**outputs[0], "type": LABEL_TYPES[labels.kind]}, by_label]
    return {"inputs": json.dumps(inputs), "outputs": json.dumps(outputs), "params": None}


_NOT_PLAIN = re.compile(r"[^\x20-\x7e]")


def quoted(text: str) -> str:
    r"""Return text as a double-quoted YAML scalar in ASCII.

    Not JSON: its surrogate pairs are two characters in YAML, and PyYAML refuses raw control characters.

    Examples
    --------
    >>> quoted('{"lane":"EWR-\u00e9"}')
    '"{\\"lane\\":\\"EWR-\\U000000e9\\"}"'
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + _NOT_PLAIN.sub(lambda match: f"\\U{ord(match.group()):08x}", escaped) + '"'


def environment_files(mlmodel: str) -> dict[str, str]:
    """Return the files that describe a model's environment, by name, as MLflow 3 writes them."""
    content = yaml.load(mlmodel, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  safe ones
    needs = content["metadata"]["requirements"]
    python = content["flavors"]["python_function"]["python_version"]
    found = {name: installed_version(name) for name in ("pip", "setuptools", "wheel")}
    tools = [f"{name}=={version}" if version else name for name, version in found.items()]
    python_env = {
        "python": python,
        "build_dependencies": tools,
        "dependencies": ["-r requirements.txt"],
    }
    conda = {
        "channels": ["conda-forge"],
        "dependencies": [f"python={python}", "pip", {"pip": needs}],
        "name": "mlflow-env",
    }
    return {
        "requirements.txt": "\n".join(needs),
        "python_env.yaml": yaml.safe_dump(python_env, sort_keys=False),
        "conda.yaml": yaml.safe_dump(conda, sort_keys=False),
    }
