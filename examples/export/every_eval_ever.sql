/* One record of Every Eval Ever (schema 0.3.0) for each policy of each finished cell; each task and metric is one result with its
   standard error over questions. The developer is `local`: replace it by your organisation. */
WITH results AS (
    SELECT s.suite, s.cell, s.policy, json_object(
        'evaluation_result_id', s.task || '/' || s.metric,
        'evaluation_name', s.task,
        'source_data', json_object('dataset_name', s.task, 'source_type', 'other'),
        'metric_config', json_object(
            'metric_id', CASE WHEN s.metric = 'greedy' THEN 'accuracy' WHEN s.metric LIKE 'maj@%' THEN 'maj_at_k' ELSE 'pass_at_k' END,
            'metric_name', CASE WHEN s.metric = 'sampled' THEN 'avg@' || s.repeats ELSE s.metric END,
            'metric_unit', 'proportion',
            'metric_parameters', json_object(
                'k', CASE WHEN s.metric IN ('greedy', 'sampled') THEN 1 ELSE s.repeats END, 'samples', s.repeats),
            'lower_is_better', false, 'score_type', 'continuous', 'min_score', 0.0, 'max_score', 1.0),
        'score_details', json_object(
            'score', s.accuracy,
            'uncertainty', json_merge_patch(
                json_object('num_samples', s.questions),
                CASE WHEN s.error IS NULL THEN '{}'::JSON
                    ELSE json_object('standard_error', json_object('value', s.error, 'method', 'analytic')) END),
            'details', json_object('answers', s.answers::VARCHAR, 'answers_without_verdict', s.invalid::VARCHAR)),
        'generation_config', json_object('generation_args', CASE WHEN s.metric = 'greedy'
            THEN json_object('temperature', 0.0)
            ELSE json_object(
                'temperature', coalesce((c.config ->> '$.evaluation.temperature')::DOUBLE, 1.0),
                'top_p', coalesce((c.config ->> '$.evaluation.top_p')::DOUBLE, 1.0)) END)
    ) AS result, s.task, s.metric
    FROM scores s JOIN current_cells c USING (suite, cell)
    WHERE c.kind = 'cell' AND c.state = 'done' AND s.accuracy IS NOT NULL
), named AS (
    SELECT *, concat_ws('__', suite, group_name, regime, seed) AS name, epoch(finished::TIMESTAMPTZ)::VARCHAR AS time
    FROM current_cells
)
SELECT c.name || '__' || r.policy AS model, json_object(
    'schema_version', '0.3.0',
    'evaluation_id', 'experience-sharing-harness/local_' || c.name || '__' || r.policy || '/' || c.time,
    'evaluation_timestamp', c.time,
    'retrieved_timestamp', c.time,
    'source_metadata', json_object('source_name', 'experience-sharing-harness', 'source_type', 'evaluation_run',
        'source_organization_name', 'local', 'evaluator_relationship', 'first_party'),
    'eval_library', json_object('name', 'experience-sharing-harness', 'version', any_value(c.code_version)),
    'model_info', json_object('name', c.name || '__' || r.policy, 'id', 'local/' || c.name || '__' || r.policy, 'developer', 'local',
        'inference_engine', json_object('name', 'experience-sharing-harness ' || any_value(c.engine),
            'version', any_value(c.code_version)),
        'additional_details', json_object('suite', c.suite, 'group', any_value(c.group_name), 'policy', r.policy,
            'regime', any_value(c.regime), 'regime_type', any_value(c.regime_type), 'seed', any_value(c.seed)::VARCHAR,
            'budget', any_value(c.budget), 'cell', r.cell)),
    'evaluation_results', list(r.result ORDER BY r.task, r.metric)
) AS record
FROM results r JOIN named c USING (suite, cell)
GROUP BY c.suite, r.cell, c.name, c.time, r.policy
ORDER BY model
