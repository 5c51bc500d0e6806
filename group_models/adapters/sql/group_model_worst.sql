WITH told AS (
  SELECT model_set, run_id, coalesce(min_by(get_json_object(spec, '$.metric'), at), 'mae') AS metric
  FROM {group_model_run} WHERE event = 'started' GROUP BY model_set, run_id
), measured AS (
  SELECT l.model_set, l.key_id, l.key, l.level, l.model_run_id, l.estimator, l.holdout_rows, t.metric,
    try_element_at(l.metrics, t.metric) AS error,
    try_element_at(l.baseline_metrics, t.metric) AS median_error,
    try_element_at(l.baseline_metrics, concat('parent_', t.metric)) AS parent_error
  FROM {group_model_live} l JOIN told t ON t.model_set = l.model_set AND t.run_id = l.model_run_id
  WHERE l.alias = 'champion'
)
SELECT model_set, level, row_number() OVER (PARTITION BY model_set, level ORDER BY error DESC, key_id) AS place,
  key_id, key, metric, error, median_error, parent_error, holdout_rows, estimator, model_run_id
FROM measured WHERE error IS NOT NULL
