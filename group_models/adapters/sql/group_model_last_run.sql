WITH started AS (
  SELECT model_set, run_id, min(at) AS started_at, min_by(struct(scope), at) AS as_started
  FROM {group_model_run} WHERE event = 'started' GROUP BY model_set, run_id
), newest AS (
  SELECT model_set, max_by(struct(run_id, started_at, as_started), struct(started_at, run_id)) AS run
  FROM started GROUP BY model_set
)
SELECT n.model_set, n.run.run_id, n.run.as_started.scope, n.run.started_at, f.first.at AS finished_at,
  f.first.keys, f.first.rows, f.first.counts, f.first.seconds, f.first.waves, f.first.refusal
FROM newest n LEFT JOIN (
  SELECT model_set, run_id, min_by(struct(at, keys, rows, counts, seconds, waves, refusal), at) AS first
  FROM {group_model_run} WHERE event = 'finished' GROUP BY model_set, run_id
) f ON f.model_set = n.model_set AND f.run_id = n.run.run_id
