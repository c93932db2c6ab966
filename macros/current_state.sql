{% macro current_state(relation) -%}
    {{- return(adapter.dispatch("current_state", "strandline")(relation)) -}}
{%- endmacro %}


{% macro spark__current_state(relation) -%}
    {#-
        The newest version of a key wins; a version that an older tool left null counts as 0. If two
        rows have the same version, the lower batch is the safe one: at worst, rows are read again.
    -#}
    {%- set batch = "cast(get_json_object(value, '$.batch') as bigint)" -%}
    select
        newest.key,
        newest.value,
        coalesce(newest.version, 0) as version,
        newest.updated_at,
        substring_index(newest.key, '.', 1) as source_name,
        {{ strandline.state_table_name("newest.key") }} as table_name,
        cast(get_json_object(newest.value, '$.batch') as bigint) as batch,
        get_json_object(newest.value, '$.cursor') as cursor,
        get_json_object(newest.value, '$.cursor_field') as cursor_field,
        get_json_object(newest.value, '$.cursor_type') as cursor_type,
        cast(get_json_object(newest.value, '$.generation') as bigint) as generation
    from (
        select max_by(struct(*), struct(coalesce(version, 0), -coalesce({{ batch }}, 0), updated_at)) as newest
        from {{ relation }} as state
        group by key
    ) as keys
{%- endmacro %}


{% macro state_table_name(key) -%}
    {#- A source's name has no dot, so everything after the first dot is the table, dots included. -#}
    substring({{ key }}, locate('.', {{ key }}) + 1)
{%- endmacro %}
