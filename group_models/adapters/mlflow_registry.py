"""A registered model in one of MLflow's registries: its local one, a server's, or Unity Catalog's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mlflow
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from group_models.adapters.mlflow_around import ensure_experiment, patient
from group_models.errors import ServerError

STATE_TAG = "group_models_state"
_STATE = "State "

_CATALOGS = ("uc:", "databricks-uc")
_ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")
"""What registries answer for an alias or a model that is not there (MLflow 3.0 to 3.17 differ)."""
_THERE = ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS")
_NOT_ALLOWED = ("PERMISSION_DENIED", "UNAUTHENTICATED", "CUSTOMER_UNAUTHORIZED")


class MlflowRegistry:
    """One registered model.

    Parameters
    ----------
    name
        The registered model's, three levels.
    registry_uri, tracking_uri
        By default those that MLflow is set to; of a registry that is named, its own server. The tracking server keeps
        the files, but for Unity Catalog.
    experiment
        Where the files are kept; by default one named like the model (on Databricks in `/Shared`).
    """

    def __init__(
        self,
        name: str,
        *,
        registry_uri: str | None = None,
        tracking_uri: str | None = None,
        experiment: str | None = None,
    ) -> None:
        self.name = name
        self._uri = registry_uri or _registry_of(tracking_uri) or mlflow.get_registry_uri()
        # Unity Catalog tracks nothing; every other registry is also what keeps the files of its versions.
        is_catalog = self._uri.startswith(_CATALOGS)
        tracking_uri = tracking_uri or (None if is_catalog else registry_uri)
        self._client = MlflowClient(tracking_uri=tracking_uri, registry_uri=self._uri)
        self._experiment = experiment
        # The registry of the open-source Unity Catalog raises NotImplementedError for aliases (MLflow 3.17).
        self.has_aliases = not self._uri.startswith("uc:")

    def describe(self) -> str:
        """Return which registered model this is and where."""
        return f"registered model {self.name} in {self._uri}"

    def version_of(self, alias: str) -> str | None:
        """Return the version that an alias points at, None where there is none."""
        with self._asking(f"reading alias {alias}", or_absent=True):
            return str(self._client.get_model_version_by_alias(self.name, alias).version)
        return None

    def move(self, alias: str, version: str) -> None:
        """Point an alias at a version."""
        with self._asking(f"moving alias {alias} to version {version}"):
            self._client.set_registered_model_alias(self.name, alias, version)

    def find(self, state: str) -> str | None:
        """Return the newest version that was made of a state; None where none is known."""
        found: list[int] = []
        with self._asking("looking for a version", or_absent=True):
            versions = self._client.search_model_versions(f"name='{self.name}'")
            found = [int(v.version) for v in versions if _state_of(v) == state and v.status == "READY"]
        return str(max(found)) if found else None

    def state_of(self, version: str) -> str | None:
        """Return the state that a version was made of, None where it is not ours."""
        with self._asking(f"reading version {version}", or_absent=True):
            return _state_of(self._client.get_model_version(self.name, version))
        return None

    def add(self, directory: Path, *, state: str, tags: Mapping[str, str], description: str) -> str:
        """Make a version of a model's directory and return its number once it can be loaded."""
        self._ensure_model()
        with self._asking("making a version"):
            made = self._client.create_model_version(
                self.name,
                **self._source(directory),
                tags={**tags, STATE_TAG: state},
                description=f"{description} {_STATE}{state}",
            )
            made = self._client.get_model_version(self.name, made.version)
        if made.status != "READY":
            raise ServerError(
                f"{self.describe()}: version {made.version} is {made.status}, not READY; no alias was moved. "
                "`group-models release register SPEC` makes another one"
            )
        return str(made.version)

    def _ensure_model(self) -> None:
        with self._asking("making the registered model", or_there=True):
            self._client.create_registered_model(self.name, description="Made by group-models: one model per key.")

    def _source(self, directory: Path) -> dict[str, Any]:
        """Return where the version's files come from.

        Unity Catalog's registries copy a folder. Only from a plain path: they delete what `runs:/`, `models:/` and
        `file:` URIs on a local store name (open-source Unity Catalog, MLflow 3.17). The others keep no files of their
        own: there they go to the tracking server as a logged model, of no run and so of no run of the user's.
        """
        if self._uri.startswith(_CATALOGS):
            return {"source": str(directory)}
        experiment_id = ensure_experiment(self._client, self._experiment, self.name)
        logged = self._client.create_logged_model(experiment_id, name="router")
        self._client.log_model_artifacts(logged.model_id, str(directory))
        self._client.finalize_logged_model(logged.model_id, "READY")
        if not self._uri.startswith("http"):
            # A registry in a database looks a `models:/` URI up where MLflow is set to, not where we keep it (3.17).
            return {"source": logged.artifact_location}
        return {"source": f"models:/{logged.model_id}", "model_id": logged.model_id}

    @contextlib.contextmanager
    def _asking(self, what: str, *, or_absent: bool = False, or_there: bool = False) -> Iterator[None]:
        """Turn what MLflow raises into one sentence; pass over the answers that are expected."""
        expected = (*(_ABSENT if or_absent else ()), *(_THERE if or_there else ()))
        try:
            with patient():
                yield
        except MlflowException as e:
            if e.error_code not in expected:
                raise ServerError(f"{self.describe()}: {what} failed: {e.message}{_way_out(e)}") from e
        except (OSError, NotImplementedError) as e:
            raise ServerError(f"{self.describe()}: {what} failed: {e}") from e


def _registry_of(tracking_uri: str | None) -> str | None:
    """Return the registry that belongs to a tracking server: of a Databricks workspace that of Unity Catalog."""
    if tracking_uri is None or not tracking_uri.startswith("databricks"):
        return tracking_uri
    return tracking_uri.replace("databricks", "databricks-uc", 1)


def _state_of(version: Any) -> str | None:
    """Return the state that a version was made of: of its tags, else of its description.

    The registry of the open-source Unity Catalog keeps no tags, and `tags` is a method there (MLflow 3.17).
    """
    if isinstance(version.tags, Mapping) and STATE_TAG in version.tags:
        return str(version.tags[STATE_TAG])
    _, found, state = (version.description or "").rpartition(_STATE)
    return state if found else None


def _way_out(error: MlflowException) -> str:
    if error.error_code not in _NOT_ALLOWED:
        return ""
    return (
        " Only the owner of a registered model adds versions and moves aliases; the job also needs USE CATALOG, "
        "USE SCHEMA and, for the first version, CREATE MODEL"
    )
