{% macro expire_snapshots(relation, days=5, alone=false) -%}
    {{- return(adapter.dispatch("expire_snapshots", "strandline")(relation, days, alone)) -}}
{%- endmacro %}


{% macro spark__expire_snapshots(relation, days, alone) -%}
    {#- Iceberg keeps the current snapshot, and those that tags and branches need. -#}
    {%- set table = strandline.maintained_table(relation, alone, "expire_snapshots(" ~ relation ~ ")") -%}
    {%- if not modules.re.match("^[0-9]+$", days | string) -%}
        {{ exceptions.raise_compiler_error(
            "expire_snapshots(" ~ relation ~ "): days is '" ~ days ~ "'. Give a whole number of days: what expires cannot be "
            ~ "brought back."
        ) }}
    {%- endif -%}
    {#- A procedure takes a literal and reads it in the session's zone, so this is written in that zone, too. -#}
    {%- set until = run_query(
        "select cast(timestamp_micros(unix_micros(current_timestamp()) - " ~ days | int ~ " * 86400000000) as string)"
    ).columns[0].values()[0] -%}
    {%- do strandline.iceberg_call("expire_snapshots", table, "older_than => timestamp '" ~ until ~ "'") -%}
{%- endmacro %}
