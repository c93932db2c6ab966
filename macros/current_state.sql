{% macro current_state(relation) -%}
    {#- Returns the newest version of each key. A null version from an older tool is treated as 0.
        If two rows have the same version, the row with the lower batch is chosen. The next sync
        then rereads some rows, but misses none. -#}
    select
        key,
        value,
        coalesce(version, 0) as version,
        updated_at,
        split_part(key, '.', 1) as source_name,
        {{ strandline._state_table("key") }} as table_name,
        cast({{ strandline._json_text("value", "batch") }} as bigint) as batch,
        {{ strandline._json_text("value", "cursor") }} as cursor,
        {{ strandline._json_text("value", "cursor_field") }} as cursor_field,
        {{ strandline._json_text("value", "cursor_type") }} as cursor_type,
        cast({{ strandline._json_text("value", "generation") }} as bigint) as generation
    from (
        select
            *,
            row_number() over (
                partition by key
                order by
                    coalesce(version, 0) desc,
                    coalesce(cast({{ strandline._json_text("value", "batch") }} as bigint), 0),
                    updated_at desc
            ) as _cq_age
        from {{ relation }} as state
    ) as versions
    where _cq_age = 1
{%- endmacro %}


{% macro _state_table(key) -%}
    {#- Extracts the table from a key `<source>.<table>`. A source's name contains no dot. -#}
    substring({{ key }}, length(split_part({{ key }}, '.', 1)) + 2)
{%- endmacro %}


{% macro _json_text(column, field) -%}
    {{- return(adapter.dispatch("_json_text", "strandline")(column, field)) -}}
{%- endmacro %}


{% macro default___json_text(column, field) -%}
    case when json_valid({{ column }}) then json_extract_string({{ column }}, '$.{{ field }}') end
{%- endmacro %}


{% macro spark___json_text(column, field) -%}
    get_json_object({{ column }}, '$.{{ field }}')
{%- endmacro %}
