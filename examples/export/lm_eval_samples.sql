/* One line for each question under one way of asking (`filter`: greedy or sampled), as lm-eval 0.4 writes
   samples_<task>_<date>.jsonl with --log_samples. exact_match is the mean of the answers that have a verdict. Questions whose
   prompts were not kept (reference results, bundles) are left out. */
SELECT concat_ws('__', c.suite, c.group_name, c.regime, c.seed, s.policy) AS model, s.task, json_object(
    'doc_id', row_number() OVER (PARTITION BY s.suite, s.cell, s.policy, s.task ORDER BY s.metric, s.doc_id) - 1,
    'doc', json_object('id', s.doc_id, 'question', any_value(s.prompt), 'answer', any_value(s.gold)),
    'target', any_value(s.gold),
    'arguments', json_object('gen_args_0',
        json_object('arg_0', any_value(s.prompt), 'arg_1', json_object('do_sample', s.metric <> 'greedy'))),
    'resps', [list(s.text ORDER BY s.repeat)],
    'filtered_resps', list(s.extracted ORDER BY s.repeat),
    'filter', s.metric,
    'metrics', ['exact_match'],
    'doc_hash', sha256(s.doc_id || any_value(s.prompt) || any_value(s.gold)),
    'prompt_hash', sha256(any_value(s.prompt)),
    'target_hash', sha256(any_value(s.gold)),
    'exact_match', avg((s.verdict = 'right')::INT) FILTER (s.verdict <> 'invalid'),
    'verdicts', list(s.verdict ORDER BY s.repeat)
) AS line
FROM samples s JOIN current_cells c USING (suite, cell)
WHERE c.kind = 'cell' AND c.state = 'done' AND s.prompt <> ''
    AND s.checkpoint_step = (SELECT max(checkpoint_step) FROM samples l WHERE l.suite = s.suite AND l.cell = s.cell)
GROUP BY s.suite, s.cell, c.suite, c.group_name, c.regime, c.seed, s.policy, s.task, s.metric, s.doc_id
ORDER BY model, s.task, s.metric, s.doc_id
