-- A head leaves out what its columns say: it is written at every step.

update runs
set    head = json_remove(head, '$.run_id', '$.namespace', '$.seq', '$.state', '$.updated_at', '$.ended_at', '$.pinned');
