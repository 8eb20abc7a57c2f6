"""The statements that make the views of a run, which `agentrl.inspect.query.sql` describes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from agentrl.data.store.columns import SCHEMA
from agentrl.data.store.token_columns import TOKENS_SCHEMA
from agentrl.inspect.read.run_files import StoredFile
from agentrl.types import TERMINATION_RULES

VIEWS = ("trajectories", "turns", "calls", "tokens", "metrics")
"""Views that a query may name."""

_WHICH = "step, kind, task_id, group_id, rollout_id, row_index"
_METRICS = pa.schema(
    [
        ("step", pa.int64()),
        ("time", pa.float64()),
        ("name", pa.string()),
        ("value", pa.float64()),
    ]
)


def view_statements(trajectories: Sequence[StoredFile], tokens: Sequence[StoredFile]) -> list[str]:
    """Statements that make all views but `metrics` over these files, in order."""
    return [
        _view("stored_rows", _source(trajectories, SCHEMA)),
        _view("stored_tokens", _source(tokens, TOKENS_SCHEMA)),
        _view("trajectories", _TRAJECTORIES),
        _view("turns", _TURNS),
        _view("calls", _CALLS),
        _view("tokens", _TOKENS),
    ]


def metric_table(values: Iterable[tuple[int, float | None, str, float]]) -> pa.Table:
    """`(step, time, name, value)` as a table."""
    columns = list(zip(*values, strict=True)) or [(), (), (), ()]
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _METRICS, strict=True)],
        schema=_METRICS,
    )


def _view(name: str, select: str) -> str:
    return f"create or replace view {name} as {select}"


def _source(files: Sequence[StoredFile], schema: pa.Schema) -> str:
    if not files:
        return f"select {', '.join(map(_null, schema))} where false"
    alike: dict[frozenset[str], list[str]] = {}
    for file in files:
        path = "'" + str(file.path).replace("'", "''") + "'"
        alike.setdefault(file.lacks.intersection(schema.names), []).append(path)
    selects: list[str] = []
    for lacks, paths in alike.items():
        columns = ", ".join(_null(one) if one.name in lacks else one.name for one in schema)
        source = f"read_parquet([{', '.join(paths)}], hive_partitioning = false)"
        selects.append(f"select {columns} from {source}")
    return " union all ".join(selects)


def _null(field: pa.Field) -> str:
    return f"cast(null as {_duckdb_type(field.type)}) as {field.name}"


def _duckdb_type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"{_duckdb_type(kind.value_type)}[]"
    if pa.types.is_fixed_size_list(kind):
        return f"{_duckdb_type(kind.value_type)}[{kind.list_size}]"
    if pa.types.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return "struct(" + ", ".join(f'"{f.name}" {_duckdb_type(f.type)}' for f in fields) + ")"
    return {
        "int8": "tinyint",
        "int32": "int",
        "int64": "bigint",
        "float": "float",
        "double": "double",
        "bool": "boolean",
        "string": "varchar",
    }[str(kind)]


_TRUNCATED = ", ".join(
    f"'{termination.value}'" for termination, rule in TERMINATION_RULES.items() if rule.truncated
)

_TRAJECTORIES = f"""
select {_WHICH}, split, reward, score, advantage, termination, termination_detail,
    termination in ({_TRUNCATED}) as truncated,
    map_from_entries(reward_parts) as reward_parts,
    map_from_entries(extra_logs) as extra_logs,
    explanation, requests,
    temperature, duration_s,
    len(prompt_ids) as prompt_tokens,
    len(response_ids) as response_tokens,
    cast(coalesce(list_sum(response_mask), 0) as bigint) as action_tokens,
    len(list_filter(turns, lambda t: t.role = 'assistant')) as turns,
    list_min(list_filter(policy_versions, lambda v: v >= 0)) as oldest_version,
    list_max(list_filter(policy_versions, lambda v: v >= 0)) as newest_version,
    prompt_text
from stored_rows
"""

_TURNS = f"""
select {_WHICH}, turn, item.role as role, item.start as first_token, item."end" as end_token,
    item.text as text, item.reward as reward, item.finish_reason as finish_reason,
    item.duration_s as duration_s, len(item.tool_calls) as calls
from (
    select {_WHICH}, unnest(turns) as item, unnest(range(len(turns))) as turn from stored_rows
)
"""

_CALLS = f"""
select {_WHICH}, turn, call.id as call_id, call.name as name, call.arguments as arguments,
    call.raw as raw, call.status as parsed, call.error as error,
    result.status as status, result.text as result, result.duration_s as duration_s,
    result.truncated as truncated, result.data as data
from (
    select {_WHICH}, turn, call,
        list_filter(results, lambda r: r.call_id = call.id)[1] as result
    from (
        select {_WHICH}, turn, results, unnest(item.tool_calls) as call
        from (
            select {_WHICH}, unnest(turns) as item, unnest(range(len(turns))) as turn,
                flatten(list_transform(turns, lambda t: t.tool_results)) as results
            from stored_rows
        )
    )
)
"""

_TOKENS = f"""
select {_WHICH}, position, token_id, mask, version, rollout_log_prob,
    if(sampled, old_log_prob, null) as old_log_prob,
    if(sampled, old_log_prob + log_ratio, null) as log_prob,
    if(sampled, old_log_prob + log_ratio - ref_log_ratio, null) as ref_log_prob,
    if(sampled, old_log_prob - rollout_log_prob, null) as gap,
    if(sampled, exp(log_ratio), null) as ratio,
    if(computed, coalesce(trained, false), null) as trained,
    if(sampled, entropy, null) as entropy,
    if(sampled, advantage, null) as advantage,
    if(sampled, correction, null) as correction,
    if(sampled, clip, null) as clip,
    if(sampled, loss, null) as loss
from (
    select *, mask = 1 and trained is not null as sampled from (
        select {", ".join(f"r.{name}" for name in _WHICH.split(", "))},
            t.rollout_id is not null as computed,
            unnest(range(len(r.response_ids))) as position,
            unnest(r.response_ids) as token_id,
            unnest(r.response_mask) as mask,
            unnest(r.policy_versions) as version,
            unnest(r.rollout_log_probs) as rollout_log_prob,
            unnest(t.trained) as trained,
            unnest(t.old_log_probs) as old_log_prob,
            unnest(t.log_ratio) as log_ratio,
            unnest(t.ref_log_ratio) as ref_log_ratio,
            unnest(t.entropy) as entropy,
            unnest(t.advantages) as advantage,
            unnest(t.correction) as correction,
            unnest(t.clip) as clip,
            unnest(t.loss) as loss
        from stored_rows r left join stored_tokens t
            on r.kind = 'train' and r.step = t.step and r.rollout_id = t.rollout_id
            and r.row_index = t.row_index
    )
)
"""
