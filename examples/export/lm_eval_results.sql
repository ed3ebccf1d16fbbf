/* One document for each policy of each finished cell, as lm-eval 0.4 writes results_<date>.json with --output_path.
   Metrics (greedy, sampled, best@k, maj@k) stand under the filter "none", each with its standard error over questions. */
WITH tasks AS (
    SELECT s.suite, s.cell, s.policy, s.task,
        json_merge_patch(
            json_object('alias', s.task),
            json_group_object(s.metric || ',none', s.accuracy),
            json_group_object(s.metric || '_stderr,none', coalesce(to_json(s.error), '"N/A"'::JSON))
        ) AS results,
        json_group_object(s.metric, true) AS higher_is_better,
        max(s.questions) AS questions
    FROM scores s JOIN current_cells c USING (suite, cell)
    WHERE c.kind = 'cell' AND c.state = 'done' AND s.accuracy IS NOT NULL
    GROUP BY s.suite, s.cell, s.policy, s.task
)
SELECT concat_ws('__', c.suite, c.group_name, c.regime, c.seed, t.policy) AS model, json_object(
    'results', json_group_object(t.task, t.results),
    'group_subtasks', json_group_object(t.task, '[]'::JSON),
    'configs', json_group_object(t.task, json_object('task', t.task, 'output_type', 'generate_until', 'num_fewshot', 0)),
    'versions', json_group_object(t.task, coalesce(c.identity ->> '$.versions.tasks', '')),
    'n-shot', json_group_object(t.task, 0),
    'higher_is_better', json_group_object(t.task, t.higher_is_better),
    'n-samples', json_group_object(t.task, json_object('original', t.questions, 'effective', t.questions)),
    'config', json_object('model', any_value(c.engine), 'regime', any_value(c.regime), 'group', any_value(c.group_name),
        'seed', any_value(c.seed), 'cell', t.cell, 'gen_kwargs', any_value(c.config) -> '$.evaluation'),
    'git_hash', any_value(c.commit_hash),
    'date', epoch(any_value(c.finished)::TIMESTAMPTZ),
    'lm_eval_version', any_value(c.packages) ->> '$."lm-eval"',
    'model_name', concat_ws('__', c.suite, c.group_name, c.regime, c.seed, t.policy)
) AS document
FROM tasks t JOIN current_cells c USING (suite, cell)
GROUP BY c.suite, t.cell, c.group_name, c.regime, c.seed, t.policy
ORDER BY model
