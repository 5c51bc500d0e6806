SELECT m.model_set, m.run_id, s.started_at AS run_started_at, m.status, m.error_stage, m.error_type,
  count(*) AS keys, min(m.key_id) AS example_key_id, min_by(m.key, m.key_id) AS example_key,
  min_by(coalesce(m.error_message, m.reason), m.key_id) AS example_message
FROM {group_model_manifest} m JOIN ({started}) s
  ON s.model_set = m.model_set AND s.run_id = m.run_id
WHERE m.status IN ({failed})
GROUP BY m.model_set, m.run_id, s.started_at, m.status, m.error_stage, m.error_type
