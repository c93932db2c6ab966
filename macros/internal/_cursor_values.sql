{% macro _cursor_value(text, type) -%}
    {{- return(adapter.dispatch("_cursor_value", "strandline")(text, type | lower)) -}}
{%- endmacro %}


{% macro default___cursor_value(text, type) -%}
    try_cast({{ text }} as {{ type }})
{%- endmacro %}


{% macro spark___cursor_value(text, type) -%}
    {#- Converts a stored cursor to its column's type. Timestamps are stored in UTC without a
        zone. -#}
    {%- if type == "timestamp" -%}
        try_cast(
            concat({{ text }}, case
                when {{ text }} rlike '^[0-9-]+$' then ' 00:00:00Z'
                when {{ text }} rlike '^[0-9-]+[ T][0-9:.]+$' then 'Z'
                else ''
            end) as timestamp
        )
    {%- else -%}
        try_cast({{ text }} as {{ type }})
    {%- endif -%}
{%- endmacro %}


{% macro _is_time(type) -%}
    {{ return((type or "") | lower in ("date", "timestamp", "timestamp_ntz", "timestamp with time "
        ~ "zone")) }}
{%- endmacro %}


{% macro _is_ahead(cursor, type, tolerance=none, sync_time="_cq_sync_time") -%}
    {#- Returns the condition that a row's cursor is later than the sync that read the row. The
        default tolerance is 5 minutes, because clocks differ. For dates and times without a zone,
        the tolerance is 14 hours, because their time zone is unknown. -#}
    {%- set type = type | lower -%}
    {%- set tolerance = tolerance or ("5 minutes"
        if type in ("timestamp with time zone", "timestamp") and target.type == "spark"
        else "14 hours") -%}
    {{ adapter.dispatch("_instant", "strandline")(cursor, type) }} > {{ sync_time }}
        + interval {{ strandline._literal(tolerance) }}
{%- endmacro %}


{% macro default___instant(expression, type) -%}
    cast({{ expression }} as timestamp)
{%- endmacro %}


{% macro spark___instant(expression, type) -%}
    {#- Reads dates and times without a zone as UTC in every session. -#}
    {%- if type == "date" -%}
        timestamp_seconds(unix_date({{ expression }}) * 86400L)
    {%- elif type == "timestamp_ntz" -%}
        cast(concat(cast({{ expression }} as string), 'Z') as timestamp)
    {%- else -%}
        {{ expression }}
    {%- endif -%}
{%- endmacro %}


{% macro _seconds_between(start, end) -%}
    {{- return(adapter.dispatch("_seconds_between", "strandline")(start, end)) -}}
{%- endmacro %}


{% macro default___seconds_between(start, end) -%}
    epoch(cast({{ end }} as timestamp) - cast({{ start }} as timestamp))
{%- endmacro %}


{% macro spark___seconds_between(start, end) -%}
    cast((unix_micros({{ end }}) - unix_micros({{ start }})) / 1000000 as double)
{%- endmacro %}


{% macro _to_micros(expression) -%}
    {{- ("unix_micros(" if target.type == "spark" else "epoch_us(") ~ expression ~ ")" -}}
{%- endmacro %}


{% macro _from_micros(micros) -%}
    {{- ("timestamp_micros(" if target.type == "spark" else "make_timestamp(") ~ micros ~ ")" -}}
{%- endmacro %}
