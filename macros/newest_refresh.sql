{% macro newest_refresh(relation) -%}
    {{- return(adapter.dispatch("newest_refresh", "strandline")(relation)) -}}
{%- endmacro %}


{% macro spark__newest_refresh(relation) -%}
    {#- Whole generations: the one of the newest complete full refresh, and those after it. -#}
    {%- set refreshes = strandline.complete_refreshes(relation, none, "newest_refresh(" ~ relation ~ ")") if execute else [] -%}
    select *
    from {{ relation }} as versions
    {%- if refreshes %}
    where {{ strandline.shown_from(strandline.refresh_floor(refreshes)) }}
    {%- endif %}
{%- endmacro %}
