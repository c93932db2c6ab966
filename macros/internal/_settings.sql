{% macro _settings(node) -%}
    {#- Returns the settings of a model or source from `config.meta.strandline` and dbt's
        `unique_key`: {unique_key: [..], cursor_field, row_filter, delete_stale, as_of, strict,
        ...}. -#}
    {%- set configured = node.get("config") or {} -%}
    {%- set settings = dict((configured.get("meta") or {}).get("strandline") or {}) -%}
    {%- if node.get("resource_type") == "model" and configured.get("unique_key") -%}
        {%- do settings.update({"unique_key": configured.get("unique_key")}) -%}
    {%- endif -%}
    {%- do settings.update({"unique_key": strandline._as_list(settings.get("unique_key"))}) -%}
    {{ return(settings) }}
{%- endmacro %}


{% macro _as_list(value) -%}
    {{ return([value] if value is string else (value or []) | list) }}
{%- endmacro %}


{% macro _seconds_of(within, owner) -%}
    {#- Validates a test's argument `within`, which is a number of hours, and converts it to
        seconds. -#}
    {%- set hours = within | float(-1) -%}
    {%- if hours < 0 -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": within is " ~ tojson(within) ~ ". Set it to a number of hours, for "
            ~ "example within: 1.5"
        ) }}
    {%- endif -%}
    {{ return((hours * 3600) | int) }}
{%- endmacro %}


{% macro _require_key(key, owner) -%}
    {%- set key = strandline._as_list(key) -%}
    {%- if not key -%}
        {{ exceptions.raise_compiler_error(
            owner ~ " needs a unique_key: the column or columns that identify a row. Set "
            ~ "unique_key='id' or unique_key=['order_id', 'line_no']. A table without a key has no "
            ~ "latest version: read its raw table instead."
        ) }}
    {%- endif -%}
    {{ return(key) }}
{%- endmacro %}


{% macro _check_columns(names, existing, owner, role) -%}
    {%- set known = existing | map("lower") | list -%}
    {%- for name in names if name | lower not in known -%}
        {{ exceptions.raise_compiler_error(
            owner ~ ": the " ~ role ~ " '" ~ name ~ "' is not one of its columns ("
            ~ existing[:20] | join(", ") ~ (", ..." if existing | length > 20 else "")
            ~ "). Correct " ~ role ~ ", or select the column."
        ) }}
    {%- endfor -%}
{%- endmacro %}


{% macro _object(strict, message) -%}
    {#- Raises an error for a likely mistake. With `strict: false`, only logs a warning. -#}
    {%- if strict -%}
        {{ exceptions.raise_compiler_error(
            message ~ " (`strict: false` in config.meta.strandline turns this error into a "
            ~ "warning.)"
        ) }}
    {%- endif -%}
    {%- do exceptions.warn(message) -%}
{%- endmacro %}
