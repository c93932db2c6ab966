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
    {{ strandline._instant(cursor) }} > {{ sync_time }}
        + interval {{ strandline._literal(tolerance) }}
{%- endmacro %}


{% macro _instant(expression) -%}
    {#- Returns the point in time of a cursor, or null if it is not a time. Dates and times without
        a zone are read as UTC in every session. -#}
    {{- return(adapter.dispatch("_instant", "strandline")(expression)) -}}
{%- endmacro %}


{% macro default___instant(expression) -%}
    {#- Checks the type first, because try_cast() would also convert an integer to a time. -#}
    case
        when typeof({{ expression }}) in ('TIMESTAMP', 'TIMESTAMP WITH TIME ZONE', 'DATE')
            then try_cast({{ expression }} as timestamp)
    end
{%- endmacro %}


{% macro spark___instant(expression) -%}
    case typeof({{ expression }})
        when 'timestamp' then cast({{ expression }} as timestamp)
        when 'date' then cast(concat(cast({{ expression }} as string), ' 00:00:00Z') as timestamp)
        when 'timestamp_ntz' then cast(concat(cast({{ expression }} as string), 'Z') as timestamp)
    end
{%- endmacro %}


{% macro _seconds_between(start, end) -%}
    ({{ strandline._to_micros("cast(" ~ end ~ " as timestamp)") }}
        - {{ strandline._to_micros("cast(" ~ start ~ " as timestamp)") }}) / 1e6
{%- endmacro %}


{% macro _to_micros(expression) -%}
    {{- ("unix_micros(" if target.type in ("spark", "databricks") else "epoch_us(") ~ expression
        ~ ")" -}}
{%- endmacro %}


{% macro _from_micros(micros) -%}
    {{- ("timestamp_micros(" if target.type in ("spark", "databricks") else "make_timestamp(")
        ~ micros ~ ")" -}}
{%- endmacro %}
