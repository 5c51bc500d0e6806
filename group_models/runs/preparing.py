"""A spec against its source: everything that is checked and planned before anything is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from group_models.adapters import (
    source_versions,
    spark_columns,
    spark_source,
)
from group_models.binned import text_target
from group_models.errors import SpecError
from group_models.estimators.base import EstimatorSettings, Features, features_of
from group_models.estimators.children import with_parent
from group_models.estimators.registry import check_settings
from group_models.frames import Roles, check_columns, column_kind, roles
from group_models.keys import KeyKind
from group_models.levels import Levels
from group_models.live.sets import read_key_kinds, read_task
from group_models.planning.scopes import Ask, Scope
from group_models.planning.windows import NO_BOUNDS, Bounds
from group_models.ports import SparkFrame, SparkSession, Tables
from group_models.runs.scoping import find_scope
from group_models.runs.spec_estimators import (
    check_tracked,
    estimator_mistakes,
    estimator_settings,
    other_settings,
    override_settings,
    pooled_settings,
)
from group_models.spec import Spec


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A spec against its source, checked: all that is needed before the first Spark job."""

    spec: Spec
    scope: Scope
    tables: Tables
    spark: SparkSession
    roles: Roles
    key_types: Mapping[str, str]
    features: Features
    estimator: EstimatorSettings
    source: source_versions.Pinned
    bounds: Bounds = NO_BOUNDS
    override_estimators: tuple[EstimatorSettings, ...] = ()
    others: tuple[EstimatorSettings, ...] = ()
    label_order: tuple[str, ...] = ()

    @property
    def frame(self) -> SparkFrame:
        """The rows of the source, at the version that the run reads."""
        return self.source.frame

    def overridden(self, place: int | None) -> Prepared:
        """Return what is prepared for the keys of an override; as it is for those of none."""
        if place is None:
            return self
        spec = self.spec.overridden(place)
        kinds = {name: self.roles.features[name] for name in spec.features}
        estimator = self.override_estimators[place]
        others = self.others if spec.others else ()
        return dataclasses.replace(self, spec=spec, features=features_of(kinds), estimator=estimator, others=others)

    @property
    def levels(self) -> Levels:
        """The levels of the spec."""
        return Levels(self.roles.keys, self.spec.levels)

    def rows(self, *, scoped: bool = True, level: Sequence[str] | None = None) -> SparkFrame:
        """Return the fit's columns of the source, those of the scope only where `scoped`.

        With the columns of a `level`, the rows are as its parents find them.
        """
        frame = spark_source.in_scope(self.frame, self.scope, list(self.roles.keys)) if scoped else self.frame
        rows = spark_columns.fit_columns(frame, self.roles, self.bounds)
        return rows if level is None else spark_columns.at_level(rows, self.key_types, level)


def prepare(spec: Spec, tables: Tables, spark: SparkSession, ask: Ask | None = None) -> Prepared:
    """Open the source and check everything that can be checked without a Spark job.

    Parameters
    ----------
    ask
        Which keys and which run; by default all keys and a new run.

    Raises
    ------
    SpecError
        Every mistake at once: columns, types, estimator, scope.
    DataError
        The source cannot be opened.
    """
    estimator = estimator_settings(spec)
    label_order: tuple[str, ...] = ()
    if spec.task == "classification":
        rows, label_order = text_target(spec.source.frame, spec.target)
        spec = spec.model_copy(update={"source": spec.source.model_copy(update={"frame": rows})})
    frame = spark_source.open_source(spark, spec.source)
    source = source_versions.pin(spark, spec.source, frame)
    columns = spark_columns.column_types(source.frame)
    mistakes = check_columns(
        columns, keys=spec.keys, features=spec.features, target=spec.target, time_column=spec.time_column,
        sample_weight=spec.sample_weight, task=spec.task,
    )  # fmt: skip
    kinds = {name: kind for name in spec.features if name in columns and (kind := column_kind(columns[name]))}
    features = features_of(kinds)
    mistakes += estimator_mistakes(spec, kinds)
    if spec.pooling.mode == "residual":
        added = check_settings(pooled_settings(spec, estimator), with_parent(features))
        mistakes += [f"pooling.{said}" for said in added]
    if mistakes:
        raise SpecError(mistakes)
    checked = roles(
        columns, keys=spec.keys, features=spec.features, target=spec.target, time_column=spec.time_column,
        sample_weight=spec.sample_weight, task=spec.task,
    )  # fmt: skip
    check_tracked(spec, checked.keys)
    check_keys_kept(tables, spec, dict(checked.keys))
    check_task_kept(tables, spec)
    key_types = {name: columns[name] for name in spec.keys}
    scope = find_scope(
        ask or Ask(), tables, spec.model_set, checked.keys, lambda w: spark_source.check_predicate(spark, w, key_types)
    )
    for place, override in enumerate(spec.overrides):
        spark_source.check_predicate(spark, override.where, key_types, named=f"overrides.{place}.where")
    return Prepared(
        spec, scope, tables, spark, checked, key_types, features, estimator, source,
        override_estimators=override_settings(spec), others=other_settings(spec),
        label_order=label_order,
    )  # fmt: skip


def check_keys_kept(tables: Tables, spec: Spec, now: Mapping[str, KeyKind]) -> None:
    """Refuse a spec whose key columns are others, or in another order, than those of the runs that are published.

    Raises
    ------
    SpecError
        It names both.
    """
    before = read_key_kinds(tables, spec.model_set)
    # In order too: the ids of keys depend on it.
    if before and list(before.items()) != list(now.items()):
        said, meant = (", ".join(f"{name} ({kind})" for name, kind in kinds.items()) for kinds in (before, now))
        rule = f"keys: model set {spec.model_set} is published with {said}, the spec has {meant}"
        raise SpecError([f"{rule}; write them so and in this order, or give it a name of its own"])


def check_task_kept(tables: Tables, spec: Spec) -> None:
    """Refuse a spec whose task is another than that of the runs that are published: some keys would be served by both.

    Raises
    ------
    SpecError
        It names both.
    """
    before = read_task(tables, spec.model_set)
    if before not in (None, spec.task):
        rule = f"task: model set {spec.model_set} is published with {before}, the spec has {spec.task}"
        raise SpecError([f"{rule}; write it so, or give the set a name of its own"])
