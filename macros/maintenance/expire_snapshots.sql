{% macro expire_snapshots(relation, days=5, alone=false) -%}
    {#- Iceberg retains the current snapshot and the snapshots of tags and branches. -#}
    {%- set table = strandline._maintained_table(
        relation, alone, "expire_snapshots(" ~ relation ~ ")") -%}
    {%- if (days | string).strip("0123456789") or not days | string -%}
        {{ exceptions.raise_compiler_error(
            "expire_snapshots(" ~ relation ~ "): days is '" ~ days ~ "'. Set it to a whole "
            ~ "number of days: expired snapshots cannot be restored."
        ) }}
    {%- endif -%}
    {#- The procedure reads the literal in the session's time zone, so the time is formatted in this
        zone. -#}
    {%- set until = strandline._value(
        "select cast(timestamp_micros(unix_micros(current_timestamp()) - " ~ days | int
        ~ " * 86400000000) as string)") -%}
    {%- do strandline._call_procedure("expire_snapshots", table, "older_than => timestamp '" ~ until
        ~ "'") -%}
{%- endmacro %}
