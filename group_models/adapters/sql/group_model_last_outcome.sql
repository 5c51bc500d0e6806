WITH numbered AS (
  SELECT m.*, s.started_at AS run_started_at,
    row_number() OVER (PARTITION BY m.model_set, m.key_id ORDER BY s.started_at DESC, m.run_id DESC) AS place
  FROM {group_model_manifest} m JOIN ({started}) s
    ON s.model_set = m.model_set AND s.run_id = m.run_id
)
SELECT model_set, key_id, key, level, run_id, run_started_at, status, serves, model_run_id, reason, error_type,
  error_stage, error_message, rows, usable_rows, metrics, baseline_metrics, fit_seconds
FROM numbered WHERE place = 1
