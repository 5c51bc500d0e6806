WITH started AS (
  SELECT model_set, run_id, min(at) AS started_at, min_by(struct(scope), at) AS as_started
  FROM {group_model_run} WHERE event = 'started' GROUP BY model_set, run_id
), newest AS (
  SELECT model_set, max_by(struct(run_id, started_at, as_started), struct(started_at, run_id)) AS run
  FROM started GROUP BY model_set
)
SELECT n.model_set, n.run.run_id, n.run.as_started.scope, n.run.started_at, f.at AS finished_at, f.keys, f.rows,
  f.counts, f.seconds, f.waves, f.refusal
FROM newest n LEFT JOIN {group_model_run} f
  ON f.model_set = n.model_set AND f.run_id = n.run.run_id AND f.event = 'finished'
