{% macro deduped_latest(relation, primary_key, cursor_field=none, as_of=none) -%}
    {{- return(adapter.dispatch("deduped_latest", "strandline")(relation, primary_key, cursor_field, as_of)) -}}
{%- endmacro %}


{% macro default__deduped_latest(relation, primary_key, cursor_field, as_of) -%}
    {%- set keys = strandline.key_columns(primary_key, "deduped_latest(" ~ relation ~ ")") -%}
    select newest.*
    from (
        {#- max_by over the whole struct: MAP columns allowed, nothing shuffled but the winner -#}
        {{- "\n" }}        select max_by(struct(*), {{ strandline.version_order(cursor_field) }}) as newest
        from {{ relation }} as versions
        {%- if as_of is not none %}
        where {{ strandline.stood_at(as_of) }}
        {%- endif %}
        group by
            {%- for key in keys %}
            {{ strandline.quoted(key) }}{{ "," if not loop.last }}
            {%- endfor %}
    ) as keys
    where not coalesce(newest._cq_deleted, false)
{%- endmacro %}


{% macro stood_at(as_of) -%}
    {#- All rows of a batch carry the time at which its sync began: a time is a set of batches. -#}
    {%- if as_of is number -%}
        _cq_batch <= {{ as_of }}
    {%- else -%}
        _cq_sync_time <= timestamp {{ strandline.text_literal(as_of) }}
    {%- endif -%}
{%- endmacro %}
