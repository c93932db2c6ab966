{% macro cursor_value(text, type) -%}
    {#-
        A stored cursor as a value of its column's type; `text` is an expression. Timestamps are stored in
        UTC without a zone, and a session may be in another zone.
    -#}
    {%- if type == "timestamp" -%}
        cast(
            concat({{ text }}, case
                when {{ text }} rlike '^[0-9-]+$' then ' 00:00:00Z'
                when {{ text }} rlike '^[0-9-]+[ T][0-9:.]+$' then 'Z'
                else ''
            end) as timestamp
        )
    {%- else -%}
        cast({{ text }} as {{ type }})
    {%- endif -%}
{%- endmacro %}


{% macro instant(expression, type) -%}
    {#- A date, a wall-clock time or a timestamp as a timestamp. The first two are read as UTC, in any session. -#}
    {%- if type == "date" -%}
        timestamp_seconds(unix_date({{ expression }}) * 86400L)
    {%- elif type == "timestamp_ntz" -%}
        cast(concat(cast({{ expression }} as string), 'Z') as timestamp)
    {%- else -%}
        {{ expression }}
    {%- endif -%}
{%- endmacro %}


{% macro cursor_text(expression, type) -%}
    {#- A value of a cursor's column in the form in which cursors are stored: timestamps in UTC. -#}
    {%- if type == "timestamp" -%}
        cast(to_utc_timestamp({{ expression }}, current_timezone()) as string)
    {%- else -%}
        cast({{ expression }} as string)
    {%- endif -%}
{%- endmacro %}


{% macro dated_ahead(at, type, tolerance=none) -%}
    {#-
        The condition that a raw row's cursor is later than its sync. Clocks differ by minutes; a date or
        a wall-clock time may also be off by its time zone, which is unknown.
    -#}
    {%- set allowed = strandline.text_literal(tolerance or ("5 minutes" if type == "timestamp" else "14 hours")) -%}
    {{ strandline.instant(at, type) }} > _cq_sync_time + interval {{ allowed }}
{%- endmacro %}
