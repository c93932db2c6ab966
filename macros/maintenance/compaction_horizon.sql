{% macro compaction_horizon(relation, days, kept_from_it) -%}
    {#-
        Up to which batch versions may go: below the newest, below the days to keep, and not above
        what any snapshot or history has merged. {batch, note}.
    -#}
    {%- set name = strandline.full_name(relation) -%}
    {%- set horizon = {"batch": (strandline.head_batch(name) or 0) - 1, "note": "the newest batch stays whole", "tell": false} -%}
    {%- if days is not none -%}
        {%- set young = run_query(
            "select min(_cq_batch) from " ~ name ~ " where _cq_sync_time >= "
            ~ "timestamp_micros(unix_micros(current_timestamp()) - " ~ days | int ~ " * 86400000000)"
        ).columns[0].values()[0] -%}
        {%- if young is not none and young | int - 1 < horizon.batch -%}
            {%- do horizon.update({"batch": young | int - 1, "note": "nothing is older than " ~ days ~ (" day" if days | int == 1 else " days")}) -%}
        {%- endif -%}
    {%- endif -%}
    {%- for one in kept_from_it -%}
        {%- set merged = strandline.merged_to(one, relation) -%}
        {%- if merged < horizon.batch -%}
            {%- do horizon.update({
                "batch": merged, "note": one.name ~ " has merged up to batch " ~ merged ~ " only", "tell": true,
            }) -%}
        {%- endif -%}
    {%- endfor -%}
    {{ return({
        "batch": [horizon.batch, 0] | max,
        "note": horizon.note if horizon.tell or horizon.batch < 1 else none,
    }) }}
{%- endmacro %}


{% macro reachable_from(relation, cursor_field, owner, sharers=[]) -%}
    {#-
        The lowest cursor that the next sync can read again, as an expression: a redelivery is told by
        comparing with the rows from there on. The next window begins at the stored cursor, minus a
        lookback: not below where the last one began. Sources that share the table have windows each.
    -#}
    {%- set syncs = strandline.syncs_relation(relation.schema) -%}
    {%- set type = strandline.column_type(relation, cursor_field) -%}
    {%- set floors = {} -%}
    {%- if strandline.exists(syncs) -%}
        {%- set windows_sql -%}
            select
                {{ "source_name" if sharers else "''" }},
                max_by(cursor_low, started_at) filter (where cursor_low is not null),
                max_by(cursor_high, started_at) filter (where cursor_high is not null)
            from {{ syncs }} as syncs
            where table_name = {{ strandline.text_literal(relation.identifier) }}
                and status in ('synced', 'recovered', 'nothing new')
                and lower(cursor_field) = lower({{ strandline.text_literal(cursor_field) }})
            group by 1
        {%- endset -%}
        {%- for row in run_query(windows_sql) if not sharers or row[0] in sharers -%}
            {%- set texts = [] -%}
            {%- for text in [row[1], row[2]] if text is not none -%}
                {%- do texts.append(strandline.cursor_value(strandline.text_literal(text), type)) -%}
            {%- endfor -%}
            {%- set lowest = "least(" ~ texts | join(", ") ~ ")" if texts | length > 1 else texts | first -%}
            {%- do floors.update({row[0]: lowest if texts else "cast(null as " ~ type ~ ")"}) -%}
        {%- endfor -%}
    {%- endif -%}
    {%- if not floors -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": the ledger knows no sync by " ~ cursor_field ~ ", so it cannot tell which rows the next sync may "
            ~ "deliver again. Nothing was removed. Sync the table once more, or correct cursor_field."
        ) }}
    {%- endif -%}
    {%- if not sharers -%}
        {{ return(floors.values() | first) }}
    {%- endif -%}
    {%- set cases = [] -%}
    {%- for source, floor in floors | dictsort -%}
        {%- do cases.append("when " ~ strandline.text_literal(source) ~ " then " ~ floor) -%}
    {%- endfor -%}
    {{ return("case _cq_source_name " ~ cases | join(" ") ~ " end") }}
{%- endmacro %}
