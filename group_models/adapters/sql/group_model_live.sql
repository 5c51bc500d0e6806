-- The fold of `live.folding` in SQL; it gives what `live_set` gives for keys with a model of their own.
-- Spark SQL without recursion (Spark 4.0 has none): `aggregate`, a fold over an array, walks the log back from its
-- newest row, where a rollback jumps to the row that it names (`_counted_alone`). The base, whose rows stand for older
-- runs, is the full run that started last of those whose own base is on that walk. Where `runs_to_fold` finds a later
-- one, which happens only after publishes were repeated behind a rollback, both fold to the same models.
WITH log AS (
  SELECT model_set, alias, release_id, action, run_id, target_release_id,
    CAST(row_number() OVER (PARTITION BY model_set, alias ORDER BY at, release_id) AS BIGINT) AS place,
    count_if(alias = 'champion') OVER (
      PARTITION BY model_set ORDER BY at, release_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS champions
  FROM {group_model_release}
), steps AS (
  SELECT l.model_set, l.alias, struct(l.place, l.action, l.run_id, coalesce(t.place, 0L) AS back_to) AS step
  FROM log l LEFT JOIN log t
    ON t.model_set = l.model_set AND t.alias = l.alias AND t.release_id = l.target_release_id
  WHERE l.action IN ('publish', 'rollback', 'adopt')
), walked AS (
  SELECT model_set, alias, aggregate(
    sort_array(collect_list(step), false),
    struct(
      9223372036854775807L AS until,
      CAST(array() AS ARRAY<STRUCT<place: BIGINT, run_id: STRING>>) AS published,
      CAST(array() AS ARRAY<STRUCT<back_to: BIGINT, place: BIGINT>>) AS jumps
    ),
    (state, step) -> CASE
      WHEN step.place > state.until THEN state
      WHEN step.action = 'publish' THEN struct(
        state.until AS until,
        concat(state.published, array(struct(step.place AS place, step.run_id AS run_id))) AS published,
        state.jumps AS jumps
      )
      ELSE struct(
        step.back_to AS until,
        state.published AS published,
        concat(state.jumps, array(struct(step.back_to AS back_to, step.place AS place))) AS jumps
      )
    END
  ) AS walk
  FROM steps GROUP BY model_set, alias
), published AS (
  SELECT model_set, alias, each.place, each.run_id FROM walked LATERAL VIEW explode(walk.published) AS each
), counting AS (
  SELECT model_set, alias, run_id, min(seen) AS seen
  FROM (
    SELECT model_set, alias, run_id, CASE WHEN alias = 'champion' THEN place END AS seen FROM published
    UNION ALL
    SELECT model_set, 'challenger' AS alias, run_id, place AS seen FROM published WHERE alias = 'champion'
  )
  GROUP BY model_set, alias, run_id
), started AS (
  SELECT model_set, run_id, min(at) AS started_at, min_by(struct(scope, base_release), at) AS as_started
  FROM {group_model_run} WHERE event = 'started' GROUP BY model_set, run_id
), cleaned AS (
  SELECT DISTINCT model_set, run_id FROM {group_model_release} WHERE action = 'clean'
), counted AS (
  SELECT c.model_set, c.alias, c.run_id, c.seen, s.started_at, CASE
    WHEN s.as_started.scope IS NOT NULL OR g.run_id IS NOT NULL THEN NULL
    WHEN s.as_started.base_release IS NULL THEN 0L
    WHEN coalesce(exists(w.walk.jumps, jump -> jump.back_to < b.champions AND b.champions < jump.place), false)
      THEN NULL
    ELSE b.champions
  END AS based_on
  FROM counting c
  JOIN started s ON s.model_set = c.model_set AND s.run_id = c.run_id
  LEFT JOIN cleaned g ON g.model_set = c.model_set AND g.run_id = c.run_id
  LEFT JOIN log b ON b.model_set = c.model_set AND b.release_id = s.as_started.base_release
  LEFT JOIN walked w ON w.model_set = c.model_set AND w.alias = 'champion'
), bases AS (
  SELECT model_set, alias, max_by(struct(run_id, based_on), struct(started_at, run_id)) AS base
  FROM counted WHERE based_on IS NOT NULL GROUP BY model_set, alias
), firsts AS (
  SELECT c.model_set, c.alias, any_value(b.base.run_id) AS base_run_id, min(struct(c.started_at, c.run_id)) AS first
  FROM counted c LEFT JOIN bases b ON b.model_set = c.model_set AND b.alias = c.alias
  WHERE b.base IS NULL OR c.run_id = b.base.run_id OR c.seen IS NULL OR c.seen > b.base.based_on
  GROUP BY c.model_set, c.alias
), decided AS (
  SELECT c.model_set, c.alias, m.key_id, max_by({own_model}, struct({decides}, c.started_at, c.run_id)) AS model_run_id
  FROM counted c
  JOIN firsts f
    ON f.model_set = c.model_set AND f.alias = c.alias AND struct(c.started_at, c.run_id) >= f.first
  JOIN {group_model_manifest} m ON m.model_set = c.model_set AND m.run_id = c.run_id
  WHERE {decides} OR c.run_id = f.base_run_id
  GROUP BY c.model_set, c.alias, m.key_id
), pins AS (
  SELECT model_set, alias, key_id,
    max_by(CASE WHEN action = 'pin' THEN run_id END, struct(at, release_id)) AS run_id
  FROM {group_model_release} WHERE action IN ('pin', 'unpin') GROUP BY model_set, alias, key_id
), held AS (
  SELECT p.model_set, p.alias, p.key_id, max({own_model}) AS model_run_id
  FROM pins p JOIN {group_model_manifest} m
    ON m.model_set = p.model_set AND m.run_id = p.run_id AND m.key_id = p.key_id
  GROUP BY p.model_set, p.alias, p.key_id
), live AS (
  SELECT coalesce(h.model_set, d.model_set) AS model_set, coalesce(h.alias, d.alias) AS alias,
    coalesce(h.key_id, d.key_id) AS key_id, h.key_id IS NOT NULL AS is_pinned,
    CASE WHEN h.key_id IS NULL THEN d.model_run_id ELSE h.model_run_id END AS model_run_id
  FROM decided d FULL JOIN held h
    ON h.model_set = d.model_set AND h.alias = d.alias AND h.key_id = d.key_id
)
SELECT l.model_set, l.alias, l.key_id, m.key, m.level, l.model_run_id, l.is_pinned, m.finished_at AS trained_at,
  m.estimator, m.rows_used, m.holdout_rows, m.metrics, m.baseline_metrics, m.parent_key_id, m.parent_run_id
FROM live l LEFT JOIN {group_model_manifest} m
  ON m.model_set = l.model_set AND m.run_id = l.model_run_id AND m.key_id = l.key_id
WHERE l.model_run_id IS NOT NULL
